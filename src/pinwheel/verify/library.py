"""Reads each library of a wheel once, and the rules that one library can break by itself."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, cast

from packaging.tags import Tag

from pinwheel.errors import ArtifactError
from pinwheel.inspect.abi import PythonAbi, PythonVerdict, TorchVerdict, python_abi, torch_abi
from pinwheel.inspect.elf import FATBIN_SECTIONS, Elf, read_elf
from pinwheel.inspect.fatbin import EntryKind, FatbinEntry, count_targets, read_fatbins
from pinwheel.inspect.loadable import check_library
from pinwheel.inspect.pathscan import Find, scan
from pinwheel.inspect.platform import comes_from_elsewhere, version_floor
from pinwheel.inspect.region import Region, unreadable
from pinwheel.inspect.wheel import WheelReader
from pinwheel.verify.code import LibraryCode, Targets
from pinwheel.verify.model import Checked, Problem

SHOWN = 20  # evidence lines of one problem
# Bounds on a wheel that may be hostile, for all its libraries together: they stay in memory. The
# largest known have 40 libraries (torch) and 500,000 dynamic symbols.
MAX_LIBRARIES = 1000
MAX_SYMBOLS = 2_000_000
LIBRARY_RULES = ("abi3-true", "no-rpath", "no-build-path", "no-exec-stack", "stripped")
_CUDA = "EM_CUDA"
_CODE = (EntryKind.CUBIN, EntryKind.PTX)
_CPYTHON = re.compile(r"cp3([0-9]{1,2})")


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadLibrary:
    """One ELF file of the wheel.

    Attributes:
        elf: what it says of itself.
        size: bytes.
        entries: every image of device code in it.
        finds: directories of a building machine in it.
    """

    elf: Elf
    size: int
    entries: tuple[FatbinEntry, ...] = ()
    finds: tuple[Find, ...] = ()

    @property
    def name(self) -> str:
        """Path within the wheel."""
        return self.elf.name

    @property
    def host(self) -> bool:
        """The loader loads it: no cubin that lies in the wheel as a file, no object file."""
        return self.elf.machine != _CUDA and self.elf.dynamic

    @cached_property
    def counts(self) -> dict[str, int]:
        """Cubins and PTX per target, as cuobjdump lists them: ``{"sm_90a": 25}``."""
        return count_targets(tuple(e for e in self.entries if e.kind in _CODE))

    @cached_property
    def torch(self) -> TorchVerdict:
        """How it relies on torch."""
        return torch_abi(self.elf.symbols)

    @cached_property
    def python(self) -> PythonVerdict:
        """How it relies on Python."""
        return python_abi(self.elf.symbols)

    @property
    def code(self) -> LibraryCode | None:
        """Its device code that runs as it is; None without any."""
        return library_code(self.name, self.entries)

    @property
    def toolkits(self) -> tuple[str, ...]:
        """CUDA releases that compiled its cubins, ``12.4``; empty when they were not read."""
        return tuple(sorted({e.toolkit for e in self.entries if e.toolkit}))

    def as_dict(self, elsewhere: Sequence[str]) -> dict[str, Any]:
        """Plain data, for the report."""
        minimum = self.torch.minimum
        return {
            "kind": self.elf.kind,
            "machine": self.elf.machine,
            "size": self.size,
            "soname": self.elf.soname,
            "needed": list(self.elf.needed),
            "symbol-floor": version_floor(self.elf, elsewhere),
            "python-abi": self.python.abi.value,
            "torch-abi": self.torch.abi.value,
            "torch-minimum": ".".join(map(str, minimum)) if minimum else None,
            "device-code": self.elf.device_code,
            "targets": self.counts,
            "toolkits": list(self.toolkits),
        }


def read_libraries(
    reader: WheelReader,
    *,
    kernels: bool,
    paths: Sequence[str],
    seen: Callable[[ReadLibrary], object] = lambda _: None,
) -> tuple[ReadLibrary, ...]:
    """Read every library of an open wheel, while others of its files are still unpacked.

    Args:
        reader: the wheel.
        kernels: unpack device code for the names of its kernels.
        paths: directories to look for.
        seen: called with each as soon as it is read.

    Returns:
        Sorted by name.

    Raises:
        ArtifactError: one cannot be read, or together they hold more than any wheel does; the
            same one each time, and what is wrong with the wheel itself goes first.
        DiskFullError, NotWritableError: as :func:`~pinwheel.inspect.wheel.open_wheel`.
    """

    def read(names: Iterable[str]) -> list[ReadLibrary]:
        found: list[ReadLibrary] = []
        symbols = 0
        for count, name in enumerate(names, 1):
            if count > MAX_LIBRARIES:
                raise unreadable(
                    reader.path.name, f"{len(reader.libraries)} libraries are too many"
                )
            library = read_library(reader, name, kernels=kernels, paths=paths)
            symbols += len(library.elf.symbols)
            if symbols > MAX_SYMBOLS:
                raise unreadable(
                    reader.path.name, f"its libraries have more than {MAX_SYMBOLS} symbols"
                )
            found.append(library)
            seen(library)
        return found

    try:
        found = read(reader.ready())
    except ArtifactError:
        # Which one is ready first is chance; which of several errors is reported is not.
        found = read(reader.libraries)
    return tuple(sorted(found, key=lambda library: library.name))


def read_library(
    reader: WheelReader, name: str, *, kernels: bool, paths: Sequence[str]
) -> ReadLibrary:
    """Read one library of an open wheel.

    Args:
        reader: the wheel.
        name: one of its libraries.
        kernels, paths: as in :func:`read_libraries`.

    Raises:
        ArtifactError: it cannot be read.
    """
    region = reader.library(name)
    elf = read_elf(region)
    check_library(elf)
    host = elf.machine != _CUDA and elf.dynamic
    return ReadLibrary(
        elf=elf,
        size=region.size,
        entries=read_fatbins(region, elf, kernels=kernels) if host else (),
        finds=tuple(_finds(region, elf, paths)),
    )


def _finds(region: Region, elf: Elf, paths: Sequence[str]) -> Iterator[Find]:
    """Directories named anywhere but in device code.

    That is nine tenths of a library, often compressed, and a build has searched it already.
    """
    at = 0
    for section in sorted(elf.sections, key=lambda s: s.offset):
        if section.name in FATBIN_SECTIONS and section.in_file and section.offset >= at:
            yield from _between(region, at, section.offset, paths)
            at = section.offset + section.in_file
    yield from _between(region, at, region.size, paths)


def _between(region: Region, start: int, end: int, paths: Sequence[str]) -> Iterator[Find]:
    if paths and end > start:
        part = region.part(start, end - start, "its contents")
        # As much of a path as pathscan asks for.
        for find in scan(cast(Path, _Readable(part)), region.name, paths):
            yield replace(find, offset=find.offset + start)


class _Readable:
    """A region that opens like a file."""

    def __init__(self, region: Region) -> None:
        self._region, self._at = region, 0

    def open(self, _mode: str) -> _Readable:
        return _Readable(self._region)

    def __enter__(self) -> _Readable:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def read(self, size: int) -> bytes:
        size = min(size, self._region.size - self._at)
        data = self._region.read(self._at, size, "its contents", most=size)
        self._at += size
        return data


def library_code(name: str, entries: Iterable[FatbinEntry]) -> LibraryCode | None:
    """Device code as the rules want it; code that is still to be linked does not count.

    Returns:
        None when there is none.
    """
    cubins: dict[Any, int] = {}
    ptx: dict[Any, int] = {}
    sass_of: dict[str, set[Any]] = {}
    ptx_of: dict[str, set[Any]] = {}
    serving: dict[EntryKind, set[Any]] = {kind: set() for kind in _CODE}
    read = True
    for entry in entries:
        target = entry.capability
        if entry.kind not in _CODE or target is None or entry.relocatable:
            continue
        counts, of = (cubins, sass_of) if entry.kind is EntryKind.CUBIN else (ptx, ptx_of)
        counts[target] = counts.get(target, 0) + 1
        read = read and entry.kernels is not None
        if entry.kernels:
            serving[entry.kind].add(target)
        for kernel in entry.kernels or ():
            of.setdefault(kernel, set()).add(target)
    if not cubins and not ptx:
        return None
    return LibraryCode(
        name=name,
        cubins=cubins,
        ptx=ptx,
        kernels={
            kernel: Targets(frozenset(sass_of.get(kernel, ())), frozenset(ptx_of.get(kernel, ())))
            for kernel in sass_of.keys() | ptx_of.keys()
        },
        serving=Targets(*(frozenset(serving[kind]) for kind in _CODE)) if read else None,
    )


@cache
def build_paths(ours: bool) -> tuple[str, ...]:
    """Directories that no library may name, from ``data/build_paths.toml``."""
    text = (resources.files("pinwheel.data") / "build_paths.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["ours" if ours else "stranger"]["paths"])


# --- rules ----------------------------------------------------------------------------------


def check_libraries(libraries: Sequence[ReadLibrary], tags: Iterable[Tag]) -> Checked:
    """``abi3-true``, ``no-rpath``, ``no-build-path``, ``no-exec-stack``, ``stripped``."""
    host = [library for library in libraries if library.host]
    if not host:
        return Checked(skipped=dict.fromkeys(LIBRARY_RULES, "the wheel holds no library"))
    limited, abi3 = _check_abi3(host, tuple(tags))
    problems = [*abi3, *(p for library in host for p in _check(library))]
    counted = f"{len(host)} libraries"
    looked = dict.fromkeys(LIBRARY_RULES, counted)
    if not limited:
        del looked["abi3-true"]
        return Checked(
            looked=looked,
            skipped={"abi3-true": "no library is called abi3"},
            problems=tuple(problems),
        )
    return Checked(
        looked={**looked, "abi3-true": f"{limited} called abi3"}, problems=tuple(problems)
    )


def _check(library: ReadLibrary) -> Iterator[Problem]:
    elf = library.elf
    for tag, path in elf.search_paths:
        yield Problem(
            rule="no-rpath",
            subject=library.name,
            what=f"{library.name} has a {tag}",
            evidence=(f"libraries would be looked for in {path!r}",),
            next_step="Link with CMAKE_SKIP_RPATH, or strip it.",
        )
    if library.finds:
        lines = [str(find) for find in library.finds]
        yield Problem(
            rule="no-build-path",
            subject=library.name,
            what=f"{library.name} names directories of the machine that built it",
            evidence=shortened(lines),
            next_step="Build at a canonical path, or map it away with -ffile-prefix-map.",
        )
    if elf.executable_stack:
        yield Problem(
            rule="no-exec-stack",
            subject=library.name,
            what=f"{library.name} asks for an executable stack",
            evidence=("PT_GNU_STACK is executable or missing",),
            next_step="Link with -z noexecstack; assembler sources need .note.GNU-stack.",
        )
    if elf.symbol_table:
        sections = [
            f"{s.name}: {s.in_file} bytes"
            for s in elf.sections
            if s.name == ".symtab" or s.name.startswith((".debug_", ".zdebug_"))
        ]
        yield Problem(
            rule="stripped",
            subject=library.name,
            what=f"{library.name} is not stripped",
            evidence=shortened(sections),
            next_step="Run strip on it.",
        )


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """At most 20 lines, then how many more there are."""
    more = (f"and {len(lines) - SHOWN} more",) if len(lines) > SHOWN else ()
    return (*lines[:SHOWN], *more)


def _check_abi3(libraries: Sequence[ReadLibrary], tags: Sequence[Tag]) -> tuple[int, list[Problem]]:
    """How many libraries are called abi3, and which of them are not.

    In a wheel for every CPython an extension without a Python of its own in its name is loaded
    by all of them too, so it is held to the same.
    """
    every = bool(tags) and all(tag.abi == "abi3" for tag in tags)
    floors = [int(m[1]) for tag in tags if (m := _CPYTHON.fullmatch(tag.interpreter))]
    floor = (3, min(floors)) if floors else None
    problems = []
    count = 0
    for library in libraries:
        base = PurePosixPath(library.name).name
        named = ".abi3." in base
        if not named and not (every and library.elf.kind == "extension" and base.count(".") == 1):
            continue
        count += 1
        verdict = library.python
        if verdict.abi is PythonAbi.FULL:
            problems.append(
                Problem(
                    rule="abi3-true",
                    subject=library.name,
                    what=f"{library.name} uses more of Python than the limited API",
                    evidence=shortened(verdict.outside),
                    next_step="Build it with Py_LIMITED_API, or tag the wheel for one Python.",
                )
            )
        elif verdict.minimum is not None and (floor is None or verdict.minimum > floor):
            needs = ".".join(map(str, verdict.minimum))
            promised = f"{floor[0]}.{floor[1]}" if floor else "a Python that its tags do not say"
            problems.append(
                Problem(
                    rule="abi3-true",
                    subject=library.name,
                    what=f"{library.name} needs Python {needs}, the wheel promises {promised}",
                    evidence=shortened(verdict.because),
                    next_step=f"Tag the wheel cp{needs.replace('.', '')}-abi3, or build it with "
                    "Py_LIMITED_API set to what the tag says.",
                    unknown=floor is None,
                )
            )
    return count, problems


def check_vendored(
    members: Iterable[str], libraries: Sequence[ReadLibrary], elsewhere: Sequence[str]
) -> Checked:
    """``no-vendored``: by file name, whatever the file is, and by SONAME."""
    found = {
        name: "its file name" for name in members if _vendored(PurePosixPath(name).name, elsewhere)
    }
    for library in libraries:
        if library.elf.soname and _vendored(library.elf.soname, elsewhere):
            found.setdefault(library.name, f"its SONAME {library.elf.soname}")
    return Checked(
        looked={"no-vendored": f"{len(libraries)} libraries"},
        problems=tuple(
            Problem(
                rule="no-vendored",
                subject=name,
                what=f"{name} is a library that torch, CUDA or the driver brings",
                evidence=(f"by {why}",),
                next_step="Leave it to the package that brings it: link, never copy.",
            )
            for name, why in sorted(found.items())
        ),
    )


def _vendored(name: str, elsewhere: Sequence[str]) -> bool:
    # A static copy is one too, and file systems that take case lightly load it by any spelling.
    spelled = f"{name.removesuffix('.a')}.so" if name.endswith(".a") else name
    patterns = [pattern.lower() for pattern in elsewhere]
    return ".so" in spelled and comes_from_elsewhere(spelled.lower(), patterns)

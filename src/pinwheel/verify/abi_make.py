"""Makes a snapshot of a torch build from what its wheels hold."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from pinwheel.errors import SnapshotError
from pinwheel.inspect.elf import Elf
from pinwheel.verify.abi_mangling import UnreadableError, entity
from pinwheel.verify.snapshot import Library, Loaded, Provider, Snapshot, Wheel

#: The library that torch/__init__.py loads with RTLD_GLOBAL before anything else.
GLOBAL_DEPS = "libtorch_global_deps.so"
_LOADER = "_load_global_deps"
_PATTERN = re.compile(r"lib[A-Za-z0-9_-]+\.so[].*[0-9-]*")
#: The library whose names show the ABI flag: small, and full of functions that take strings.
FLAG_LIBRARY = "libc10.so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One library as it was read.

    Attributes:
        wheel: place of its wheel in the list, torch's is 0.
        path: within the wheel, which is its path from site-packages on.
        soname, needed, versions: as in a snapshot.
        exports: name, symbol version, and whether unversioned references bind to it.
        cubins: compute capability -> number of cubins; None when not read.
        ptx: compute capability -> number of PTX texts; None when not read.
    """

    wheel: int
    path: str
    soname: str
    needed: tuple[str, ...]
    versions: tuple[str, ...]
    exports: tuple[tuple[str, str, bool], ...]
    cubins: Mapping[str, int] | None = None
    ptx: Mapping[str, int] | None = None


def found(
    elf: Elf,
    wheel: int,
    cubins: Mapping[str, int] | None = None,
    ptx: Mapping[str, int] | None = None,
) -> Found:
    """The part of an ELF file that a snapshot keeps."""
    return Found(
        wheel=wheel,
        path=elf.name,
        soname=elf.soname or PurePosixPath(elf.name).name,
        needed=elf.needed,
        versions=elf.versions_defined,
        exports=tuple((s.name, s.version, s.default) for s in elf.exported if s.name),
        cubins=cubins,
        ptx=ptx,
    )


def preloads(source: str) -> tuple[str, ...]:
    """File name patterns of the CUDA libraries that ``import torch`` loads by itself, sorted.

    Read from torch/__init__.py without running it: what its function ``_load_global_deps`` gives
    to its preloading functions, or what these list. What it does only after an error (``except``)
    is left out: that serves installations whose layout is another one.

    Raises:
        SnapshotError: no such function; torch loads its libraries in some other way now.
    """
    functions = {
        node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }
    if _LOADER not in functions:
        raise SnapshotError(
            "how this torch loads its libraries is not known",
            evidence=(f"torch/__init__.py has no function {_LOADER}",),
            next_step="Read it, and teach pinwheel.verify.abi_make.preloads the new way.",
        )
    return tuple(sorted(set(_preloaded(functions.pop(_LOADER), functions))))


def _preloaded(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    if isinstance(node, ast.ExceptHandler):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and "preload" in node.func.id:
        yield from _patterns(node)
        if node.func.id in functions:
            yield from _patterns(functions[node.func.id])
    for child in ast.iter_child_nodes(node):
        yield from _preloaded(child, functions)


def _patterns(node: ast.AST) -> Iterator[str]:
    documentation = {id(child.value) for child in ast.walk(node) if isinstance(child, ast.Expr)}
    for child in ast.walk(node):
        text = child.value if isinstance(child, ast.Constant) else None
        if id(child) not in documentation and isinstance(text, str) and _PATTERN.fullmatch(text):
            yield text


def loading(
    libraries: Sequence[Found], entry: Iterable[str], patterns: Iterable[str]
) -> dict[str, Loaded]:
    """What ``import torch`` does with each library, by path.

    Args:
        libraries: of all wheels.
        entry: NEEDED of ``torch._C``.
        patterns: as :func:`preloads` gives them.
    """
    by_soname = {library.soname: library for library in libraries}
    by_file = {PurePosixPath(library.path).name: library for library in libraries}

    def closure(roots: Iterable[str]) -> set[str]:
        todo, seen = list(roots), set()
        while todo:
            library = by_soname.get(name := todo.pop()) or by_file.get(name)
            if library is not None and library.path not in seen:
                seen.add(library.path)
                todo += library.needed
        return seen

    everywhere = closure([GLOBAL_DEPS])
    preloaded = [name for name in by_file if any(fnmatchcase(name, p) for p in patterns)]
    locally = closure([*entry, *preloaded])
    return {
        library.path: Loaded.GLOBAL
        if library.path in everywhere
        else Loaded.LOCAL
        if library.path in locally
        else Loaded.NO
        for library in libraries
    }


def cxx11_abi(names: Iterable[str]) -> bool:
    """The ABI flag that mangled names of libc10 show.

    Raises:
        SnapshotError: they show none, or both.
    """
    flags = set()
    for name in names:
        try:
            found = entity(name)
        except UnreadableError:
            continue
        if found.path[:1] == ("c10",) and found.cxx11 != found.old:
            flags.add(found.cxx11)
    if len(flags) != 1:
        raise SnapshotError(
            f"the names of {FLAG_LIBRARY} show {'both ABI flags' if flags else 'no ABI flag'}",
            next_step="Look at them: nothing can be said of an extension's flag without it.",
        )
    return flags.pop()


def make(
    build: str,
    wheels: Sequence[Wheel],
    libraries: Sequence[Found],
    *,
    entry: Iterable[str],
    patterns: Iterable[str],
) -> Snapshot:
    """Put a snapshot together.

    Args:
        build: ``2.3.0+cu121``.
        wheels: torch's first.
        libraries: every library of them, in any order.
        entry: NEEDED of ``torch._C``.
        patterns: as :func:`preloads` gives them.

    Raises:
        SnapshotError: the ABI flag cannot be told.
    """
    ordered = sorted(libraries, key=lambda library: library.path)
    loaded = loading(ordered, entry, patterns)
    providers: dict[str, list[Provider]] = defaultdict(list)
    for place, library in enumerate(ordered):
        for name, version, default in library.exports:
            providers[name].append(Provider(place, version, default or not version))
    groups: dict[tuple[Provider, ...], list[str]] = defaultdict(list)
    for name, of in providers.items():
        groups[tuple(sorted(set(of)))].append(name)
    flag = [x for library in ordered if library.soname == FLAG_LIBRARY for x in library.exports]
    return Snapshot(
        build=build,
        cxx11_abi=cxx11_abi(name for name, _, _ in flag),
        wheels=tuple(wheels),
        libraries=tuple(
            Library(
                path=library.path,
                wheel=library.wheel,
                soname=library.soname,
                needed=library.needed,
                versions=library.versions,
                loaded=loaded[library.path],
                cubins=library.cubins,
                ptx=library.ptx,
            )
            for library in ordered
        ),
        groups={of: tuple(sorted(names)) for of, names in groups.items()},
    )

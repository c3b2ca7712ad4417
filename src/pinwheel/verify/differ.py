"""What differs between two wheels: files, extensions, operators, kernels, requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinwheel.console import Console
from pinwheel.files import sha256_file
from pinwheel.inspect.compared import Kind, kind_of
from pinwheel.inspect.fatbin import EntryKind
from pinwheel.inspect.parity import Change, Difference, compare_wheels
from pinwheel.inspect.wheel import WheelReader, open_wheel
from pinwheel.verify.library import ReadLibrary, read_libraries

# nvcc names what is local to a source by hashes of its absolute path and of its contents
# (_GLOBAL__N__<8 digits>_<length>_<file>_cu_<8 digits>, _INTERNAL_<8 digits>_...), and CUB names
# its namespace by the capabilities it was compiled for.
_HASHES = re.compile(
    r"(?<=_GLOBAL__N__)[0-9a-f]{8}|(?<=_INTERNAL_)[0-9a-f]{8}|(?<=_cu_)[0-9a-f]{8}"
)
_CUB = re.compile(r"[0-9]+((?:CUB|THRUST)_)[0-9_]+NS")
_CODE = (EntryKind.CUBIN, EntryKind.PTX)
REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class KernelDifference:
    """Kernels of one library and one target that only one of the wheels has.

    Attributes:
        library: path within both wheels.
        target: ``sm_90a`` or ``ptx sm_90``.
        images: number of cubins or PTX texts in the first and in the second.
        only_first: kernels (mangled) that the second lacks, sorted.
        only_second: the other way round.
    """

    library: str
    target: str
    images: tuple[int, int]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "library": self.library,
            "target": self.target,
            "images": list(self.images),
            "only-first": list(self.only_first),
            "only-second": list(self.only_second),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two wheels, the second seen from the first.

    Attributes:
        first, second: file names.
        sha256: of the two files.
        differences: of files, extensions, operators and fields of METADATA and WHEEL; ``added``
            is what only the second has.
        kernels: by library and target.
    """

    first: str
    second: str
    sha256: tuple[str, str]
    differences: tuple[Difference, ...]
    kernels: tuple[KernelDifference, ...]

    @property
    def equal(self) -> bool:
        """Nothing differs."""
        return not self.differences and not self.kernels

    def summary(self) -> str:
        """One line."""
        if self.sha256[0] == self.sha256[1]:
            return f"{self.first} and {self.second} are the same bytes"
        if self.equal:
            return f"{self.first} and {self.second} hold the same"
        counts: dict[str, int] = {}
        for difference in self.differences:
            kind = difference.kind.value
            counts[kind] = counts.get(kind, 0) + 1
        if self.kernels:
            counts["kernels of a target"] = len(self.kernels)
        said = ", ".join(f"{kind}: {count}" for kind, count in counts.items())
        return f"{self.first} and {self.second} differ; {said}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "report-version": REPORT_VERSION,
            "first": {"wheel": self.first, "sha256": self.sha256[0]},
            "second": {"wheel": self.second, "sha256": self.sha256[1]},
            "equal": self.equal,
            "summary": self.summary(),
            "differences": [
                {"kind": d.kind.value, "path": d.path, "change": d.change.value}
                for d in self.differences
            ],
            "kernels": [k.as_dict() for k in self.kernels],
        }


def differ(first: Path, second: Path, scratch: Path, console: Console) -> Comparison:
    """Compare two wheels, of anyone's, by reading them.

    Raises:
        ArtifactError, WheelError: one of them cannot be read.
        DiskFullError, NotWritableError: there is no room to unpack their libraries.
    """
    mine, theirs = (_read(path, scratch, console) for path in (first, second))
    parity = compare_wheels(second, first, absent_ok={}, patched=())
    return Comparison(
        first=first.name,
        second=second.name,
        sha256=(sha256_file(first), sha256_file(second)),
        differences=tuple(sorted([*parity.differences, *_statements(mine, theirs)])),
        kernels=tuple(sorted(_kernels(mine, theirs))),
    )


@dataclass(frozen=True, slots=True)
class _Contents:
    """What one wheel has beyond what parity compares.

    Attributes:
        fields: version and platform tags.
        extensions: path -> sha256.
        code: library -> target -> kernels.
        images: library -> target -> images.
    """

    fields: frozenset[str]
    extensions: Mapping[str, str]
    code: Mapping[str, Mapping[str, frozenset[str]]]
    images: Mapping[str, Mapping[str, int]]


def _read(path: Path, scratch: Path, console: Console) -> _Contents:
    with (
        open_wheel(path, scratch) as reader,
        console.progress(0, "libraries", f"reading {path.name}"),
    ):
        return _contents(reader)


def _contents(reader: WheelReader) -> _Contents:
    code: dict[str, Mapping[str, frozenset[str]]] = {}
    images: dict[str, Mapping[str, int]] = {}
    for library in read_libraries(reader, kernels=True, paths=()):
        code[library.name], images[library.name] = _code(library), library.counts
    platforms = {tag.platform for tag in reader.file_name.tags}
    return _Contents(
        frozenset(
            [f"Version: {reader.metadata.version}", *(f"Platform: {tag}" for tag in platforms)]
        ),
        {n: digest for n, digest in reader.sha256.items() if kind_of(n) is Kind.EXTENSION},
        code,
        images,
    )


def _code(library: ReadLibrary) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for entry in library.entries:
        if entry.kind in _CODE:
            found.setdefault(entry.target, set()).update(map(comparable, entry.kernels or ()))
    return {target: frozenset(names) for target, names in found.items()}


def comparable(kernel: str) -> str:
    """A kernel's name without what belongs to one build alone."""
    return _CUB.sub(r"\1NS", _HASHES.sub("0" * 8, kernel))


def _statements(first: _Contents, second: _Contents) -> Iterator[Difference]:
    for field in first.fields - second.fields:
        yield Difference(Kind.METADATA, field, Change.MISSING)
    for field in second.fields - first.fields:
        yield Difference(Kind.METADATA, field, Change.ADDED)
    for path in first.extensions.keys() & second.extensions.keys():
        if first.extensions[path] != second.extensions[path]:
            yield Difference(Kind.EXTENSION, path, Change.DIFFERENT)


def _kernels(first: _Contents, second: _Contents) -> Iterator[KernelDifference]:
    for library in first.code.keys() & second.code.keys():
        mine, theirs = first.code[library], second.code[library]
        counts = first.images[library], second.images[library]
        for target in mine.keys() | theirs.keys():
            here, there = mine.get(target, frozenset()), theirs.get(target, frozenset())
            images = (counts[0].get(target, 0), counts[1].get(target, 0))
            if here != there or images[0] != images[1]:
                yield KernelDifference(
                    library=library,
                    target=target,
                    images=images,
                    only_first=tuple(sorted(here - there)),
                    only_second=tuple(sorted(there - here)),
                )

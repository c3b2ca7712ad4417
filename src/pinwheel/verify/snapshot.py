"""Snapshots: what one torch build and its CUDA wheels export, kept so that torch is not needed.

One file per build, ``data/torch/<build>.zst``; ``scripts/torch_snapshots.py`` makes it from the
wheels and ``docs/abi.md`` describes the format.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

import zstandard
from packaging.version import InvalidVersion, Version

from pinwheel.errors import SnapshotError

FORMAT = "pinwheel-torch-snapshot 1"
SUFFIX = ".zst"
MACHINE = "EM_X86_64"  # of every snapshot: the wheels are those for Linux x86_64
LEVEL = 19  # of zstd: 2.3.0+cu121 takes 15% less than with level 10, and is read as quickly

# Bounds on what is read. The largest build so far: 1.2 MB packed, 30 MB of text, 300,000 names.
MAX_PACKED = 16 << 20  # bytes
MAX_TEXT = 256 << 20  # bytes
MAX_NAMES = 4_000_000


class Loaded(StrEnum):
    """What ``import torch`` does with a library."""

    GLOBAL = "global"  # loaded, and its symbols serve every library that is loaded later
    LOCAL = "local"  # loaded; found by its SONAME, its symbols serve those that NEED it
    NO = "no"  # only there


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel the snapshot was read from.

    Attributes:
        project: normalized name.
        version: exact.
        filename: as the index has it.
        sha256: of the file.
        size: bytes.
        pinned: torch's METADATA leads to exactly this version; otherwise it leaves a choice, and
            the oldest that fits was taken.
    """

    project: str
    version: str
    filename: str
    sha256: str
    size: int
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library of one of the wheels.

    Attributes:
        path: within the wheel, which is its path from site-packages on.
        wheel: place in :attr:`Snapshot.wheels`; 0 is torch.
        soname: DT_SONAME, or the file name where there is none: what NEEDED is compared with.
        needed: DT_NEEDED, in file order.
        versions: symbol versions it defines, sorted.
        loaded: what ``import torch`` does with it.
        cubins: compute capability (``8.0``, ``9.0a``) -> number of cubins; None when not read.
        ptx: compute capability -> number of PTX texts; None when not read.
    """

    path: str
    wheel: int
    soname: str
    needed: tuple[str, ...]
    versions: tuple[str, ...]
    loaded: Loaded
    cubins: Mapping[str, int] | None = None
    ptx: Mapping[str, int] | None = None

    @property
    def torch(self) -> bool:
        """It is one of torch's own, not of a CUDA wheel."""
        return self.wheel == 0


@dataclass(frozen=True, slots=True, order=True)
class Provider:
    """A library that exports a name.

    Attributes:
        library: place in :attr:`Snapshot.libraries`.
        version: symbol version, empty without.
        default: a reference without version binds to it too.
    """

    library: int
    version: str = ""
    default: bool = True

    def __str__(self) -> str:
        at = "@@" if self.default else "@"
        return f"{self.library}{at}{self.version}" if self.version else str(self.library)

    @classmethod
    def parse(cls, text: str) -> Provider:
        """The inverse of ``str``."""
        number, at, version = text.partition("@")
        if bool(at) != bool(version.removeprefix("@")) or not number.isdecimal():
            raise ValueError(f"no provider: {text!r}")
        return cls(int(number), version.removeprefix("@"), not at or version.startswith("@"))


#: Libraries that export the same names, as ``Snapshot.groups`` has them.
Providers = tuple[Provider, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """What one torch build offers an extension.

    Attributes:
        build: ``2.3.0+cu121``, as ``torch.__version__`` says.
        cxx11_abi: the ABI flag its symbols show.
        wheels: what it was read from, torch first.
        libraries: of all of them, sorted by path.
        groups: libraries that share names, and these names, sorted.
    """

    build: str
    cxx11_abi: bool
    wheels: tuple[Wheel, ...]
    libraries: tuple[Library, ...]
    groups: Mapping[Providers, tuple[str, ...]] = field(repr=False)

    @property
    def version(self) -> Version:
        """For ordering builds."""
        return Version(self.build)

    @property
    def names(self) -> Iterator[str]:
        """Every exported name, each once."""
        for names in self.groups.values():
            yield from names

    @cached_property
    def by_name(self) -> Mapping[str, int]:
        """What NEEDED may say -> place of the library: its SONAME, or else its file name.

        Where two have one name, that which ``import torch`` loads goes first.
        """
        order = (Loaded.NO, Loaded.LOCAL, Loaded.GLOBAL)
        ranked = sorted(enumerate(self.libraries), key=lambda x: order.index(x[1].loaded))
        files = {PurePosixPath(library.path).name: place for place, library in ranked}
        return files | {library.soname: place for place, library in ranked}

    def find(self, wanted: Collection[str]) -> dict[str, Providers]:
        """Those of the ``wanted`` names that some library exports, with the libraries."""
        wanted = wanted if isinstance(wanted, (set, frozenset)) else set(wanted)
        return {
            name: providers
            for providers, names in self.groups.items()
            for name in wanted.intersection(names)
        }

    @cached_property
    def torch_names(self) -> Sequence[str]:
        """Every name that one of torch's own libraries exports, sorted."""
        found: list[str] = []
        for providers, of in self.groups.items():
            if any(self.libraries[p.library].torch for p in providers):
                found += of
        return sorted(found)

    def beginning(self, head: str) -> Iterator[str]:
        """Names of :attr:`torch_names` that begin so."""
        of = self.torch_names
        for place in range(bisect_left(of, head), len(of)):
            if not of[place].startswith(head):
                return
            yield of[place]


def pack(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot; the same for the same snapshot."""
    groups = sorted(snapshot.groups.items())
    header = {
        "build": snapshot.build,
        "cxx11-abi": snapshot.cxx11_abi,
        "wheels": [
            {
                "project": w.project,
                "version": w.version,
                "filename": w.filename,
                "sha256": w.sha256,
                "size": w.size,
                "pinned": w.pinned,
            }
            for w in snapshot.wheels
        ],
        "libraries": [_library_as_dict(library) for library in snapshot.libraries],
        "groups": [[len(names), list(map(str, providers))] for providers, names in groups],
    }
    lines = [FORMAT, json.dumps(header, sort_keys=True, separators=(",", ":"))]
    for _, names in groups:
        lines += names
    return compress("\n".join(lines) + "\n")


def compress(text: str) -> bytes:
    """``text`` as one zstd frame with checksum and size; the same bytes for the same text."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, write_checksum=True, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(text.encode())


def _library_as_dict(library: Library) -> dict[str, Any]:
    data: dict[str, Any] = {
        "path": library.path,
        "wheel": library.wheel,
        "soname": library.soname,
        "needed": list(library.needed),
        "versions": list(library.versions),
        "loaded": library.loaded.value,
    }
    if library.cubins is not None:
        data |= {"cubins": dict(library.cubins), "ptx": dict(library.ptx or {})}
    return data


def text_of(packed: bytes, where: str, kind: str = FORMAT) -> str:
    """The text inside, bounded.

    Args:
        packed: the file's bytes.
        where: what messages call it.
        kind: its first line.

    Raises:
        SnapshotError: too large, damaged, or of another format.
    """
    try:
        stated = zstandard.get_frame_parameters(packed).content_size
        if len(packed) > MAX_PACKED or not 0 < stated <= MAX_TEXT:
            raise ValueError(f"{len(packed)} bytes packed, {stated} unpacked")
        text = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_TEXT).decode()
    except (zstandard.ZstdError, ValueError) as error:
        raise damaged(where, str(error)) from error
    if not text.startswith(kind + "\n"):
        raise damaged(where, f"its first line is not {kind!r}")
    return text


def unpack(packed: bytes, where: str) -> Snapshot:
    """Read a snapshot.

    Args:
        packed: the file's bytes.
        where: what messages call it.

    Raises:
        SnapshotError: as in :func:`text_of`.
    """
    lines = text_of(packed, where).split("\n")
    try:
        return _parse(lines)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise damaged(where, f"{type(error).__name__}: {error}") from error


def _parse(lines: list[str]) -> Snapshot:
    header = json.loads(lines[1])
    wheels = tuple(map(_wheel, header["wheels"]))
    libraries = tuple(_library(data, len(wheels)) for data in header["libraries"])
    if not wheels or not isinstance(header["cxx11-abi"], bool):
        raise ValueError("no wheels, or no ABI flag")
    Version(header["build"])
    groups: dict[Providers, tuple[str, ...]] = {}
    at = 2
    for count, texts in header["groups"]:
        providers = tuple(Provider.parse(text) for text in texts)
        if not 0 < count <= MAX_NAMES or max(p.library for p in providers) >= len(libraries):
            raise ValueError(f"no group: {count} names of {texts}")
        groups[providers] = tuple(lines[at : at + count])
        at += count
    if at != len(lines) - 1 or lines[-1]:
        raise ValueError(f"{len(lines) - 3} names, {at - 2} stated")
    return Snapshot(
        build=header["build"],
        cxx11_abi=header["cxx11-abi"],
        wheels=wheels,
        libraries=libraries,
        groups=groups,
    )


_WHEEL = {
    "project": str, "version": str, "filename": str, "sha256": str, "size": int, "pinned": bool,
}  # fmt: skip


def _wheel(data: Mapping[str, Any]) -> Wheel:
    if {key: type(value) for key, value in data.items()} != _WHEEL:
        raise ValueError(f"no wheel: {data}")
    return Wheel(**data)


def _library(data: Mapping[str, Any], wheels: int) -> Library:
    if not 0 <= data["wheel"] < wheels:
        raise ValueError(f"{data['path']} is in no wheel")
    return Library(
        path=_text(data["path"]),
        wheel=int(data["wheel"]),
        soname=_text(data["soname"]),
        needed=tuple(map(_text, data["needed"])),
        versions=tuple(map(_text, data["versions"])),
        loaded=Loaded(data["loaded"]),
        cubins=_counts(data.get("cubins")),
        ptx=_counts(data.get("ptx")),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"no text: {value!r}")
    return value


def _counts(value: Mapping[str, int] | None) -> Mapping[str, int] | None:
    return None if value is None else {_text(k): int(v) for k, v in value.items()}


def damaged(where: str, why: str) -> SnapshotError:
    """The error for a data file that cannot be read."""
    return SnapshotError(
        f"the snapshot {where} cannot be read",
        evidence=(why[:300],),
        next_step="Install pinwheel again, or make it anew with scripts/torch_snapshots.py.",
    )


@cache
def builds() -> tuple[str, ...]:
    """Torch builds with a snapshot, oldest first."""
    found = []
    for entry in resources.files("pinwheel.data").joinpath("torch").iterdir():
        name = entry.name.removesuffix(SUFFIX)
        try:
            found.append((Version(name), name)) if name != entry.name else None
        except InvalidVersion:
            continue
    return tuple(name for _, name in sorted(found))


def load(build: str) -> Snapshot:
    """The snapshot of one build, ``2.3.0+cu121``.

    Raises:
        SnapshotError: there is none, or it is damaged.
    """
    if build not in builds():
        raise SnapshotError(
            f"torch build {build} is not known",
            evidence=(f"known: {', '.join(builds())}",),
            next_step="Name one of these, or make its snapshot with scripts/torch_snapshots.py.",
        )
    path = resources.files("pinwheel.data").joinpath("torch", build + SUFFIX)
    snapshot = unpack(path.read_bytes(), build + SUFFIX)
    if snapshot.build != build:
        raise damaged(build + SUFFIX, f"it is of {snapshot.build}")
    return snapshot


def load_all(names: Iterable[str] | None = None) -> Iterator[Snapshot]:
    """Snapshots one after the other, all by default: each takes about 50 MB of memory."""
    for build in builds() if names is None else names:
        yield load(build)

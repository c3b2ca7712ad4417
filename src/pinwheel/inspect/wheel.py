"""Opens any wheel, trusts nothing in it, and makes its libraries readable piece by piece."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from tempfile import mkdtemp

from packaging.utils import parse_wheel_filename

from pinwheel.files import make_directory, remove_tree, writing
from pinwheel.inspect.consistency import (
    FileName,
    Problem,
    WheelRule,
    limited,
    record_problems,
    statements,
    twins,
)
from pinwheel.inspect.dist_info import (
    HASHES,
    MAX_METADATA,
    MAX_RECORD,
    CoreMetadata,
    EntryPoint,
    RecordRow,
    WheelInfo,
    parse_entry_points,
    parse_metadata,
    parse_record,
    parse_wheel,
)
from pinwheel.inspect.elf import is_elf
from pinwheel.inspect.region import Region, open_region, unreadable
from pinwheel.inspect.zip_layout import Member, read_contents, read_layout

__all__ = ["FileName", "Problem", "WheelReader", "WheelRule", "open_wheel"]

MAX_FILE_NAME = 255  # characters, as file systems have it


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelReader:
    """A wheel that is open; its contents were gone through once.

    Attributes:
        path: the wheel.
        file_name: what its name says.
        dist_info: name of its dist-info directory.
        metadata, wheel_info, record, entry_points, top_level: what is in there.
        members: its files, in the order they lie.
        sha256: path -> sha256 of each, hexadecimal.
        libraries: paths of those that are ELF files, whatever their names, sorted.
        problems: what it states that is not so.
    """

    path: Path
    file_name: FileName
    dist_info: str
    metadata: CoreMetadata
    wheel_info: WheelInfo
    record: tuple[RecordRow, ...]
    entry_points: tuple[EntryPoint, ...]
    top_level: tuple[str, ...]
    members: tuple[Member, ...]
    sha256: Mapping[str, str]
    libraries: tuple[str, ...]
    problems: tuple[Problem, ...]
    _zip: Region = field(repr=False)
    _regions: Mapping[str, Region] = field(repr=False)

    def library(self, name: str) -> Region:
        """One of :attr:`libraries`, to be read within the ``with`` block of :func:`open_wheel`."""
        return self._regions[name]

    def read(self, name: str, *, most: int = MAX_METADATA) -> bytes:
        """The contents of a member.

        Raises:
            KeyError: there is none of that name.
            ArtifactError: it has more than ``most`` bytes.
        """
        return _read(self._zip, {m.name: m for m in self.members}[name], most)


@contextmanager
def open_wheel(path: Path, scratch: Path) -> Iterator[WheelReader]:
    """Open a wheel and go through all of it once.

    Compressed libraries are unpacked into a directory of their own below ``scratch``, which is
    gone afterwards; nothing else is written, and no more than 1 MiB of one is in memory.

    Args:
        path: a wheel, from anywhere.
        scratch: a directory with room for the wheel's libraries; created when missing.

    Raises:
        ArtifactError: it cannot be read, or not in one way only.
        DiskFullError, NotWritableError: ``scratch`` cannot take its libraries.
    """
    with ExitStack() as stack:
        whole = stack.enter_context(open_region(path))
        file_name = _file_name(path.name)
        members = read_layout(path, whole)
        by_name = {m.name: m for m in members}
        info = _dist_info(path.name, by_name)

        def part(name: str, most: int = MAX_METADATA) -> tuple[bytes, str]:
            member = by_name.get(f"{info}/{name}")
            data = b"" if member is None else _read(whole, member, most)
            return data, f"{info}/{name} of {path.name}"

        metadata = parse_metadata(*part("METADATA"))
        wheel_info = parse_wheel(*part("WHEEL"))
        record = parse_record(*part("RECORD", MAX_RECORD))
        contents = _Contents(whole, stack.enter_context(_directory(scratch)), stack, record)
        for member in members:
            contents.take(member)
        problems = [
            *statements(file_name, info, metadata, wheel_info),
            *twins(by_name),
            *record_problems(record, info, {m.name: m.size for m in members}, contents.digests),
        ]
        yield WheelReader(
            path=path,
            file_name=file_name,
            dist_info=info,
            metadata=metadata,
            wheel_info=wheel_info,
            record=record,
            entry_points=parse_entry_points(*part("entry_points.txt")),
            top_level=tuple(part("top_level.txt")[0].decode("utf-8", "replace").split()),
            members=members,
            sha256={name: d["sha256"].hex() for name, d in contents.digests.items()},
            libraries=tuple(sorted(contents.regions)),
            problems=tuple(limited(problems)),
            _zip=whole,
            _regions=contents.regions,
        )


class _Contents:
    """Goes through members: digests of all, a region for each ELF file."""

    def __init__(
        self, whole: Region, directory: Path, stack: ExitStack, record: Sequence[RecordRow]
    ) -> None:
        self.digests: dict[str, dict[str, bytes]] = {}
        self.regions: dict[str, Region] = {}
        self._whole = whole
        self._directory = directory
        self._stack = stack
        self._wanted: dict[str, set[str]] = {}
        for row in record:
            if row.algorithm in HASHES:
                self._wanted.setdefault(row.path, set()).add(row.algorithm)

    def take(self, member: Member) -> None:
        """Read a member to its end; errors as in :func:`open_wheel`."""
        algorithms = {"sha256"} | self._wanted.get(member.name, set())
        hashes = {name: hashlib.new(name) for name in algorithms}
        path = self._directory / str(len(self.digests))
        with ExitStack() as files:
            file: FileIO | None = None
            for index, chunk in enumerate(read_contents(self._whole, member)):
                for digest in hashes.values():
                    digest.update(chunk)
                if index == 0 and is_elf(chunk):
                    if member.stored:
                        self.regions[member.name] = self._region(member)
                    else:
                        file = files.enter_context(_created(path))
                if file is not None:
                    with writing(path):
                        _write(file, chunk)
        if file is not None:
            opened = self._stack.enter_context(open_region(path, member.name))
            self.regions[member.name] = opened
        self.digests[member.name] = {name: digest.digest() for name, digest in hashes.items()}

    def _region(self, member: Member) -> Region:
        return self._whole.part(member.offset, member.size, member.name).named(member.name)


@contextmanager
def _directory(scratch: Path) -> Iterator[Path]:
    make_directory(scratch)
    with writing(scratch):
        directory = Path(mkdtemp(prefix="inspect-", dir=scratch))
    try:
        yield directory
    finally:
        remove_tree(directory)


@contextmanager
def _created(path: Path) -> Iterator[FileIO]:
    with writing(path):
        file = FileIO(path, "xb")
    with file:
        yield file


def _write(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:  # a raw file may take a part
        view = view[file.write(view) :]


def _file_name(name: str) -> FileName:
    if len(name) > MAX_FILE_NAME:
        raise unreadable(name, "its name is too long for a wheel's")
    try:
        project, version, build, tags = parse_wheel_filename(name)
    except ValueError as error:  # packaging has a kind for each part of a name
        raise unreadable(name, "its name is none of a wheel", str(error)) from error
    return FileName(
        name=str(project),
        version=version,
        build="".join(str(part) for part in build),
        tags=tags,
    )


def _dist_info(wheel: str, members: Mapping[str, Member]) -> str:
    tops = {name.split("/")[0] for name in members if "/" in name}
    found = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(found) != 1:
        raise unreadable(wheel, "it must hold one dist-info directory", *found[:10])
    for part in ("METADATA", "WHEEL", "RECORD"):
        if f"{found[0]}/{part}" not in members:
            raise unreadable(wheel, f"it has no {found[0]}/{part}")
    return found[0]


def _read(whole: Region, member: Member, most: int) -> bytes:
    if member.size > most:
        raise unreadable(whole.name, f"{member.name} has {member.size} bytes, more than {most}")
    return b"".join(read_contents(whole, member))

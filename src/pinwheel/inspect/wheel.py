"""Opens any wheel, trusts nothing in it, and makes its libraries readable piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp

from packaging.utils import parse_wheel_filename

from pinwheel.errors import PinwheelError
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
from pinwheel.inspect.contents import Contents
from pinwheel.inspect.dist_info import (
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
from pinwheel.inspect.region import Region, open_region, unreadable
from pinwheel.inspect.zip_layout import Member, read_contents, read_layout

__all__ = ["FileName", "Problem", "WheelReader", "WheelRule", "open_wheel"]

MAX_FILE_NAME = 255  # characters, as file systems have it


@dataclass(frozen=True, kw_only=True, eq=False)
class WheelReader:
    """A wheel that is open, and whose contents are being gone through, each file once.

    What hangs on all of its contents waits for them: :attr:`sha256`, :attr:`libraries` and
    :attr:`problems` raise what :func:`open_wheel` does.

    Attributes:
        path: the wheel.
        file_name: what its name says.
        dist_info: name of its dist-info directory.
        metadata, wheel_info, record, entry_points, top_level: what is in there.
        members: its files, in the order they lie.
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
    _zip: Region = field(repr=False)
    _contents: Contents = field(repr=False)

    @cached_property
    def sha256(self) -> Mapping[str, str]:
        """Path -> sha256 of each file, hexadecimal."""
        return {name: digests["sha256"].hex() for name, digests in self._contents.digests.items()}

    @property
    def libraries(self) -> tuple[str, ...]:
        """Paths of the files that are ELF files, whatever their names, sorted."""
        return self._contents.libraries

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """What the wheel states that is not so."""
        sizes = {m.name: m.size for m in self.members}
        problems = [
            *statements(self.file_name, self.dist_info, self.metadata, self.wheel_info),
            *twins(sizes),
            *record_problems(self.record, self.dist_info, sizes, self._contents.digests),
        ]
        return tuple(limited(problems))

    def ready(self) -> Iterator[str]:
        """:attr:`libraries`, each as soon as it can be read, in whatever order that is.

        Raises:
            ArtifactError, DiskFullError, NotWritableError: as :func:`open_wheel`.
        """
        return self._contents.ready()

    def library(self, name: str) -> Region:
        """One of :attr:`libraries`, to be read within the ``with`` block of :func:`open_wheel`."""
        return self._contents.library(name)

    def read(self, name: str, *, most: int = MAX_METADATA) -> bytes:
        """The contents of a member.

        Raises:
            KeyError: there is none of that name.
            ArtifactError: it has more than ``most`` bytes.
        """
        return _read(self._zip, {m.name: m for m in self.members}[name], most)


@contextmanager
def open_wheel(path: Path, scratch: Path) -> Iterator[WheelReader]:
    """Open a wheel and go through all of it once, beside the ``with`` block.

    Whoever leaves the block without an error has a wheel all of which could be read. Compressed
    libraries are unpacked into a directory of their own below ``scratch``, which is gone
    afterwards; nothing else is written, and no more than 1 MiB of one is in memory.

    Args:
        path: a wheel, from anywhere.
        scratch: a directory with room for the wheel's libraries; created when missing.

    Raises:
        ArtifactError: it cannot be read, or not in one way only; at the latest at the block's
            end, and in the place of any other error of ours that the block ends with.
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
        entry_points = parse_entry_points(*part("entry_points.txt"))
        top_level, _ = part("top_level.txt")
        directory = stack.enter_context(_directory(scratch))
        contents = stack.enter_context(Contents(whole, members, directory, record))
        contents.start()
        reader = WheelReader(
            path=path,
            file_name=file_name,
            dist_info=info,
            metadata=metadata,
            wheel_info=wheel_info,
            record=record,
            entry_points=entry_points,
            top_level=tuple(top_level.decode("utf-8", "replace").split()),
            members=members,
            _zip=whole,
            _contents=contents,
        )
        try:
            yield reader
        except PinwheelError:
            contents.finish()  # what is wrong with the wheel itself goes first
            raise
        contents.finish()


@contextmanager
def _directory(scratch: Path) -> Iterator[Path]:
    make_directory(scratch)
    with writing(scratch):
        directory = Path(mkdtemp(prefix="inspect-", dir=scratch))
    try:
        yield directory
    finally:
        remove_tree(directory)


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

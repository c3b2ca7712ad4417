"""Reads .deb files: streams their data member into a directory, as a package manager would.

Nothing of the package runs: no maintainer script, no dpkg, no device node, no owner. Format:
deb(5); the data member may be compressed with xz, zstd, gzip or not at all.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import zstandard
from debian.arfile import ArError, ArFile

from pinwheel.files import CHUNK
from pinwheel.inputs.tarball import Budget, damage_named, members
from pinwheel.inputs.tree import SafeTree

# Debian's list of directories that are links into /usr on a merged system: debian-policy 10.1
# and the usrmerge package.
MERGED = frozenset({"bin", "sbin", "lib", "lib32", "lib64", "libx32"})
_MOST_MEMBERS = 100  # of the ar archive; deb(5) has three
_XZ_MEMORY = 256 << 20  # bytes; xz -9 needs 65 MiB (xz(1)), but a stream may ask for 4 GiB


class _Xz(io.RawIOBase):
    """Reads xz streams, one after the other, in bounded memory, which LZMAFile cannot promise."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._rest = b""
        self._unpacker = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(buffer):
            if self._unpacker.eof and not self._next_stream():
                return 0
            data = self._rest
            if not data and self._unpacker.needs_input and not (data := self._raw.read(CHUNK)):
                raise EOFError("the xz stream is cut off")
            self._rest = b""
            if out := self._unpacker.decompress(data, len(buffer)):
                buffer[: len(out)] = out
                return len(out)
        return 0

    def _next_stream(self) -> bool:
        self._rest = self._unpacker.unused_data.lstrip(b"\0")  # padding between streams
        while not self._rest:
            if not (data := self._raw.read(CHUNK)):
                return False
            self._rest = data.lstrip(b"\0")
        self._unpacker = self._new()
        return True


def _check_headers(path: Path) -> None:
    """Refuse what python-debian would follow for ever, or remember for ever (ar(5)).

    That is a member of negative size, and any number of members.
    """
    count = 0
    with path.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise ArError("not an ar archive")
        while header := file.read(60):
            count += 1
            if count > _MOST_MEMBERS:
                raise ArError(f"more than {_MOST_MEMBERS} members")
            size = header[48:58].strip()
            if len(header) != 60 or header[58:] != b"`\n" or not size.isdigit():
                raise ArError("damaged member header")
            file.seek(int(size) + int(size) % 2, 1)


@contextmanager
def _data(path: Path) -> Iterator[IO[bytes]]:
    """The uncompressed tar stream of a .deb's data member."""
    _check_headers(path)
    try:
        archive = ArFile(path)
    except OSError as error:
        if error.errno is not None:
            raise
        raise ArError(str(error)) from error
    found = [m for m in archive.getmembers() if (m.name or "").startswith("data.tar")]
    if len(found) != 1:
        raise ArError(f"{len(found)} data members instead of one")
    member = found[0]
    raw = cast(IO[bytes], member)
    kind = str(member.name).removeprefix("data.tar")
    stream: IO[bytes]
    try:
        if kind == ".xz":
            stream = cast(IO[bytes], _Xz(raw))
        elif kind == ".gz":
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        elif kind == ".zst":
            reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            stream = cast(IO[bytes], reader)
        elif kind == "":
            stream = raw
        else:
            raise ArError(f"data member compressed as {kind!r}, not xz, zst or gz")
        yield stream
    finally:
        member.close()


def merged_name(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Where a name lies on a system whose /bin, /sbin and /lib* are links into /usr."""
    return ("usr", *parts) if parts and parts[0] in MERGED else parts


def _is_merge_link(info: tarfile.TarInfo, parts: tuple[str, ...]) -> bool:
    return info.issym() and len(parts) == 1 and info.linkname.strip("/") == f"usr/{parts[0]}"


def unpack_deb(
    path: Path,
    dest: Path,
    *,
    keep: Callable[[str], bool] | None = None,
    usr_merge: bool = False,
    max_bytes: int | None = None,
) -> list[str]:
    """Unpack a .deb's files below ``dest``; what is there already is added to or replaced.

    Times and permission bits are the archive's; owners, setuid, setgid and sticky bits are not
    taken over, device nodes and pipes are left out, directories are at least 0755 so that a user
    other than root can finish.

    Args:
        path: the .deb.
        dest: directory that stands for ``/``.
        keep: called with each name (``usr/bin/x``, after ``usr_merge``) that is not a directory;
            False leaves the member out. Directories are then made only where a file needs them.
        usr_merge: write ``bin sbin lib lib32 lib64 libx32`` below ``usr``.
        max_bytes: bound on the sum of file sizes, those left out too, since they are
            decompressed all the same; by default as :class:`~pinwheel.inputs.tarball.Budget` has
            it.

    Returns:
        Names written, directories not among them, in archive order.

    Raises:
        UnpackError: damaged archive, a member that leads out of ``dest``, or more bytes or
            members than allowed.
        DiskFullError, NotWritableError: from the file system.
    """
    tree = SafeTree(dest, path.name, absolute_links=True)
    written: list[str] = []
    at = ""

    def place(name: str) -> str:
        parts = tree.parts(name)
        return "/".join(merged_name(parts) if usr_merge else parts)

    budget = Budget(path, max_bytes)
    with damage_named(path, lambda: at), _data(path) as stream:
        for info, source in members(stream, budget):
            at = info.name
            parts = tree.parts(info.name)
            if not parts:
                continue
            name = "/".join(parts) if _is_merge_link(info, parts) else place(info.name)
            mtime = int(info.mtime)
            if info.isdir():
                if keep is None:
                    tree.directory(name, mode=info.mode, mtime=mtime)
                continue
            if keep is not None and not keep(name):
                continue
            if info.issym():
                tree.symlink(name, info.linkname, mtime=mtime)
            elif info.islnk():
                tree.hardlink(name, place(info.linkname))
            elif info.isreg():
                if source is None:
                    tree.refuse(name, "has no data")
                tree.file(name, source, size=info.size, mode=info.mode, mtime=mtime)
            else:
                continue
            written.append(name)
    tree.finish()
    return written

"""Reads tar streams strictly: damage raises, and members, bytes and headers have a bound.

An archive is known by its hash before it is opened, which says who vouches for it and not that
it is harmless: a few MB can state petabytes, a million files, or headers that fill the memory.
"""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import zstandard
from debian.arfile import ArError

from pinwheel.errors import UnpackError
from pinwheel.files import CHUNK

# deflate reaches 1032:1 at most (zlib's technical details) and xz several times that; real
# packages, wheels and sdists stay below 100:1. Small archives get a floor, since a few kB of text
# may well compress better, and large ones a ceiling: CUDA's largest package unpacks to 4 GB.
MAX_RATIO = 200
FLOOR = 64 << 20  # bytes
CEILING = 64 << 30  # bytes
# Sources of whole operating systems have fewer; each one costs an inode, and memory while read.
MAX_MEMBERS = 200_000
NEXT = "The archive is damaged or not what it should be: take it away and fetch it again."

# Headers that tarfile reads into memory whole; how many bytes of one, and of all of an archive.
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_LARGEST_HEADER = 1 << 20
_ALL_HEADERS = 64 << 20
# Zeros behind the last member fill a record, 10 KiB as tar(1) writes it.
_PADDING = 16 << 20

_DAMAGE = (
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    zstandard.ZstdError,
    EOFError,
    ArError,
    ValueError,
    gzip.BadGzipFile,
    RecursionError,  # extended headers of extended headers
    OverflowError,  # times that no file can have
)


class Budget:
    """What one archive may still unpack to; every member is taken from it before it is read.

    Args:
        path: the archive, which must exist: the default bound follows from its size.
        max_bytes: bound on the sum of member sizes; None: 200 times the archive's size, but
            never less than 64 MiB or more than 64 GiB.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        if max_bytes is None:
            max_bytes = min(CEILING, max(FLOOR, path.stat().st_size * MAX_RATIO))
        self.max_bytes, self.max_members = max_bytes, MAX_MEMBERS
        self._bytes, self._members = max_bytes, self.max_members

    def take(self, size: int) -> None:
        """Account for a member that states ``size`` bytes.

        Raises:
            UnpackError: too many members, too many bytes, or a size below zero.
        """
        self._members -= 1
        self._bytes -= size
        if size < 0:
            self._refuse(f"holds a member of {size} bytes")
        if self._members < 0:
            self._refuse(f"holds more than {self.max_members} members")
        if self._bytes < 0:
            self._refuse(f"unpacks to more than {self.max_bytes} bytes")

    def _refuse(self, why: str) -> NoReturn:
        raise UnpackError(
            f"{self.path.name} {why}.",
            evidence=[f"archive: {self.path}", f"size: {self.path.stat().st_size} bytes"],
            next_step=NEXT,
        )


class _StrictInfo(tarfile.TarInfo):
    """A member header that is damaged raises; tarfile takes one for the end of the archive."""

    def _proc_member(self, tarfile: tarfile.TarFile) -> tarfile.TarInfo:
        import tarfile as module

        if self.size < 0:
            raise module.ReadError(f"a member of {self.size} bytes")
        if self.type in _EXTENDED:
            if self.size > _LARGEST_HEADER:
                raise module.ReadError(f"an extended header of {self.size} bytes")
            if isinstance(tarfile, _StrictFile):
                tarfile.headers += self.size
                if tarfile.headers > _ALL_HEADERS:
                    raise module.ReadError(f"extended headers of more than {_ALL_HEADERS} bytes")
        return super()._proc_member(tarfile)  # type: ignore[misc,no-any-return]

    def _refuse_sparse(self, *_: Any) -> NoReturn:
        # Its map is a list as long as the archive likes, and no sdist or .deb has a use for one.
        raise tarfile.ReadError("a sparse member")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> _StrictInfo:
        import tarfile as module

        try:
            return super().fromtarfile(tarfile)
        except module.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except module.HeaderError as error:
            raise module.ReadError(f"damaged or missing member header: {error}") from error


class _StrictFile(tarfile.TarFile):
    tarinfo = _StrictInfo
    headers = 0  # bytes of extended headers so far


def members(
    stream: IO[bytes], budget: Budget
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Every member of an uncompressed tar stream, to the stream's end.

    With a regular file comes its data, which can be read until the next member is asked for.

    Raises:
        UnpackError: the archive holds more than ``budget`` allows.
        tarfile.TarError: damage, or anything but padding after the end mark; what the stream
            raises itself is passed on.
    """
    with _StrictFile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as archive:
        while (info := archive.next()) is not None:
            budget.take(info.size)
            yield info, archive.extractfile(info) if info.isreg() else None
            # tarfile keeps every header it has read, however many and large they are.
            archive.members = []  # type: ignore[attr-defined]
        _drain(cast(IO[bytes], archive.fileobj))
    _drain(stream)


def _drain(stream: IO[bytes]) -> None:
    """Read to the end, so that checksums are checked; only padding may follow the last member."""
    padding = 0
    while block := stream.read(CHUNK):
        padding += len(block)
        if block.strip(b"\0"):
            raise tarfile.ReadError("data after the end of the archive")
        if padding > _PADDING:
            raise tarfile.ReadError(f"more than {_PADDING} bytes of padding")


@contextmanager
def damage_named(archive: Path, where: Callable[[], str]) -> Iterator[None]:
    """Turn what readers raise on damaged bytes into UnpackError naming archive and member."""
    try:
        yield
    except _DAMAGE as error:
        raise UnpackError(
            f"{archive.name} is corrupt or truncated.",
            evidence=[
                f"archive: {archive}",
                f"last member read: {where() or '(none)'}",
                f"{type(error).__name__}: {error}",
            ],
            next_step=NEXT,
        ) from error

"""Bounded reading: a range of bytes of a file that nothing can be read outside of."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from pinwheel.errors import ArtifactError

# Largest read unless the caller names another bound: headers and small tables, never a section.
SMALL = 1 << 20  # bytes


def unreadable(name: str, why: str, *evidence: str) -> ArtifactError:
    """The one error for an artifact that cannot be read.

    Args:
        name: the artifact, as the user knows it.
        why: what is wrong with it, the end of a sentence.
        evidence: what was seen, a line each.
    """
    return ArtifactError(
        f"{printable(name)} cannot be read: {printable(why)}",
        evidence=[printable(line) for line in evidence],
        next_step="It is damaged or was made to mislead. Get it again from where it came and "
        "compare its sha256; if it stays so, do not install it.",
    )


def printable(text: str, most: int = 300) -> str:
    """``text`` cut to ``most`` characters, with what a terminal would act on shown as escapes."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= most else shown[: most - 1] + "…"


class Region:
    """A range of a file, or bytes in memory, read piece by piece at offsets of its own.

    Reading is by ``pread``: a mapping would kill the process when somebody shortens the file.

    Attributes:
        name: what messages call it.
        size: bytes.
    """

    __slots__ = ("_source", "_start", "name", "size")

    def __init__(self, source: FileIO | bytes, start: int, size: int, name: str) -> None:
        self._source = source
        self._start = start
        self.size = size
        self.name = name

    @classmethod
    def of(cls, data: bytes, name: str) -> Region:
        """A region that is all of ``data``."""
        return cls(data, 0, len(data), name)

    def read(self, offset: int, size: int, what: str, *, most: int = SMALL) -> bytes:
        """``size`` bytes from ``offset``, all of them.

        Args:
            offset: bytes from the start of the region.
            size: bytes.
            what: what is read, for messages.
            most: bytes that this may take in memory.

        Raises:
            ArtifactError: they lie outside, are too many, or the file has become shorter.
        """
        self._check(offset, size, what)
        if size > most:
            raise unreadable(self.name, f"{what} takes {size} bytes, more than {most}")
        if isinstance(self._source, bytes):
            return self._source[self._start + offset : self._start + offset + size]
        try:
            data = os.pread(self._source.fileno(), size, self._start + offset)
        except OSError as error:
            raise unreadable(self.name, f"{what}: {error}") from error
        if len(data) != size:
            raise unreadable(self.name, f"{what}: the file became shorter while it was read")
        return data

    def unpack(self, layout: struct.Struct, offset: int, what: str) -> tuple[int, ...]:
        """The numbers of one structure at ``offset``; errors as in :meth:`read`."""
        return layout.unpack(self.read(offset, layout.size, what))

    def part(self, offset: int, size: int, what: str) -> Region:
        """A region within this one, under the same name.

        Raises:
            ArtifactError: it would not lie within.
        """
        self._check(offset, size, what)
        return Region(self._source, self._start + offset, size, self.name)

    def named(self, name: str) -> Region:
        """The same region under another name."""
        return Region(self._source, self._start, self.size, name)

    def chunks(self, size: int = SMALL) -> Iterator[bytes]:
        """The whole region, ``size`` bytes at a time."""
        for offset in range(0, self.size, size):
            yield self.read(offset, min(size, self.size - offset), "its contents", most=size)

    def _check(self, offset: int, size: int, what: str) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise unreadable(
                self.name,
                f"{what} lies outside of it",
                f"{size} bytes at {offset:#x}, of {self.size} bytes in all",
            )


@contextmanager
def open_region(path: Path, name: str = "") -> Iterator[Region]:
    """A whole file as a region, open within the ``with`` block.

    Args:
        path: a regular file.
        name: what messages call it; by default the file's own name.

    Raises:
        ArtifactError: it cannot be opened, or is no regular file.
    """
    name = name or path.name
    try:
        if not path.is_file():  # a pipe would make open wait for a writer
            raise unreadable(name, "there is no such file", str(path))
        file = FileIO(path)
    except (OSError, ValueError) as error:
        raise unreadable(name, str(error)) from error
    with file:
        yield Region(file, 0, os.fstat(file.fileno()).st_size, name)

"""How much disk space directories take, and how much removing some of them gives back."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_File = tuple[int, int]  # device, inode


class Sizes:
    """Bytes on the disk, each file once however many links it has."""

    def __init__(self) -> None:
        self._bytes: dict[_File, int] = {}
        self._links: dict[_File, int] = {}  # as first seen, so before anything was removed
        self._below: dict[Path, Counter[_File]] = {}
        self._gone: Counter[_File] = Counter()

    def add(self, path: Path) -> int:
        """Count what is below a path; returns its bytes."""
        seen: Counter[_File] = Counter()
        for status in _statuses(path):
            file = (status.st_dev, status.st_ino)
            seen[file] += 1
            self._bytes.setdefault(file, status.st_blocks * 512)
            # A directory's links are its subdirectories; it has one place.
            self._links.setdefault(file, 1 if stat.S_ISDIR(status.st_mode) else status.st_nlink)
        self._below[path] = seen
        return sum(self._bytes[file] for file in seen)

    def drop(self, path: Path) -> None:
        """Take what is below a path for removed."""
        self._gone += self._below[path]

    @property
    def total(self) -> int:
        """Bytes of all that was counted, the removed included."""
        return sum(self._bytes.values())

    @property
    def freed(self) -> int:
        """Bytes of the files that have no link left."""
        return sum(self._bytes[f] for f, n in self._gone.items() if n >= self._links[f])


def _statuses(path: Path) -> Iterator[os.stat_result]:
    """A directory and every entry below it, links not followed; what vanishes is left out."""
    waiting = [path]
    with suppress(OSError):
        yield path.lstat()
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(Path(entry.path))
                    yield status

"""When something kept in the cache was last used: the time of the lock file beside it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def lock_of(path: Path) -> Path:
    """The lock file of a directory in the cache: who makes or removes the directory holds it."""
    return path.with_name(f"{path.name}.lock")


def mark_used(path: Path) -> None:
    """Note that a directory is used now; to be called by who holds its lock, or has held it."""
    with suppress(OSError):  # a cache that may only be read is cleaned by whoever may write it
        os.utime(lock_of(path))


def last_used(path: Path) -> float:
    """Seconds since 1970 when a directory was last used or made, as far as is known."""
    times = [0.0]
    for each in (path, lock_of(path)):
        with suppress(OSError):
            times.append(each.lstat().st_mtime)
    return max(times)

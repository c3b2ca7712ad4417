"""Directories kept in the cache: the listing beside each, and replacing one that has changed.

A root, toolkit or environment is made once and used for months. That its directory is there says
little: a disk that was full, a file removed to save space or edited by hand would end in a wheel
that no other host builds. So what was made is listed beside it and compared before each use.

Sizes, modes and times are compared, not contents: that takes well under a second where reading a
toolkit and torch takes a minute. It finds what happens to files, not somebody who sets times back.
Changes of the inode (ctime) do not count: uv's cache and environments share files by hard links.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pinwheel.console import Console, counted, visible
from pinwheel.files import atomic_write, held, remove_tree, writing

SUFFIX = ".listing"
_REPLACED = ".replaced-"
# Of one entry: what stands in the listing, without its path.
_UNREADABLE = "cannot be read"


def listing_of(directory: Path) -> Path:
    """The listing of a kept directory."""
    return directory.with_name(f"{directory.name}{SUFFIX}")


def is_whole(directory: Path, what: str, console: Console | None = None) -> bool:
    """Whether a directory is there exactly as it was made.

    To be called by who holds the directory's lock, and makes it anew where this says no. Where
    it is there and has changed, one line says what differs.

    Args:
        directory: as given to :func:`keep`.
        what: what it is called in that line.
        console: where the line goes.
    """
    _remove_replaced(directory)
    if not os.path.lexists(directory):
        return False
    noted = _read_listing(listing_of(directory))
    if noted is None:
        why = "nothing says whether it is whole"
    elif why := _difference(noted, read_tree(directory)):
        why = f"it has changed: {why}"
    if why and console is not None:
        console.say(f"{what} {directory.name} is made anew, {why}")
    return not why


def keep(made: Path, directory: Path) -> None:
    """Move a finished directory to its place in the cache, with its listing.

    To be called by who holds the directory's lock. What is there already is renamed: a program
    that runs in it goes on, since a mount follows the directory and not its name. It is removed
    here or by a later call, once no build is running.

    Args:
        made: on the same file system.
        directory: its place, two levels below the cache.

    Raises:
        DiskFullError, NotWritableError: from the file system.
    """
    listing = _format(read_tree(made))
    with writing(directory):
        if os.path.lexists(directory):
            directory.rename(_free_name(directory))
    # First the listing: where it stands alone, or beside something else, all is made anew.
    atomic_write(listing_of(directory), listing)
    with writing(directory):
        made.rename(directory)
    _remove_replaced(directory)


def read_tree(directory: Path) -> dict[bytes, str]:
    """Every entry below a directory and itself: path within it -> kind, mode, size, time, target.

    Links are not followed. The directory's own path is empty.
    """
    top = os.fsencode(directory)
    status = directory.lstat()
    found = {b"": _described(top, status)}
    waiting = [b""] if stat.S_ISDIR(status.st_mode) else []
    while waiting:
        within = waiting.pop()
        try:
            with os.scandir(os.path.join(top, within)) as entries:  # noqa: PTH118 - bytes
                for entry in entries:
                    name = within + b"/" + entry.name if within else entry.name
                    try:
                        status = entry.stat(follow_symlinks=False)
                        found[name] = _described(entry.path, status)
                    except OSError:
                        found[name] = _UNREADABLE
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(name)
        except OSError:
            found[within] = _UNREADABLE
    return found


def _described(path: bytes, status: os.stat_result) -> str:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return f"file {mode:o} {status.st_size} {status.st_mtime_ns}"
    if stat.S_ISDIR(status.st_mode):
        return f"directory {mode:o}"  # its size and time belong to the file system
    if stat.S_ISLNK(status.st_mode):
        return f"link {os.fsdecode(os.readlink(path))}"  # noqa: PTH115 - bytes
    return f"special {status.st_mode:o}"


def _format(tree: Mapping[bytes, str]) -> bytes:
    body = b"".join(
        path + b"\0" + os.fsencode(tree[path]) + b"\0" for path in sorted(tree)
    )  # neither holds a NUL, which no file system takes
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _read_listing(path: Path) -> dict[bytes, str] | None:
    """What a listing says; None where there is none, or it is not as it was written."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    fields = body.split(b"\0")
    if head != hashlib.sha256(body).hexdigest().encode() or len(fields) % 2 != 1:
        return None
    return {
        name: os.fsdecode(text) for name, text in zip(fields[0:-1:2], fields[1::2], strict=True)
    }


def _difference(noted: Mapping[bytes, str], found: Mapping[bytes, str]) -> str:
    """The first entry that differs, in words, and how many do; empty where none does."""
    if noted == found:
        return ""
    paths = sorted(p for p in noted.keys() | found.keys() if noted.get(p) != found.get(p))
    first = paths[0]
    name = visible(os.fsdecode(first)).replace("\n", "\\n") or "the directory itself"
    was, now = noted.get(first), found.get(first)
    if now is None:
        said = f"{name} is gone"
    elif was is None:
        said = f"{name} was not there"
    else:
        said = f"{name} {_change(was, now)}"
    return said + (f", {counted(len(paths), 'difference')} in all" if len(paths) > 1 else "")


def _change(was: str, now: str) -> str:
    (kind, *old), (other, *new) = was.split(" "), now.split(" ")
    if now == _UNREADABLE:
        return now
    if kind != other:
        return f"was a {kind} and is a {other}"
    if kind == "file" and old[1] != new[1]:
        return f"had {old[1]} bytes and has {new[1]}"
    if kind in ("file", "directory") and old[0] != new[0]:
        return f"had mode {old[0]} and has {new[0]}"
    return "was written to" if kind == "file" else "points elsewhere"


def _free_name(directory: Path) -> Path:
    taken = {path.name for path in _replaced(directory)}
    number = 0
    while f"{directory.name}{_REPLACED}{number}" in taken:
        number += 1
    return directory.with_name(f"{directory.name}{_REPLACED}{number}")


def _replaced(directory: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in directory.parent.iterdir():
            if path.name.startswith(f"{directory.name}{_REPLACED}"):
                yield path


def _remove_replaced(directory: Path) -> None:
    leftovers = list(_replaced(directory))
    if leftovers and not _another_build(directory.parent.parent):
        for path in leftovers:
            remove_tree(path)


def _another_build(cache: Path) -> bool:
    """Whether another process holds the lock of a work directory, as a build does all the while."""
    mine = set()
    with suppress(OSError):
        for descriptor in os.scandir("/proc/self/fd"):
            with suppress(OSError):
                mine.add(Path(descriptor.path).readlink())
    return any(
        path.resolve() not in mine and held(path) for path in (cache / "work").glob("*.lock")
    )

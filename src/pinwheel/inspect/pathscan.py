"""Looks for directories of the building machine inside every file of a wheel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHUNK = 16 << 20  # bytes read at a time
SHOWN = 160  # bytes of the string around a find
MAX_FINDS = 1000  # per file and path; more say nothing new

# Before a path, these mean that it goes on to the left, and so that it is another path:
# "https://host/build/x", "{root}/cache", "~/cache", "../build/".
_LEFT = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.~/-})$%*?+@")
# Behind a path that does not end in a slash, these go on with its last name: "/opt/environment".
_RIGHT = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
# Unless one of these stands before it: options of compilers, and what a URL of a file starts with.
_OPENERS = (b"-I", b"-L", b"-B", b"-isystem", b"-iquote", b"-idirafter", b"file://")
_PRINTABLE = frozenset(range(0x20, 0x7F))


@dataclass(frozen=True, slots=True, order=True)
class Find:
    """One path found: file within the wheel, byte offset, the path, the text around it."""

    file: str
    offset: int
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.text}"


def scan(file: Path, name: str, paths: Sequence[str]) -> list[Find]:
    """Every place where one of ``paths`` begins inside ``file``.

    Bytes are compared as they are; what is compressed inside a file (device code, if nvcc was
    asked to compress it) is not opened.

    Args:
        file: the file to read.
        name: its path within the wheel.
        paths: absolute paths; one with a slash at its end stands for what lies below it.

    Returns:
        Sorted by offset, at most 1000 for each path.
    """
    needles = [(p, p.encode()) for p in dict.fromkeys(paths)]
    margin = max((len(n) for _, n in needles), default=0) + SHOWN
    finds: list[Find] = []
    counts = dict.fromkeys(paths, 0)
    with file.open("rb") as source:
        window, start = b"", 0  # start: offset in the file of the window's first byte
        fresh = 0  # finds before this place of the window were reported with the one before
        while True:
            block = source.read(CHUNK)
            window += block
            # What lies near the end waits for the next block, so that its text is whole.
            until = len(window) - margin if block else len(window)
            for path, needle in needles:
                at = window.find(needle, fresh)
                while 0 <= at < until and counts[path] < MAX_FINDS:
                    if _begins_here(window, at, needle):
                        counts[path] += 1
                        finds.append(Find(name, start + at, path, _text(window, at)))
                    at = window.find(needle, at + 1)
            if not block:
                return sorted(finds, key=lambda f: (f.offset, f.path))
            keep = max(0, until - margin)
            fresh = max(0, until) - keep
            window, start = window[keep:], start + keep


def _begins_here(window: bytes, at: int, needle: bytes) -> bool:
    end = at + len(needle)
    if not needle.endswith(b"/") and end < len(window) and window[end] in _RIGHT:
        return False
    if at == 0 or window[at - 1] not in _LEFT:
        return True
    return window.endswith(_OPENERS, max(0, at - 12), at)


def _text(window: bytes, at: int) -> str:
    first = last = at
    while first > max(0, at - SHOWN // 4) and window[first - 1] in _PRINTABLE:
        first -= 1
    while last < min(len(window), at + SHOWN) and window[last] in _PRINTABLE:
        last += 1
    return window[first:last].decode("ascii")

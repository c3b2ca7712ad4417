"""What the cache holds, how large it is and when it was used; removing what no build uses.

Only directories whose names a build gives are ever removed, so a cache that was pointed at another
directory by mistake loses nothing. One is renamed before it is removed and its lock is held all
the while: a build finds it whole or not at all.

In use is what its lock says. A build holds the lock of its work directory from beginning to end,
and takes root, tools, toolkit and environment, which builds share, while it holds that one. So
those are removed only while no work directory is locked, looked at after their own lock was taken:
a build that begins later waits for that lock and then makes anew what is gone.

Wheels that are being read are unpacked into directories without a lock. One is in use while a
process has a file open in it; the hour it must be old covers processes that cannot be seen here.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pinwheel.build.sizes import Sizes
from pinwheel.build.work import Work
from pinwheel.buildroot.lastuse import last_used, lock_of
from pinwheel.errors import BusyError, PinwheelError
from pinwheel.files import atomic_write, file_lock, held, remove_tree, writing
from pinwheel.settings import Settings

DAY = 86_400  # seconds
UV_CACHE = ".uv"
_ORDER = "order.json"
_PARTIAL = ".partial"
# Half-made, or put out of the way of one that was made anew while something still ran in it.
_LEFTOVER = re.compile(r"(?P<whole>.+?)(?P<why>\.partial|\.replaced-[0-9]+)")
_OPENED = re.compile(r"inspect-[a-z0-9_]{8}")  # as tempfile.mkdtemp names them
_SETTLED = 3600  # seconds without a change


class Kind(StrEnum):
    """What a part of the cache is for."""

    WORK = "work directory"
    OPENED = "opened wheel"
    ENVIRONMENT = "environment"
    UNPACKED = "unpacked wheels"
    ROOT = "build root"
    TOOLKIT = "toolkit"
    TOOLS = "tools"
    STORE = "inputs"
    COMPILED = "compile cache"


class Fate(StrEnum):
    """What happens to a part."""

    REMOVED = "removed"
    REMOVABLE = "would be removed"
    KEPT = "kept"


_HEX = "[0-9a-f]"
# Directory of the cache -> what is in it, and the names that builds give there.
_PLACES = {
    "work": (Kind.WORK, re.compile(rf"[a-z0-9][A-Za-z0-9.-]*-{_HEX}{{16}}")),
    "envs": (Kind.ENVIRONMENT, re.compile(rf"{_HEX}{{32}}")),
    "roots": (Kind.ROOT, re.compile(rf"{_HEX}{{32}}")),
    "toolkits": (Kind.TOOLKIT, re.compile(rf"[a-z0-9][a-z0-9.-]*-{_HEX}{{16}}")),
    "tools": (Kind.TOOLS, re.compile(rf"{_HEX}{{32}}")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One directory of the cache.

    Attributes:
        kind: what it is for.
        path: where it is.
        size: bytes on the disk; what hard links share with other parts counts here too.
        used: seconds since 1970 when it was last used; None where nobody notes that.
        fate: what happens, or would happen, to it.
        reason: why.
    """

    kind: Kind
    path: Path
    size: int
    used: float | None
    fate: Fate
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """The cache, looked through. ``size`` and ``freed`` are bytes, hard links counted once.

    ``size`` is of before; ``older_than`` is in days.
    """

    cache: Path
    older_than: int
    parts: tuple[Part, ...]
    size: int
    freed: int

    def as_dict(self) -> dict[str, object]:
        """As plain data."""
        return {
            "cache": str(self.cache),
            "older-than-days": self.older_than,
            "bytes": self.size,
            "freed-bytes": self.freed,
            "parts": [
                {
                    "kind": p.kind.value,
                    "path": str(p.path),
                    "bytes": p.size,
                    "last-used": None if p.used is None else round(p.used),
                    "fate": p.fate.value,
                    "reason": p.reason,
                }
                for p in self.parts
            ],
        }


def clean(
    settings: Settings, *, older_than: int, dry_run: bool, now: float | None = None
) -> Cleaning:
    """Remove what was not used for so many days and is not in use; half-made parts at any age.

    Inputs and the compile cache are measured and kept: only a network gives the first back and
    only hours the second, which keeps its own size.

    Args:
        settings: where the cache is.
        older_than: days.
        dry_run: remove nothing, say what would be.
        now: seconds since 1970.

    Raises:
        NotWritableError: the cache may not be written.
    """
    now = time.time() if now is None else now
    cache = settings.cache
    sizes = Sizes()
    parts: list[Part] = []
    environment_gone = False
    for kind, path in _candidates(cache):
        size = sizes.add(path)
        used = last_used(_whole(path))
        age = now - used
        leftover = _leftover(path)
        fate, reason = Fate.KEPT, f"used {_days(age)} ago"
        if leftover or age >= older_than * DAY:
            reason = leftover or (f"not used for {_days(age)}" if age >= DAY else "not in use")
            if busy := _in_use(cache, kind, path):
                reason = busy
            elif dry_run:
                fate = Fate.REMOVABLE
            else:
                fate, reason = _remove(cache, kind, path, reason)
        if fate is not Fate.KEPT:
            environment_gone |= kind is Kind.ENVIRONMENT and not leftover
            sizes.drop(path)
        parts.append(Part(kind=kind, path=path, size=size, used=used, fate=fate, reason=reason))
    parts += _opened(settings.work, sizes, dry_run=dry_run, now=now)
    parts += _uv_cache(cache, sizes, dry_run=dry_run, gone=environment_gone)
    for kind, path, why in (
        (Kind.STORE, settings.store, "never removed; without it all is fetched again"),
        (Kind.COMPILED, settings.compile_cache, "never removed; without it all is compiled again"),
    ):
        if path.is_dir():
            size = sizes.add(path)
            parts.append(
                Part(kind=kind, path=path, size=size, used=None, fate=Fate.KEPT, reason=why)
            )
    return Cleaning(
        cache=cache,
        older_than=older_than,
        parts=tuple(parts),
        size=sizes.total,
        freed=sizes.freed,
    )


def remember_order(work: Work, combo: str, toolkit: str, capabilities: str) -> None:
    """Note in a work directory what it builds; its name tells only that something differs."""
    order = {"combo": combo, "toolkit": toolkit, "capabilities": capabilities}
    atomic_write(work.path / _ORDER, json.dumps(order, sort_keys=True).encode())


def remove_superseded(settings: Settings, work: Work) -> list[Path]:
    """Remove work directories of the build that ``work`` has just made, begun with another key.

    Recipe, lock or pinwheel has changed since, so only going back to them would use one again, and
    what was compiled is in the compile cache.

    Returns:
        What was removed; none that is in use.
    """
    mine = _order_of(work.path)
    removed: list[Path] = []
    if mine is None:
        return removed
    for kind, path in _candidates(settings.cache):
        if kind is not Kind.WORK or path == work.path or _order_of(path) != mine:
            continue
        with suppress(PinwheelError):  # the build itself is done, and `clean` will say why
            if _remove(settings.cache, kind, path, "")[0] is Fate.REMOVED:
                removed.append(path)
    return removed


def _order_of(path: Path) -> object:
    try:
        return json.loads((path / _ORDER).read_text())
    except (OSError, ValueError):
        return None


def _candidates(cache: Path) -> Iterator[tuple[Kind, Path]]:
    for name, (kind, pattern) in _PLACES.items():
        with suppress(OSError):
            for path in sorted((cache / name).iterdir()):
                if pattern.fullmatch(_whole(path).name) and not path.is_symlink() and path.is_dir():
                    yield kind, path


def _whole(path: Path) -> Path:
    """The directory that a half-made one is going to be, or a replaced one was."""
    found = _LEFTOVER.fullmatch(path.name)
    return path.with_name(found["whole"]) if found else path


def _leftover(path: Path) -> str:
    """Why a directory goes at any age; empty where it does not."""
    found = _LEFTOVER.fullmatch(path.name)
    if found is None:
        return ""
    return "half-made" if found["why"] == _PARTIAL else "replaced by one made anew"


def _in_use(cache: Path, kind: Kind, path: Path) -> str:
    """Why a part cannot be removed now; empty when it can."""
    if held(lock_of(_whole(path))):
        return "in use"
    return "" if kind is Kind.WORK else _a_build(cache)


def _a_build(cache: Path) -> str:
    """The build that runs now, in words; empty when there is none."""
    for lock in sorted((cache / "work").glob("*.lock")):
        if held(lock):
            return f"a build is running: {lock.stem}"
    return ""


def _remove(cache: Path, kind: Kind, path: Path, reason: str) -> tuple[Fate, str]:
    """Remove one part under its lock, unless somebody uses it."""
    try:
        with file_lock(lock_of(_whole(path)), wait=False):
            if kind is not Kind.WORK and (busy := _a_build(cache)):
                return Fate.KEPT, busy
            _take_away(path)
    except BusyError:
        return Fate.KEPT, "in use"
    return Fate.REMOVED, reason


def _take_away(path: Path) -> None:
    """Rename, then remove: who looks meanwhile sees a half-made directory, as after a kill."""
    whole = _whole(path)
    if _leftover(path):
        remove_tree(path)
        return
    partial = whole.with_name(f"{whole.name}{_PARTIAL}")
    # A toolkit's comes first: without it no tree is taken for finished.
    whole.with_name(f"{whole.name}.json").unlink(missing_ok=True)
    remove_tree(partial)
    with writing(partial):
        whole.rename(partial)
    for beside in whole.parent.glob(f"{whole.name}.*"):
        # The lock stays, or two holders could lock two files of one name.
        if beside != partial and beside.suffix != ".lock":
            remove_tree(beside)
    remove_tree(partial)


def _opened(work: Path, sizes: Sizes, *, dry_run: bool, now: float) -> Iterator[Part]:
    """Where wheels that are read are unpacked; a command that was killed leaves its directory."""
    paths = []
    with suppress(OSError):
        paths = [p for p in sorted(work.iterdir()) if _OPENED.fullmatch(p.name)]
    paths = [p for p in paths if p.is_dir() and not p.is_symlink()]
    busy = _directories_in_use() if paths else set()
    for path in paths:
        size, changed = sizes.add(path), _last_change(path)
        fate, reason = Fate.REMOVED, "left by a command that was killed"
        if path.resolve() in busy:
            fate, reason = Fate.KEPT, "in use"
        elif now - changed < _SETTLED:
            fate, reason = Fate.KEPT, "changed less than an hour ago, so perhaps in use"
        elif dry_run:
            fate = Fate.REMOVABLE
        else:
            remove_tree(path)
        if fate is not Fate.KEPT:
            sizes.drop(path)
        yield Part(kind=Kind.OPENED, path=path, size=size, used=changed, fate=fate, reason=reason)


def _last_change(directory: Path) -> float:
    times = [0.0]
    for path in (directory, *directory.iterdir()):
        with suppress(OSError):
            times.append(path.lstat().st_mtime)
    return max(times)


def _directories_in_use() -> set[Path]:
    """Directories in which a process of this machine has a file open, as far as may be seen."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            for entry in os.scandir(process):
                with suppress(OSError):
                    found.add(Path(entry.path).readlink().parent)
    return found


def _uv_cache(cache: Path, sizes: Sizes, *, dry_run: bool, gone: bool) -> Iterator[Part]:
    """uv's unpacked wheels go with an environment: the others keep their files by hard links."""
    path = cache / "envs" / UV_CACHE
    partial = path.with_name(f"{UV_CACHE}{_PARTIAL}")
    if not dry_run:
        remove_tree(partial)  # left by a cleaning that was killed
    if path.is_symlink() or not path.is_dir():
        return
    size = sizes.add(path)
    left = any(k is Kind.ENVIRONMENT and not _leftover(p) for k, p in _candidates(cache))
    fate, reason = Fate.KEPT, "the next environment is made of it"
    if gone or not left:
        fate, reason = Fate.REMOVABLE, "an environment goes" if gone else "no environment is left"
        if not dry_run:
            fate, reason = _remove_uv_cache(cache, path, partial, reason)
        elif busy := _a_build(cache):
            fate, reason = Fate.KEPT, busy
    if fate is not Fate.KEPT:
        sizes.drop(path)
    yield Part(kind=Kind.UNPACKED, path=path, size=size, used=None, fate=fate, reason=reason)


def _remove_uv_cache(cache: Path, path: Path, partial: Path, reason: str) -> tuple[Fate, str]:
    try:
        # uv's own lock, which each of its commands holds while it reads or writes the cache.
        with file_lock(path / ".lock", wait=False):
            if busy := _a_build(cache):
                return Fate.KEPT, busy
            remove_tree(partial)
            with writing(partial):
                path.rename(partial)
            remove_tree(partial)
    except BusyError:
        return Fate.KEPT, "in use"
    return Fate.REMOVED, reason


def _days(seconds: float) -> str:
    days = int(max(0.0, seconds) // DAY)
    return "1 day" if days == 1 else f"{days} days" if days else "less than a day"

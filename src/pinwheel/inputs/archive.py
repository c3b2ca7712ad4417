"""Unpacks sdists and wheels: safe names only, fixed times, bounded sizes."""

from __future__ import annotations

import calendar
import errno
import gzip
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, cast

from pinwheel.errors import UnpackError
from pinwheel.inputs.tarball import FLOOR, MAX_RATIO, NEXT, Budget, damage_named, members
from pinwheel.inputs.tree import SafeTree

__all__ = ["FLOOR", "MAX_RATIO", "unpack_sdist", "unpack_wheel"]


def unpack_sdist(path: Path, dest: Path, *, epoch: int, max_bytes: int | None = None) -> list[str]:
    """Unpack a ``.tar.gz`` sdist below ``dest`` without its top directory.

    Args:
        path: the sdist; everything in it lies below one directory (PyPA: source distribution
            format).
        dest: receives the contents of that directory; must be empty or missing.
        epoch: seconds since 1970, the time every file, link and directory gets.
        max_bytes: bound on the sum of file sizes; by default 200 times the archive's.

    Returns:
        Names written, directories not among them, in archive order.

    Raises:
        UnpackError: damaged archive, a member that leads out, a second top directory, a device,
            or more bytes or members than allowed.
    """
    _must_be_empty(path, dest)
    budget = Budget(path, max_bytes)
    tree = SafeTree(dest, path.name, absolute_links=False)
    written: list[str] = []
    at = top = ""

    def inner(name: str) -> str:
        nonlocal top
        first, *rest = tree.parts(name) or ("",)
        top = top or first
        if first != top:
            tree.refuse(name, f"lies outside the top directory {top!r}")
        return "/".join(rest)

    with damage_named(path, lambda: at), gzip.open(path) as stream:
        for info, source in members(cast(IO[bytes], stream), budget):
            at = info.name
            name = inner(info.name)
            if info.isdir():
                tree.directory(name, mode=0o755, mtime=epoch)
                continue
            if info.issym():
                tree.symlink(name, info.linkname, mtime=epoch)
            elif info.islnk():
                tree.hardlink(name, inner(info.linkname))
            elif info.isreg():
                if source is None:
                    tree.refuse(name, "has no data")
                mode = 0o755 if info.mode & 0o111 else 0o644
                tree.file(name, source, size=info.size, mode=mode, mtime=epoch)
            else:
                tree.refuse(info.name, "is neither file, directory nor link")
            written.append(name)
    tree.directory("", mode=0o755, mtime=epoch)
    tree.finish()
    return written


def _must_be_empty(path: Path, dest: Path) -> None:
    if dest.is_symlink() or (dest.exists() and any(dest.iterdir())):
        raise UnpackError(
            f"{path.name} cannot be unpacked: {dest} is not empty.",
            evidence=[f"archive: {path}"],
            next_step="Remove the directory or choose another one.",
        )


def _selected(name: str, select: Mapping[str, str]) -> tuple[str, str] | None:
    """The rule that takes ``name`` and where it goes; the longest matching rule wins."""
    for rule in sorted(select, key=len, reverse=True):
        prefix = rule.strip("/")
        if name == prefix:
            return rule, select[rule].strip("/") or name.rsplit("/", 1)[-1]
        if not prefix or name.startswith(prefix + "/"):
            rest = name[len(prefix) :].lstrip("/")
            return rule, f"{select[rule].strip('/')}/{rest}".lstrip("/")
    return None


def unpack_wheel(
    path: Path,
    dest: Path,
    *,
    select: Mapping[str, str] | None = None,
    keep: Callable[[str], bool] | None = None,
    epoch: int | None = None,
    max_bytes: int | None = None,
) -> list[str]:
    """Unpack a wheel, or parts of it, below ``dest``.

    Args:
        path: the wheel.
        dest: directory to write to; created when missing.
        select: path of a file or directory inside the wheel -> path below ``dest`` (empty: its
            contents lie at ``dest`` itself). None takes everything.
        keep: called with each file's path inside the wheel; False leaves it out.
        epoch: time in seconds since 1970 for every file; None keeps the zip's own, read as UTC.
        max_bytes: bound on the sum of file sizes; by default 200 times the archive's.

    Returns:
        Names written below ``dest``, in the wheel's order.

    Raises:
        UnpackError: damaged archive, a member that leads out, is a link, encrypted or there
            twice, more bytes or members than allowed, or an entry of ``select`` that matches
            nothing.
    """
    budget = Budget(path, max_bytes)
    tree = SafeTree(dest, path.name, absolute_links=False)
    written: list[str] = []
    used: set[str] = set()
    at = ""
    try:
        with damage_named(path, lambda: at), zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                at = info.filename
                name = "/".join(tree.parts(info.filename))
                if info.is_dir() or (keep is not None and not keep(name)):
                    continue
                kind = info.external_attr >> 16
                if stat.S_ISLNK(kind):
                    tree.refuse(name, "is a symlink, which a wheel cannot hold")
                if info.flag_bits & 1:
                    tree.refuse(name, "is encrypted")
                if select is not None:
                    rule = _selected(name, select)
                    if rule is None:
                        continue
                    used.add(rule[0])
                    name = rule[1]
                budget.take(info.file_size)
                mtime = epoch if epoch is not None else calendar.timegm((*info.date_time, 0, 0, 0))
                with archive.open(info) as source:
                    tree.file(
                        name,
                        source,
                        size=info.file_size,
                        mode=0o755 if kind & 0o111 else 0o644,
                        mtime=mtime,
                        once=True,
                    )
                written.append(name)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError) as error:
        # A damaged offset makes zipfile seek before the file's first byte.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise UnpackError(
            f"{path.name} is corrupt or truncated.",
            evidence=[
                f"archive: {path}",
                f"last member read: {at or '(none)'}",
                f"{type(error).__name__}: {error}",
            ],
            next_step=NEXT,
        ) from error
    unused = sorted(set(select or ()) - used)
    if unused:
        raise UnpackError(
            f"{path.name} does not hold what was to be taken from it.",
            evidence=[f"not found: {rule}" for rule in unused],
            next_step="Name paths that the wheel has, or take the version the recipe names.",
        )
    tree.finish()
    return written

"""Writes archive members below one directory, and nowhere else.

Names and links come from archives, so every parent is resolved here, component by component,
with the destination as the root: what a symlink in the tree says is followed as a chroot would
follow it, never by the kernel, which would take an absolute target for one of the host's.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import IO, NoReturn

from pinwheel.errors import UnpackError
from pinwheel.files import CHUNK, writing

MAX_LINK_HOPS = 40  # as Linux: path_resolution(7)
MAX_NAME = 255  # bytes of one part of a path: NAME_MAX
MAX_DEPTH = 100  # parts of a path; real archives stay below 20
_NEXT = "The archive is damaged or not what it should be: take it away and fetch it again."


class SafeTree:
    """A directory that archive members are written to.

    Args:
        root: the directory; created when missing.
        archive: what error messages call the archive.
        absolute_links: whether a symlink may have an absolute target (legal inside a root).

    Directory times are set by ``finish``: entries get their own, parents that an archive does not
    name keep what they had, or get the newest time of the archive when they are new. Hence the
    same archives in the same order give the same times.
    """

    def __init__(self, root: Path, archive: str, *, absolute_links: bool) -> None:
        self.root = root
        self.archive = archive
        self._absolute_links = absolute_links
        self._resolved: dict[tuple[str, ...], Path] = {}
        self._times: dict[Path, int | None] = {}
        self._newest = 0
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)

    def refuse(self, member: str, why: str) -> NoReturn:
        """Raise UnpackError naming archive and member."""
        raise UnpackError(
            f"{self.archive}: member {member!r} {why}.",
            evidence=[f"archive: {self.archive}", f"member: {member}"],
            next_step=_NEXT,
        )

    def parts(self, member: str) -> tuple[str, ...]:
        """The components of a member's name; empty for the top itself.

        Raises:
            UnpackError: the name is absolute, has ``..`` or bytes no path may have.
        """
        if member.startswith("/"):
            self.refuse(member, "has an absolute name")
        if "\0" in member or "\\" in member:
            self.refuse(member, "has a name with a NUL or a backslash")
        parts = tuple(p for p in member.split("/") if p not in ("", "."))
        if ".." in parts:
            self.refuse(member, "has '..' in its name")
        if len(parts) > MAX_DEPTH or any(len(os.fsencode(p)) > MAX_NAME for p in parts):
            self.refuse(f"{member[:MAX_NAME]}...", "has a name too long for a file")
        return parts

    def _expand(self, link: Path, member: str) -> list[str]:
        target = os.readlink(link)  # noqa: PTH115 - the text, not a Path
        base = () if target.startswith("/") else link.parent.relative_to(self.root).parts
        return [*base, *target.split("/")]

    def _directory(self, parts: tuple[str, ...], member: str) -> Path:
        """The real directory of ``parts``, made when missing, links followed within the root."""
        known = self._resolved.get(parts)
        if known is not None:
            return known
        todo = list(reversed(parts))
        here = self.root
        hops = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                here = here if here == self.root else here.parent
                continue
            path = here / part
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                self._remember(here)
                path.mkdir(mode=0o755)
                path.chmod(0o755)  # whatever the umask says
                self._times[path] = None
                here = path
                continue
            if stat.S_ISLNK(mode):
                hops += 1
                if hops > MAX_LINK_HOPS:
                    self.refuse(member, "lies behind a loop of symlinks")
                todo.extend(reversed(self._expand(path, member)))
                here = self.root
            elif stat.S_ISDIR(mode):
                here = path
            else:
                self.refuse(member, f"lies below {path.relative_to(self.root)}, no directory")
        self._remember(here)
        self._resolved[parts] = here
        return here

    def _remember(self, directory: Path) -> None:
        if directory not in self._times:
            self._times[directory] = directory.stat().st_mtime_ns

    def _vacant(self, member: str, *, once: bool = False) -> Path:
        """Where ``member`` goes, with whatever else lay there gone."""
        parts = self.parts(member)
        if not parts:
            self.refuse(member, "has no name")
        path = self._directory(parts[:-1], member) / parts[-1]
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return path
        if stat.S_ISDIR(mode):
            self.refuse(member, "would replace a directory")
        if once:
            self.refuse(member, "is there twice")
        if stat.S_ISLNK(mode):
            self._resolved.clear()
        path.unlink()
        return path

    def directory(self, member: str, *, mode: int, mtime: int) -> None:
        """Write a directory entry; its owner may always read, enter and write it."""
        with writing(self.root / member):
            path = self._directory(self.parts(member), member)
            if path != self.root:
                path.chmod((mode & 0o777) | 0o755)
            self._times[path] = mtime * 10**9
            self._newest = max(self._newest, mtime)

    def file(
        self,
        member: str,
        source: IO[bytes],
        *,
        size: int,
        mode: int,
        mtime: int,
        once: bool = False,
    ) -> None:
        """Write a file of exactly ``size`` bytes, without setuid, setgid or sticky bits.

        Args:
            once: refuse a name that is already there.

        Raises:
            UnpackError: the name leads out, or the bytes are fewer or more than ``size``.
        """
        with writing(self.root / member):
            path = self._vacant(member, once=once)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "wb") as out:
                left = size
                while block := source.read(min(CHUNK, left + 1)):
                    left -= len(block)
                    if left < 0:
                        self.refuse(member, f"is larger than the {size} bytes it states")
                    out.write(block)
                if left:
                    self.refuse(member, f"ends {left} bytes early")
                out.flush()
                os.fchmod(out.fileno(), (mode & 0o777) | 0o600)
                os.utime(out.fileno(), ns=(mtime * 10**9, mtime * 10**9))
            self._newest = max(self._newest, mtime)

    def symlink(self, member: str, target: str, *, mtime: int) -> None:
        """Write a symlink whose target stays within the root, as a chroot would see it.

        Raises:
            UnpackError: a relative target climbs out, or an absolute one is not allowed here.
        """
        if not target or "\0" in target:
            self.refuse(member, "is a symlink to nothing")
        with writing(self.root / member):
            path = self._vacant(member)
            if target.startswith("/"):
                if not self._absolute_links:
                    self.refuse(member, f"is a symlink out of the tree, to {target!r}")
            else:
                self._relative_target(path, target, member)
            path.symlink_to(target)
            os.utime(path, ns=(mtime * 10**9, mtime * 10**9), follow_symlinks=False)
            self._newest = max(self._newest, mtime)

    def _relative_target(self, path: Path, target: str, member: str) -> None:
        depth = len(path.parent.relative_to(self.root).parts)  # of the real directory
        named = False
        for part in target.split("/"):
            if part == "..":
                depth -= 1
                # Behind a name that is itself a link, '..' leads elsewhere than it reads. In a
                # root that is harmless, as nothing is above it; in a source tree it is not.
                if depth < 0 or (named and not self._absolute_links):
                    self.refuse(member, f"is a symlink out of the tree, to {target!r}")
            elif part not in ("", "."):
                depth += 1
                named = True

    def hardlink(self, member: str, target: str) -> None:
        """Write a hard link to a regular file written before.

        Raises:
            UnpackError: the target is not there, or is no regular file.
        """
        with writing(self.root / member):
            parts = self.parts(target)
            if not parts:
                self.refuse(member, "is a hard link to nothing")
            source = self._directory(parts[:-1], member) / parts[-1]
            try:
                regular = stat.S_ISREG(source.lstat().st_mode)
            except FileNotFoundError:
                regular = False
            if not regular:
                self.refuse(
                    member, f"is a hard link to {target!r}, which is no file unpacked before"
                )
            if parts == self.parts(member):
                return
            path = self._vacant(member)
            try:
                os.link(source, path, follow_symlinks=False)
            except OSError as error:
                if error.errno not in (errno.EMLINK, errno.EPERM, errno.ENOTSUP):
                    raise
                shutil.copy2(source, path)

    def finish(self) -> None:
        """Set the times of all directories that were touched."""
        for path, known in self._times.items():
            time = self._newest * 10**9 if known is None else known
            os.utime(path, ns=(time, time))

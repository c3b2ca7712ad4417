"""The content-addressed store of inputs: a file is there whole and right, or not at all.

Layout below the store's directory::

    sha256/ab/abcd...      the files, read-only, named by their hash
    partial/abcd...        downloads in progress, on the same file system
    rejected/<hash>-<name> bytes that came for an input but are others
    locks/abcd...          one lock per hash: who holds it may write that file
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
from contextlib import AbstractContextManager
from pathlib import Path

from pinwheel.errors import HashMismatchError, MissingInputsError, NotWritableError
from pinwheel.files import (
    CHUNK,
    file_lock,
    human_bytes,
    make_directory,
    sha256_file,
    sync_directory,
    writing,
)
from pinwheel.recipe.lock import SHA256, Input

_READ_ONLY = 0o444


class Store:
    """The store at ``path``; needs no setting up, and may be shared by processes and threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # What was hashed in this process: hash -> inode, size and time it had then.
        self._verified: dict[str, tuple[int, int, int]] = {}
        self._guard = threading.Lock()

    def path_of(self, sha256: str) -> Path:
        """Where the file with that hash is or would be."""
        return self.path / "sha256" / _checked(sha256)[:2] / sha256

    def partial(self, sha256: str) -> Path:
        """Where a download of that hash is collected; its directory exists.

        A link or a pipe of that name is removed: bytes would go elsewhere, or nowhere.
        """
        path = make_directory(self.path / "partial") / _checked(sha256)
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return path
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            with writing(path):
                path.unlink(missing_ok=True)
        return path

    def lock(self, sha256: str, *, wait: bool = True) -> AbstractContextManager[None]:
        """Hold the right to write the file with that hash; see :func:`pinwheel.files.file_lock`."""
        return file_lock(self.path / "locks" / _checked(sha256), wait=wait)

    def has(self, item: Input) -> bool:
        """Whether the input is there with its size; its bytes are checked by :meth:`get`."""
        try:
            return self.path_of(item.sha256).stat().st_size == item.size
        except OSError:
            return False

    def altered(self, item: Input) -> bool:
        """Whether something is there in the input's place that differs at a glance.

        That is another size, or no plain file at all; :meth:`get` says what it is and puts it
        aside. Other bytes of the same size are for :meth:`get` alone to find.
        """
        try:
            status = self.path_of(item.sha256).stat()
        except OSError:
            return False
        return not stat.S_ISREG(status.st_mode) or status.st_size != item.size

    def get(self, item: Input) -> Path:
        """The input's file, read-only, its size and hash checked once per process.

        Raises:
            MissingInputsError: it is not in the store.
            HashMismatchError: the stored bytes are others now, fewer or more; they are moved aside.
        """
        path = self.path_of(item.sha256)
        try:
            status = path.stat()
        except FileNotFoundError as error:
            raise MissingInputsError(
                f"{item.name} {item.version} is not in the store",
                evidence=(describe(item), str(path)),
                next_step="Run `pinwheel fetch` with network access first.",
            ) from error
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would never end
            raise _mismatch(item, "this is no plain file", self._put_aside(item, path, seen[0]))
        with self._guard:
            if self._verified.get(item.sha256) == seen and status.st_size == item.size:
                return path
        actual = sha256_file(path)
        if actual != item.sha256 or status.st_size != item.size:
            found = f"these bytes have  sha256 {actual}, {status.st_size} bytes"
            if actual == item.sha256:
                raise _mismatch(item, found, f"left at {path}: it is the lock's size that is wrong")
            raise _mismatch(item, found, self._put_aside(item, path, seen[0]))
        with self._guard:
            self._verified[item.sha256] = seen
        return path

    def _put_aside(self, item: Input, path: Path, inode: int) -> str:
        """Move a wrong file out of the store's way; says where it is now."""
        try:
            with self.lock(item.sha256):
                if path.stat().st_ino == inode:
                    return f"kept at {self.quarantine(path, Path(item.path).name)}"
        except FileNotFoundError:
            pass
        except NotWritableError:  # shared and read-only: the bytes stay, and are refused each time
            return f"left at {path}, where this user may not write"
        return f"another process has replaced or moved {path} meanwhile"

    def put_file(
        self, path: Path, sha256: str, size: int, *, name: str = "", known: str = ""
    ) -> Path:
        """Take a file in: copied, or moved when it is this store's own partial file.

        Args:
            path: the file; unchanged unless it is ``partial(sha256)``.
            sha256: the hash it must have.
            size: the bytes it must have.
            name: its name in messages and in ``rejected/``.
            known: its hash when the caller just computed it from the bytes it wrote.

        Raises:
            HashMismatchError: other bytes; they are kept aside and the store is unchanged.
            DiskFullError, NotWritableError: the store cannot be written.
        """
        name = name or path.name
        target = self.path_of(sha256)
        own = path == self.path / "partial" / sha256
        if not own:
            with self.lock(sha256):
                if target.is_file() and target.stat().st_size == size:
                    return target
                return self._put(self._copy(path, sha256), target, sha256, size, name, known)
        return self._put(path, target, sha256, size, name, known)

    def quarantine(self, path: Path, name: str) -> Path:
        """Move a file with wrong bytes to ``rejected/``; returns where it is now.

        Its own hash is part of its new name, so that the same bytes are kept once and others
        never replace them.
        """
        directory = make_directory(self.path / "rejected")
        safe = re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:150] or "file"
        digest = sha256_file(path) if path.is_file() else os.urandom(8).hex()
        aside = directory / f"{digest[:16]}-{safe}"
        with writing(aside):
            path.replace(aside)
        return aside

    def _copy(self, path: Path, sha256: str) -> Path:
        partial = self.partial(sha256)
        with writing(partial), path.open("rb") as source, partial.open("wb") as copy:
            shutil.copyfileobj(source, copy, CHUNK)
        return partial

    def _put(
        self, partial: Path, target: Path, sha256: str, size: int, name: str, known: str
    ) -> Path:
        actual, length = known or sha256_file(partial), partial.stat().st_size
        if actual != sha256 or length != size:
            aside = self.quarantine(partial, name)
            raise HashMismatchError(
                f"{name} is not the file the lock names",
                evidence=(
                    f"the lock names sha256 {sha256}, {size} bytes",
                    f"these bytes have  sha256 {actual}, {length} bytes",
                    f"kept at {aside}",
                ),
                next_step="If the file was meant to change, run `pinwheel lock` and look at the "
                "difference; otherwise find out who changed it.",
            )
        if target.exists():  # never the input: whoever wants that looks first
            self.quarantine(target, name)
        make_directory(target.parent)
        with writing(target):
            descriptor = os.open(partial, os.O_RDONLY)
            try:
                os.fchmod(descriptor, _READ_ONLY)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            partial.replace(target)
            sync_directory(target.parent)
        status = target.stat()
        with self._guard:
            self._verified[sha256] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return target


def describe(item: Input) -> str:
    """One line about an input: name, version, source, path, size, hash."""
    return (
        f"{item.name} {item.version}: {item.source} {item.path}, {human_bytes(item.size)} "
        f"({item.size} bytes), sha256 {item.sha256}"
    )


def _mismatch(item: Input, found: str, kept: str) -> HashMismatchError:
    return HashMismatchError(
        f"{item.name} {item.version} in the store is not what the lock names",
        evidence=(
            f"the lock names sha256 {item.sha256}, {item.size} bytes",
            found,
            kept,
        ),
        next_step="Run `pinwheel fetch` to have it again; a store that changes by itself "
        "points at its disk or at somebody writing into it.",
    )


def _checked(sha256: str) -> str:
    if not SHA256.fullmatch(sha256):
        raise ValueError(f"not a sha256: {sha256!r}")
    return sha256

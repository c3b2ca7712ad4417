"""Gets a finished wheel into ``dist/``: enough space, a place to work, all of it or nothing."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pinwheel.build.manifest import merge_sums
from pinwheel.build.rawwheel import wheel_error
from pinwheel.errors import WheelError
from pinwheel.files import (
    atomic_write,
    disk_full,
    existing_parent,
    free_bytes,
    human_bytes,
    remove_tree,
    sha256_file,
    sync_directory,
    writing,
)
from pinwheel.inputs.archive import FLOOR, MAX_RATIO

SUMS = "SHA256SUMS"
SIDECAR = ".manifest.json"  # behind the wheel's name
_TEMPORARY = ".finish-"


def enough_space(raw: Path, out_dir: Path) -> None:
    """Refuse before anything is written, not after minutes of stripping and packing.

    Raises:
        DiskFullError: less free than the unpacked wheel and a packed one take.
        WheelError: ``raw`` is no zip.
    """
    try:
        with zipfile.ZipFile(raw) as archive:
            stated = sum(i.file_size for i in archive.infolist())
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise wheel_error(f"{raw.name} cannot be read as a wheel", str(error)) from error
    size = raw.stat().st_size
    # No more is unpacked than unpack_wheel allows, whatever a bomb states.
    needed = min(stated, max(FLOOR, size * MAX_RATIO)) + size
    if free_bytes(out_dir) < needed:
        raise disk_full(out_dir, f"finishing takes {human_bytes(needed)} for a while")


def require_writable(out_dir: Path) -> None:
    """Refuse a ``dist/`` that cannot be written before the work; nothing is made there for it.

    Raises:
        NotWritableError: a file can be made neither in it nor where it would be made.
        DiskFullError: not even an empty file fits.
    """
    with writing(out_dir):
        for path in (out_dir, *out_dir.parents):
            if path.is_symlink() and not path.exists():
                raise FileExistsError(errno.EEXIST, "a link to nothing", str(path))
        try:
            tempfile.TemporaryFile(dir=existing_parent(out_dir)).close()
        except FileNotFoundError as error:  # /proc and its like take no file
            raise PermissionError(errno.EACCES, "no file can be made there") from error


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Hold a directory alone; unlike a lock file this leaves nothing behind in ``dist/``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """A directory on the same file system as the result; what a killed run left is removed.

    Its user holds a lock on it, so one without is a leftover.
    """
    with locked_directory(parent):
        for old in parent.glob(f"{_TEMPORARY}*"):
            _remove_leftover(old)
        with writing(parent):
            work = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent))
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield work
    finally:
        remove_tree(work)
        os.close(descriptor)


def _remove_leftover(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)
    except BlockingIOError:
        pass  # in use
    finally:
        os.close(descriptor)


def place(packed: Path, out_dir: Path, sha256: str, beside: bytes, *, replace: bool) -> bool:
    """Move a wheel into ``out_dir``; SHA256SUMS comes last and so says that all is there.

    Args:
        packed: the wheel, on the same file system.
        out_dir: ``dist/<combo>``.
        sha256: of the wheel.
        beside: the manifest that lies beside it.
        replace: overwrite a wheel of the same name and other bytes.

    Returns:
        Whether the same bytes were there already.

    Raises:
        WheelError: the name is taken by other bytes.
        NotWritableError: ``out_dir`` cannot be written.
    """
    target = out_dir / packed.name
    sidecar = out_dir / f"{packed.name}{SIDECAR}"
    with locked_directory(out_dir):
        there = sha256_file(target) if target.is_file() else ""
        if there and there != sha256 and not replace:
            raise WheelError(
                f"{target} is there already, with other bytes",
                evidence=(f"there: sha256 {there}", f"built: sha256 {sha256}"),
                next_step="The same inputs give the same bytes, so an input differs. Move the old "
                "wheel away, or ask to replace it.",
            )
        sums = out_dir / SUMS
        old = sums.read_text(encoding="utf-8") if sums.is_file() else ""
        new = {target.name: sha256, sidecar.name: hashlib.sha256(beside).hexdigest()}
        present = {p.name for p in out_dir.iterdir()}
        texts = {sidecar: beside, sums: merge_sums(old, new, present).encode()}
        # All of it is on the disk before anything is moved: a disk that is full leaves nothing.
        for path, data in texts.items():
            atomic_write(packed.with_name(path.name), data)
        with writing(target):
            if there != sha256:
                with packed.open("rb") as file:
                    os.fchmod(file.fileno(), 0o644)
                    os.fsync(file.fileno())
                packed.replace(target)
            for path in texts:
                packed.with_name(path.name).replace(path)
        sync_directory(out_dir)
    return there == sha256

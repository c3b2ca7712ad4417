"""Writing files so that a crash, a full disk or a second process never leaves half of one."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pinwheel.errors import BusyError, DiskFullError, NotWritableError

CHUNK = 1 << 20  # bytes

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_PLACE = {
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a part of the path is a file",
    errno.EISDIR: "there is a directory",
    errno.ELOOP: "a part of the path is a loop of links",
    errno.ENAMETOOLONG: "the path is too long",
}


def human_bytes(size: float) -> str:
    """``size`` bytes as people write it, in powers of 1000: ``934.0 MB``."""
    if abs(size) < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if abs(size) < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusals to write ``path`` into errors with an exit code of their own.

    Raises:
        DiskFullError: no space, quota or inode left, or the file system takes no file that large.
        NotWritableError: permission denied, a read-only file system, or a directory of the path
            that is something else.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(path, str(error)) from error
        if error.errno in _REFUSED:
            raise NotWritableError(
                f"{path} cannot be written",
                evidence=(str(error),),
                next_step="Give this user write permission there, or choose another place: "
                "PINWHEEL_CACHE for the cache, PINWHEEL_DIST for what builds produce.",
            ) from error
        if error.errno in _NO_PLACE:
            raise NotWritableError(
                f"{path} cannot be written: {_NO_PLACE[error.errno]}",
                evidence=(str(error),),
                next_step="Move what is there away, or choose another place.",
            ) from error
        raise


def disk_full(path: Path, *evidence: str) -> DiskFullError:
    """The error for no space at ``path``, with what is free there now."""
    lines = list(evidence)
    with suppress(OSError):
        lines.append(f"{human_bytes(free_bytes(path))} free at {existing_parent(path)}")
    return DiskFullError(
        f"no space left to write {path}",
        evidence=lines,
        next_step="Free some space or point PINWHEEL_CACHE at a larger disk, then run the same "
        "command again: it goes on where it stopped.",
    )


def existing_parent(path: Path) -> Path:
    """``path`` itself or its nearest ancestor that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def free_bytes(path: Path) -> int:
    """Bytes this user may still write where ``path`` is or would be."""
    return shutil.disk_usage(existing_parent(path)).free


def make_directory(path: Path) -> Path:
    """Create ``path`` and its parents; errors as in :func:`writing`."""
    with writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # /proc and its like take no directory
            raise PermissionError(errno.EACCES, "no directory can be made there") from error
    return path


def sync_directory(path: Path) -> None:
    """Make a rename inside ``path`` outlive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems have no such call
            raise
    finally:
        os.close(descriptor)


def atomic_write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` in one step: readers see the old file or the new one, whole.

    Parents are created. ``mode`` is exact, whatever the umask. Errors as in :func:`writing`.
    """
    make_directory(path.parent)
    with writing(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        temporary = Path(name)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def write_output(path: Path, data: bytes) -> None:
    """Write ``data`` where a person asked for it: a file, a terminal, a pipe, ``/dev/null``.

    A regular file is replaced in one step and keeps its mode, a link to one stays a link. Into
    anything else is written as it stands: replacing ``/dev/null`` would take it from the system.

    Raises:
        NotWritableError: a directory, a socket, a disk or other device, or a pipe that nobody
            reads from.
        DiskFullError, NotWritableError: as in :func:`writing`.
        BrokenPipeError: whoever read the pipe closed it.
    """
    with writing(path):
        try:
            status = path.stat()
        except FileNotFoundError:
            status = None
    if status is not None and not stat.S_ISREG(status.st_mode):
        _write_special(path, status, data)
    elif status is not None and os.path.samestat(status, os.fstat(1)):
        _write_all(path, 1, data)  # a new file of that name would lose what else goes to stdout
    else:
        mode = 0o644 if status is None else stat.S_IMODE(status.st_mode)
        try:
            atomic_write(Path(os.path.realpath(path)), data, mode)
        except FileNotFoundError as error:  # /proc and its like take no file
            raise _no_output(path, "no file can be made there") from error


def _write_special(path: Path, status: os.stat_result, data: bytes) -> None:
    kind = stat.S_IFMT(status.st_mode)
    device = (os.major(status.st_rdev), os.minor(status.st_rdev))
    harmless = device in _HARMLESS or device[0] in _TERMINALS
    if kind != stat.S_IFIFO and not (kind == stat.S_IFCHR and harmless):
        raise _no_output(path, f"it is {_KINDS.get(kind, 'no file')}")
    with writing(path):
        try:
            # Without waiting: a pipe that nobody reads from would make open wait for ever.
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            raise _no_output(path, "it is a pipe that nobody reads from") from error
    try:
        os.set_blocking(descriptor, True)
        _write_all(path, descriptor, data)
    finally:
        os.close(descriptor)


def _write_all(path: Path, descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    with writing(path):
        while view:
            view = view[os.write(descriptor, view) :]


def _no_output(path: Path, why: str) -> NotWritableError:
    return NotWritableError(
        f"{path} cannot be written: {why}",
        evidence=(f"{path}: {why}",),
        next_step="Name a file, new or to be replaced, in a directory that can be written.",
    )


# Devices that take any bytes (Linux, Documentation/admin-guide/devices.txt): null, zero, full;
# terminals by their majors. Opening any other may do something, a watchdog say.
_HARMLESS = {(1, 3), (1, 5), (1, 7)}
_TERMINALS = {4, 5, *range(136, 144)}
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFBLK: "a disk",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
}


def sha256_file(path: Path) -> str:
    """The sha256 of a file's bytes, 64 lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file ``path`` alone, across processes and threads.

    The kernel drops the lock when its holder dies, so a killed build blocks nobody. The file
    itself stays: removing it would let two holders lock two different inodes.

    Args:
        path: the lock file; created with its parents.
        wait: wait for the holder; otherwise raise.

    Raises:
        BusyError: another holds it and ``wait`` is false.
    """
    make_directory(path.parent)
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise BusyError(
                f"another pinwheel is working on {path.stem}",
                evidence=(f"{path} is locked",),
                next_step="Wait for it to finish, or stop it, then run this again.",
            ) from error
        yield
    finally:
        os.close(descriptor)


def tree_files(root: Path) -> Iterator[Path]:
    """Every entry below ``root`` that is not a directory, sorted, links not followed."""
    for entry in sorted(os.scandir(root), key=lambda e: e.name):
        if entry.is_dir(follow_symlinks=False):
            yield from tree_files(Path(entry.path))
        else:
            yield Path(entry.path)


def tree_size(root: Path) -> int:
    """Bytes of all regular files below ``root``; a hard-linked file counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in tree_files(root):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            seen[(status.st_dev, status.st_ino)] = status.st_size
    return sum(seen.values())


def remove_tree(path: Path) -> None:
    """Remove ``path`` and all below it, also where directories are read-only; links not followed.

    A path that does not exist is no error.
    """
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return
    if not path.exists():
        return
    with writing(path):
        for directory, _, _ in os.walk(path):
            if not Path(directory).is_symlink():
                status = Path(directory).lstat()
                if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    Path(directory).chmod(status.st_mode | stat.S_IRWXU)
        shutil.rmtree(path)


def held(lock: Path) -> bool:
    """Whether another process holds a lock file; none is made, and nothing written, for asking."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # who cannot ask must not remove
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False

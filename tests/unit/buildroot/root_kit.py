"""A tiny root from a few of this host's programs, to enter a real sandbox without 143 packages."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinwheel.buildroot.root import MOUNT_POINTS

ARCHIVES = Path(__file__).parents[1] / "inputs_archives"  # holds archive_kit

PROGRAMS = ("cat", "env", "id", "ls", "sh", "sleep", "stat", "touch", "true")

needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="no bubblewrap on this host; the tiny root has none"
)


def tiny_root(root: Path) -> Path:
    """Copy the programs and the libraries they load; make the mount points."""
    for name in MOUNT_POINTS:
        (root / name).mkdir(parents=True)
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        for file in (program, *_libraries(program)):
            target = root / (f"usr/bin/{name}" if file == program else file.lstrip("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(file, target)  # follows the link: sh is dash here, bash there
    (root / "bin").symlink_to("usr/bin")
    return root


def _libraries(program: str) -> list[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", said)


def tree_digest(root: Path) -> str:
    """Paths, kinds, modes, link targets and contents below ``root``."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = (
            str(path.readlink()).encode()
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else b""
        )
        digest.update(f"{path.relative_to(root)}\0{status.st_mode:o}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def running(words: str) -> list[int]:
    """Process ids on this host whose command line holds ``words``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, UnicodeDecodeError):
                continue
            if words in line:
                found.append(int(entry.name))
    return found


def until(condition: object, seconds: float = 20) -> bool:
    """Whether ``condition()`` came true in time."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


@contextmanager
def python(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """This Python, running ``code``; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# Enters a user namespace of its own in which we are user 1000 and files are still ours, so that
# the kernel can be made to refuse without touching this host's settings.
OTHER_USER = """
import ctypes, os, sys
outside = (os.geteuid(), os.getegid())
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000) != 0:
    print("SKIP: this host lets nobody make a user namespace")
    sys.exit(0)
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"{USER} {outside[0]} 1")
open("/proc/self/gid_map", "w").write(f"{USER} {outside[1]} 1")
assert os.geteuid() == USER
"""
NO_NAMESPACES = (
    OTHER_USER.replace("USER", "1000")
    + """
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""
)

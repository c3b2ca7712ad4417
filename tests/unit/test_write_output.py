"""Where a person's output goes: over files in one step, into devices and pipes as they stand."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from pinwheel.errors import DiskFullError, NotWritableError
from pinwheel.files import write_output

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
NULL, FULL, DISK, MEMORY = (1, 3), (1, 7), (7, 250), (1, 1)


def node(path: Path, kind: int, device: tuple[int, int]) -> Path:
    try:
        os.mknod(path, kind | 0o600, os.makedev(*device))
    except OSError as error:
        pytest.skip(f"no devices can be made here: {error}")
    return path


def test_a_file_is_replaced_in_one_step_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(b"old")
    path.chmod(0o600)
    before = path.stat().st_ino
    write_output(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_output(tmp_path / "deep" / "b.xml", b"x")
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "b.xml"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(tmp_path: Path, there: bool) -> None:
    (tmp_path / "link").symlink_to("real")
    if there:
        (tmp_path / "real").write_bytes(b"old")
    write_output(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@ROOT
def test_null_takes_all_and_stays_what_it_is(tmp_path: Path) -> None:
    path = node(tmp_path / "null", stat.S_IFCHR, NULL)
    (tmp_path / "link").symlink_to(path)
    for name in (path, tmp_path / "link"):
        write_output(name, b"x" * 100_000)
    assert stat.S_ISCHR(path.lstat().st_mode)
    assert (tmp_path / "link").is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "null"]


@ROOT
def test_a_full_device_is_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError):
        write_output(node(tmp_path / "full", stat.S_IFCHR, FULL), b"x")


@ROOT
@pytest.mark.parametrize(
    ("kind", "device", "what"),
    [(stat.S_IFBLK, DISK, "a disk"), (stat.S_IFCHR, MEMORY, "a device")],
)
def test_other_devices_are_not_even_opened(
    tmp_path: Path, kind: int, device: tuple[int, int], what: str
) -> None:
    path = node(tmp_path / "device", kind, device)
    with pytest.raises(NotWritableError, match=f"it is {what}"):
        write_output(path, b"x")
    assert stat.S_IFMT(path.lstat().st_mode) == kind


def test_a_directory_and_a_socket_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotWritableError, match="a directory"):
        write_output(tmp_path, b"x")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tmp_path)  # a socket's path may not be long
        server.bind("s")
        with pytest.raises(NotWritableError, match="a socket"):
            write_output(tmp_path / "s", b"x")
    with pytest.raises(NotWritableError):
        write_output(Path("/proc/report.xml"), b"x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(NotWritableError):
        write_output(tmp_path / "loop", b"x")


@pytest.mark.timeout(60)
def test_a_pipe_gets_everything_or_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(NotWritableError, match="nobody reads"):
        write_output(path, b"x")
    data = os.urandom(300_000)  # more than a pipe holds
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    found = bytearray()
    writer = threading.Thread(target=write_output, args=(path, data))
    writer.start()
    while len(found) < len(data):
        with suppress(BlockingIOError):
            found += os.read(reader, 1 << 16)
    writer.join()
    os.close(reader)
    assert found == data
    assert stat.S_ISFIFO(path.lstat().st_mode)


@pytest.mark.parametrize("to", ["file", "pipe"])
def test_stdout_gets_it_behind_what_else_goes_there(tmp_path: Path, to: str) -> None:
    code = (
        "import sys; from pathlib import Path; from pinwheel.files import write_output\n"
        "print('before', flush=True); write_output(Path('/dev/stdout'), b'report\\n')\n"
        "print('after', flush=True)\n"
    )
    target = tmp_path / "out"
    with target.open("wb") as file:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            stdout=file if to == "file" else subprocess.PIPE,
            check=True,
        )
    said = target.read_bytes() if to == "file" else ended.stdout
    assert said == b"before\nreport\nafter\n"
    assert Path("/dev/stdout").is_symlink()

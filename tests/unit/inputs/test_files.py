from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pinwheel.errors import BusyError, NotWritableError
from pinwheel.files import (
    atomic_write,
    file_lock,
    human_bytes,
    remove_tree,
    sha256_file,
    tree_files,
    tree_size,
    writing,
)


def test_atomic_write(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c.json"
    old = os.umask(0o077)
    try:
        atomic_write(path, b"one")
        atomic_write(path, b"two", mode=0o755)
    finally:
        os.umask(old)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o755
    assert [p.name for p in path.parent.iterdir()] == ["c.json"]


def test_atomic_write_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritableError, match="a part of the path is a file"):
        atomic_write(tmp_path / "file/x", b"")


def test_other_errors_pass_through_writing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), writing(tmp_path):
        raise FileNotFoundError(2, "x")


def test_lock_between_threads(tmp_path: Path) -> None:
    inside, most = [], []

    def work() -> None:
        with file_lock(tmp_path / "l/x.lock"):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_lock_is_refused_and_dies_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "build.lock"
    script = (
        "import sys, time; from pathlib import Path; from pinwheel.files import file_lock\n"
        "with file_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BusyError, match="build"), file_lock(path, wait=False):
        pass
    holder.kill()
    holder.wait()
    with file_lock(path, wait=False):
        pass


def test_trees(tmp_path: Path) -> None:
    root = tmp_path / "root"
    atomic_write(root / "b/x", b"123")
    atomic_write(root / "a", b"12345")
    (root / "c").hardlink_to(root / "a")
    (root / "link").symlink_to("/etc")
    assert [str(p.relative_to(root)) for p in tree_files(root)] == ["a", "b/x", "c", "link"]
    assert tree_size(root) == 8
    (root / "b").chmod(0o555)
    outside = tmp_path / "outside"
    atomic_write(outside / "kept", b"")
    (root / "out").symlink_to(outside)
    remove_tree(root)
    remove_tree(root)
    assert not root.exists()
    assert (outside / "kept").exists()


def test_small_things(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_file(tmp_path / "x").startswith("ba7816bf")
    assert [human_bytes(n) for n in (0, 999, 1000, 934e6, 1.6e9, 2e13)] == [
        "0 B", "999 B", "1.0 kB", "934.0 MB", "1.6 GB", "20.0 TB",
    ]  # fmt: skip

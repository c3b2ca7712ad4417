from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.build import zipping
from pinwheel.build.zipping import LATEST, compressor, entry_order, pack

EPOCH = 1728941239  # an odd second

parts = st.text("abcXYZ_-.é", min_size=1, max_size=6).filter(lambda p: p not in (".", ".."))
names = st.lists(parts, min_size=1, max_size=3).map("/".join)


def plant(root: Path, files: dict[str, bytes], order: list[str]) -> dict[str, bytes]:
    """Write files in the given order; names that need a file for a directory are left out."""
    for name in order:
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
        except OSError:
            files = {k: v for k, v in files.items() if k != name}
    return files


@settings(max_examples=25, deadline=None)
@given(files=st.dictionaries(names, st.binary(max_size=300), max_size=8), seed=st.integers(0, 1000))
def test_neither_order_nor_time_nor_mode_matters(files: dict[str, bytes], seed: int) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        kept = plant(Path(one), files, list(files))
        shuffled = list(kept)
        random.Random(seed).shuffle(shuffled)
        plant(Path(two), kept, shuffled)
        for path in Path(two).rglob("*"):
            if path.is_file():
                path.chmod(0o600)
            os.utime(path, (seed, seed))
        pack(Path(one), Path(one + ".whl"), EPOCH)
        pack(Path(two), Path(two + ".whl"), EPOCH)
        try:
            assert Path(one + ".whl").read_bytes() == Path(two + ".whl").read_bytes()
            with zipfile.ZipFile(one + ".whl") as archive:
                assert {n: archive.read(n) for n in archive.namelist()} == kept
        finally:
            Path(one + ".whl").unlink()
            Path(two + ".whl").unlink()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    plant(
        root,
        files := {
            "vllm/__init__.py": b"",
            "vllm/_C.abi3.so": b"\x7fELF" + b"\0" * 5000,
            "vllm-1.data/scripts/run": b"#!python\n",
            "vllm-1.dist-info/METADATA": b"m",
            "vllm-1.dist-info/RECORD": b"r",
            "vllm-1.dist-info/WHEEL": b"w",
            "zzz.py": b"z",
        },
        list(files),
    )
    return root


def test_every_entry_is_fixed(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "x.whl", EPOCH)
    with zipfile.ZipFile(tmp_path / "x.whl") as archive:
        entries = archive.infolist()
    assert [e.filename for e in entries] == [
        "vllm-1.data/scripts/run",
        "vllm/_C.abi3.so",
        "vllm/__init__.py",
        "zzz.py",
        "vllm-1.dist-info/METADATA",
        "vllm-1.dist-info/WHEEL",
        "vllm-1.dist-info/RECORD",
    ]
    assert {e.date_time for e in entries} == {(2024, 10, 14, 21, 27, 18)}
    assert {e.create_system for e in entries} == {3}
    assert {e.flag_bits for e in entries} == {0}
    assert {e.extra for e in entries} == {b""}
    modes = {e.filename: e.external_attr >> 16 for e in entries}
    assert all(stat.S_ISREG(m) for m in modes.values())
    executable = {n for n, m in modes.items() if m & 0o777 == 0o755}
    assert executable == {"vllm/_C.abi3.so", "vllm-1.data/scripts/run"}
    assert {m & 0o777 for n, m in modes.items() if n not in executable} == {0o644}


def test_times_before_1980_are_raised_and_after_2107_refused(tree: Path, tmp_path: Path) -> None:
    pack(tree, tmp_path / "old.whl", 0)
    with zipfile.ZipFile(tmp_path / "old.whl") as archive:
        assert {e.date_time for e in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    pack(tree, tmp_path / "last.whl", LATEST)
    with pytest.raises(ValueError, match="2107"):
        pack(tree, tmp_path / "late.whl", LATEST + 2)


def test_links_and_fifos_are_refused(tree: Path, tmp_path: Path) -> None:
    (tree / "link").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="link"):
        pack(tree, tmp_path / "x.whl", EPOCH)
    (tree / "link").unlink()
    os.mkfifo(tree / "fifo")
    with pytest.raises(ValueError, match="fifo"):
        pack(tree, tmp_path / "x.whl", EPOCH)


def test_nothing_is_overwritten(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_text("mine")
    with pytest.raises(FileExistsError):
        pack(tree, tmp_path / "x.whl", EPOCH)
    assert (tmp_path / "x.whl").read_text() == "mine"


def test_as_a_script_in_a_bare_interpreter_and_another_place_and_time_zone(
    tree: Path, tmp_path: Path
) -> None:
    pack(tree, tmp_path / "here.whl", EPOCH)
    script = tmp_path / "elsewhere.py"
    script.write_bytes(Path(zipping.__file__).read_bytes())
    subprocess.run(
        [sys.executable, "-I", "-S", script, tree, tmp_path / "there.whl", str(EPOCH)],
        check=True,
        cwd="/",
        umask=0o077,
        env={"TZ": "Pacific/Auckland", "LC_ALL": "C"},
    )
    assert (tmp_path / "here.whl").read_bytes() == (tmp_path / "there.whl").read_bytes()


def test_names_sort_by_bytes() -> None:
    assert entry_order(["é", "z", "a/b", "a-b", "a.dist-info/RECORD", "a.dist-info/x/RECORD"]) == [
        "a-b",
        "a/b",
        "z",
        "é",
        "a.dist-info/x/RECORD",
        "a.dist-info/RECORD",
    ]


def test_the_compressor_has_a_name() -> None:
    assert "zlib" in compressor()

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinwheel.inspect import pathscan
from pinwheel.inspect.pathscan import scan

PATHS = ("/build/", "/opt/env", "/opt/cuda", "/cache")


def found(tmp_path: Path, data: bytes) -> list[tuple[str, str]]:
    (tmp_path / "f").write_bytes(data)
    return [(f.path, f.text) for f in scan(tmp_path / "f", "f", PATHS)]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b"\0/build/src/csrc/x.cu\0", "/build/"),
        (b"/opt/env/lib/python3.11", "/opt/env"),
        (b"/opt/env", "/opt/env"),
        (b'gcc -I/opt/cuda/include -c "x.c"', "/opt/cuda"),
        (b"-isystem/opt/cuda/include", "/opt/cuda"),
        (b"CUDA_HOME=/opt/cuda", "/opt/cuda"),
        (b"a:/opt/cuda/lib:b", "/opt/cuda"),
        (b"file:///opt/env/x", "/opt/env"),
        (b"open('/cache')", "/cache"),
    ],
)
def test_paths_that_begin_here(tmp_path: Path, data: bytes, path: str) -> None:
    assert [p for p, _ in found(tmp_path, data)] == [path]


@pytest.mark.parametrize(
    "data",
    [
        b"https://host.example/build/x",
        b"immutable/cached",
        b"/opt/environment",
        b"/opt/cuda-12.4/lib",
        b"~/cache",
        b"../build/x",
        b"f'{root}/cache'",
        b"${HOME}/cache",
        b"$HOME/cache",
        b"/build",
        b"/dvs/p4/build/sw/rel",
    ],
)
def test_other_paths_are_left_alone(tmp_path: Path, data: bytes) -> None:
    assert found(tmp_path, data) == []


def test_evidence_names_offset_and_text(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"\0" * 100 + b"\0/build/src/a.cpp\0\xff")
    (find,) = scan(tmp_path / "x.so", "vllm/x.so", PATHS)
    assert str(find) == "vllm/x.so at byte 101: /build/src/a.cpp"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from([b"/build/", b"/opt/env", b"\0", b"x", b"/opt/cuda/", b" " * 37, b"y" * 90])
    ),
    chunk=st.integers(1, 300),
)
def test_where_blocks_end_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], chunk: int
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"".join(pieces))
    with monkeypatch.context() as patch:
        patch.setattr(pathscan, "CHUNK", 1 << 20)
        whole = scan(file, "f", PATHS)
        patch.setattr(pathscan, "CHUNK", chunk)
        assert scan(file, "f", PATHS) == whole


def test_many_finds_are_bounded(tmp_path: Path) -> None:
    assert len(found(tmp_path, b"\0/build/x" * 5000)) == pathscan.MAX_FINDS

"""Assembling: order, atomicity, errors. The parts are tiny wheels of our own with the real
layout; real parts are assembled in tests/integration/test_toolkit_real.py."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pinwheel.console import Console
from pinwheel.errors import MissingInputsError, ToolkitError, UnpackError
from pinwheel.toolkit.assemble import Toolkit, assemble, toolkit_key
from pinwheel.toolkit.layout import EPOCH, tree_digest
from pinwheel.toolkit.spec import Part, ToolkitSpec, load_spec

TOP = "nvidia/cu13"
CUDA_H = b"CUDA_ERROR_STUB_LIBRARY = 34,\nCUresult CUDAAPI cuInit(unsigned int Flags);\n"
COMPILER = {
    f"{TOP}/bin/nvcc": b"\x7fELF Cuda compilation tools, release 13.0, V13.0.88",
    **{
        f"{TOP}/bin/{name}": b"\x7fELF"
        for name in ("cudafe++", "fatbinary", "nvlink", "ptxas", "bin2c", "cuobjdump", "nvdisasm")
    },
    f"{TOP}/bin/nvcc.profile": b"NVIDIA's own",
    f"{TOP}/bin/crt/link.stub": b"stub",
    f"{TOP}/nvvm/bin/cicc": b"\x7fELF",
    f"{TOP}/nvvm/libdevice/libdevice.10.bc": b"BC",
    f"{TOP}/lib/libnvvm.so.4": b"\x7fELF",
    "compiler-1.dist-info/RECORD": b"",
}
RUNTIME = {
    f"{TOP}/include/cuda.h": CUDA_H,
    f"{TOP}/include/cuda_runtime.h": b"",
    f"{TOP}/include/crt/host_config.h": b"",
    f"{TOP}/lib/libcudart.so.13": b"\x7fELF",
    f"{TOP}/lib/libcudart_static.a": b"a",
    f"{TOP}/lib/libcudadevrt.a": b"a",
    f"{TOP}/lib/libhuge_static.a": b"a",
}


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def spec() -> ToolkitSpec:
    parts = (Part("compiler", "1"), Part("runtime", "1"))
    return dataclasses.replace(load_spec("wheels-13.0.88"), parts=parts)


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Path]:
    return {
        "compiler": wheel(tmp_path / "compiler.whl", COMPILER),
        "runtime": wheel(tmp_path / "runtime.whl", RUNTIME),
    }


def compile_c(source: Path, out: Path, args: Sequence[str]) -> None:
    assert source.parent == out.parent
    assert "-Wl,-soname,libcuda.so.1" in args
    out.write_bytes(b"\x7fELF" + source.read_bytes())


def make(spec: ToolkitSpec, parts: dict[str, Path], dest: Path, key: str = "") -> Toolkit:
    return assemble(spec, parts, dest, Console(quiet=True), compile_c=compile_c, key=key)


def test_the_tree(spec: ToolkitSpec, parts: dict[str, Path], tmp_path: Path) -> None:
    dest = tmp_path / "toolkits" / "one"
    toolkit = make(spec, parts, dest)
    assert (toolkit.nvcc_version, toolkit.version, toolkit.line) == ("13.0.88", "13.0.88", "13.0")
    assert (dest / "lib64/libcudart.so").readlink() == Path("libcudart.so.13")
    assert (dest / "nvvm/lib64/libnvvm.so").readlink() == Path("libnvvm.so.4")
    assert (dest / "lib64/stubs/libcuda.so.1").readlink() == Path("libcuda.so")
    assert "$(_HERE_)" in (dest / "bin/nvcc.profile").read_text()
    assert not (dest / "lib64/libhuge_static.a").exists()
    assert (dest / "bin/nvcc").stat().st_mode & 0o777 == 0o755
    assert {p.lstat().st_mtime for p in dest.rglob("*")} == {EPOCH}
    # Nothing else is left beside it.
    assert sorted(p.name for p in dest.parent.iterdir()) == [
        *("one", "one.json", "one.listing", "one.lock"),
    ]


def test_same_parts_same_tree_whatever_their_order(
    spec: ToolkitSpec, parts: dict[str, Path], tmp_path: Path
) -> None:
    one = make(spec, parts, tmp_path / "one")
    two = make(spec, dict(reversed(parts.items())), tmp_path / "two")
    assert one.digest == two.digest


def test_a_finished_tree_is_taken_again_only_for_the_same_key(
    spec: ToolkitSpec, parts: dict[str, Path], tmp_path: Path
) -> None:
    digests = {"compiler": "a" * 64, "runtime": "b" * 64}
    key = toolkit_key(spec, digests)
    assert key == toolkit_key(spec, dict(reversed(digests.items())))
    assert key != toolkit_key(spec, {**digests, "runtime": "c" * 64})
    dest = tmp_path / "tk"
    first = make(spec, parts, dest, key)
    inode = dest.stat().st_ino
    assert make(spec, parts, dest, key) == first
    assert dest.stat().st_ino == inode
    assert make(spec, parts, dest, "other").digest == first.digest
    assert dest.stat().st_ino != inode
    (tmp_path / "tk.json").write_text("{")
    assert make(spec, parts, dest, "other").digest == first.digest


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: os.truncate(tree / "nvvm/bin/cicc", 1),
        lambda tree: (tree / "include/cuda.h").unlink(),
        lambda tree: (tree / "include/mine.h").touch(),
        lambda tree: (tree / "bin/ptxas").chmod(0o644),
        lambda tree: (tree / "lib64/libcudart.so").unlink(),
    ],
)
def test_a_tree_that_was_changed_is_made_anew(
    spec: ToolkitSpec,
    parts: dict[str, Path],
    tmp_path: Path,
    change: Callable[[Path], object],
) -> None:
    dest = tmp_path / "toolkits" / "tk"
    first = make(spec, parts, dest, "key")
    change(dest)
    assert tree_digest(dest) != first.digest
    assert make(spec, parts, dest, "key") == first
    assert tree_digest(dest) == first.digest
    names = ["tk", "tk.json", "tk.listing", "tk.lock"]
    assert sorted(p.name for p in dest.parent.iterdir()) == names


def test_leftovers_of_a_killed_run_do_no_harm(
    spec: ToolkitSpec, parts: dict[str, Path], tmp_path: Path
) -> None:
    clean = make(spec, parts, tmp_path / "clean")
    left = tmp_path / "tk.partial" / "tree" / "include"
    left.mkdir(parents=True)
    (left / "junk.h").touch()
    (tmp_path / "tk").mkdir()  # renamed, but its sidecar not written yet
    assert make(spec, parts, tmp_path / "tk", "k").digest == clean.digest
    assert not (tmp_path / "tk.partial").exists()


def test_every_missing_part_is_named(spec: ToolkitSpec, tmp_path: Path) -> None:
    with pytest.raises(MissingInputsError) as caught:
        make(spec, {}, tmp_path / "tk")
    assert caught.value.evidence == ("compiler 1", "runtime 1")


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("compiler", {f"{TOP}/nvvm/bin/cicc": None}, "incomplete"),
        ("compiler", {f"{TOP}/bin/nvcc": b"\x7fELF"}, "no known version"),
        (
            "compiler",
            {f"{TOP}/bin/nvcc": b"Cuda compilation tools, release 12.4, V12.4.131"},
            "holds nvcc 12.4.131",
        ),
        ("runtime", {f"{TOP}/include/cuda.h": b"nothing"}, "no driver API"),
        ("runtime", {"nvidia/cu13/sbin/new": b""}, "no layout rule"),
        ("runtime", {f"{TOP}/bin/ptxas": b"another"}, "different contents"),
    ],
)
def test_parts_that_do_not_make_the_toolkit(
    spec: ToolkitSpec,
    parts: dict[str, Path],
    tmp_path: Path,
    part: str,
    change: dict[str, bytes | None],
    says: str,
) -> None:
    files = {**(COMPILER if part == "compiler" else RUNTIME), **change}
    kept = {name: data for name, data in files.items() if data is not None}
    parts[part] = wheel(tmp_path / f"{part}.whl", kept)
    with pytest.raises(ToolkitError) as caught:
        make(spec, parts, tmp_path / "tk", "k")
    assert says in caught.value.what
    assert not (tmp_path / "tk").exists()
    assert not (tmp_path / "tk.json").exists()


def test_a_damaged_part_is_named_and_nothing_is_left(
    spec: ToolkitSpec, parts: dict[str, Path], tmp_path: Path
) -> None:
    parts["runtime"].write_bytes(parts["runtime"].read_bytes()[:200])
    with pytest.raises(UnpackError, match=r"runtime\.whl"):
        make(spec, parts, tmp_path / "tk")
    assert not (tmp_path / "tk").exists()

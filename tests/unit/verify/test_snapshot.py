"""Snapshots: written and read, damaged ones refused; what is made of a torch's wheels."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import zstandard
from abi_kit import NEW_FLAG, OLD_FLAG, library, torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.errors import ArtifactError, SnapshotError
from pinwheel.matrix.models import load_matrix
from pinwheel.verify import abi_system
from pinwheel.verify import snapshot as module
from pinwheel.verify.abi_make import Found, cxx11_abi, loading, make, preloads
from pinwheel.verify.abi_system import SystemNames
from pinwheel.verify.snapshot import (
    FORMAT,
    Loaded,
    Provider,
    Snapshot,
    builds,
    load,
    pack,
    unpack,
)

PROJECT = Path(__file__).parents[3]


def text_of(snapshot: Snapshot) -> str:
    return module.text_of(pack(snapshot), "a")


@cache
def good() -> str:
    return text_of(torch())


def packed(text: str) -> bytes:
    return zstandard.compress(text.encode())


def same(a: Snapshot, b: Snapshot) -> bool:
    return (a.build, a.cxx11_abi, a.wheels, a.libraries, a.groups) == (
        b.build, b.cxx11_abi, b.wheels, b.libraries, b.groups,
    )  # fmt: skip


def test_what_was_written_is_read() -> None:
    written = torch(cpu=["_ZN2at1fEv", "_ZN2at1gEv"])
    code = replace(written.libraries[0], cubins={"8.0": 3, "9.0a": 1}, ptx={"9.0": 1})
    written = replace(written, libraries=(code, *written.libraries[1:]))
    assert same(unpack(pack(written), "a"), written)


def test_the_same_wheels_in_any_order_are_the_same_bytes() -> None:
    found = [
        library("torch/lib/libc10.so", [OLD_FLAG, "b", "a"]),
        library("nvidia/x/lib/libx.so.1", ["x@libx.so.1", "a"], wheel=1),
        library("torch/lib/liby.so", ["a", "b"]),
    ]

    def made(libraries: list[Found]) -> bytes:
        wheels = torch().wheels
        return pack(make("2.4.0+cu121", wheels, libraries, entry=[], patterns=[]))

    again = [replace(f, exports=tuple(reversed(f.exports))) for f in reversed(found)]
    assert made(found) == made(again)


def test_names_that_libraries_share_are_kept_once() -> None:
    snapshot = torch(cpu=["_Zshared", "_Zown"], python=["_Zshared"])
    assert text_of(snapshot).count("_Zshared") == 1
    found = snapshot.find({"_Zshared", "_Zown", "_Znone"})
    assert {n: [snapshot.libraries[p.library].soname for p in of] for n, of in found.items()} == {
        "_Zshared": ["libtorch_cpu.so", "libtorch_python.so"],
        "_Zown": ["libtorch_cpu.so"],
    }


def test_names_of_torch_alone() -> None:
    snapshot = torch(cpu=["_ZN2at1fEv", "_ZN2at1fEi", "_ZN2at2ffEv", "_ZN2a"])
    assert list(snapshot.torch_names) == sorted(
        {*snapshot.names} - {"cudaMalloc", "cublasHgemm", "nvrtcCompileProgram", "cufftExecC2C"}
    )
    assert list(snapshot.beginning("_ZN2at1f")) == ["_ZN2at1fEi", "_ZN2at1fEv"]
    assert list(snapshot.beginning("_ZZ")) == []


@settings(deadline=None)
@given(
    st.builds(
        Provider,
        st.integers(0, 10_000),
        st.text("libcudart.so12_GLIBC", max_size=20),
        st.booleans(),
    )
)
def test_a_provider_is_read_as_it_was_written(provider: Provider) -> None:
    if not provider.version:
        provider = replace(provider, default=True)
    assert Provider.parse(str(provider)) == provider


@pytest.mark.parametrize("text", ["", "x", "1@", "1@@", "@V", "-1@V", "1.5"])
def test_no_provider(text: str) -> None:
    with pytest.raises(ValueError, match="no provider"):
        Provider.parse(text)


# --- damage --------------------------------------------------------------------------------------


def changed(**values: object) -> bytes:
    """A snapshot whose header has other values."""
    first, header, *names = good().split("\n")
    return packed("\n".join([first, json.dumps({**json.loads(header), **values}), *names]))


@cache
def damaged() -> dict[str, bytes]:
    whole = pack(torch())
    text = good()
    header = json.loads(text.split("\n")[1])
    return {
        "empty": b"",
        "no zstd": b"torch",
        "cut short": whole[:-20],
        "one bit": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "without size": zstandard.ZstdCompressor(write_content_size=False).compress(text.encode()),
        "no text": packed(FORMAT + "\n"),
        "bytes": zstandard.compress(b"\xff\xfe" + text.encode()),
        "another format": packed(text.replace(FORMAT, FORMAT[:-1] + "2", 1)),
        "no header": packed(FORMAT + "\n[]\n"),
        "deep header": packed(FORMAT + "\n" + "[" * 100_000 + "\n"),
        "a name too many": packed(text + "x\n"),
        "a name too few": packed(text[: text.rindex("\n", 0, -1) + 1]),
        "no end": packed(text[:-1]),
        "no wheels": changed(wheels=[]),
        "a wheel of something else": changed(wheels=[{"project": "torch"}]),
        "no flag": changed(**{"cxx11-abi": None}),
        "no version": changed(build="new"),
        "a library in no wheel": changed(
            libraries=[{**library, "wheel": 9} for library in header["libraries"]]
        ),
        "a library without a name": changed(
            libraries=[{**library, "soname": ""} for library in header["libraries"]]
        ),
        "libraries that names are not of": changed(libraries=header["libraries"][:1]),
        "a negative number of names": changed(groups=[[-1, ["0"]]]),
        "no number": changed(groups=[["1", ["0"]]]),
        "a group of nothing": changed(groups=[[1, []]]),
    }


@pytest.mark.parametrize("how", list(damaged()))
def test_damage_is_refused(how: str) -> None:
    with pytest.raises(SnapshotError) as error:
        unpack(damaged()[how], "2.4.0+cu121.zst")
    assert "2.4.0+cu121.zst cannot be read" in error.value.what
    assert error.value.evidence[0]


def test_what_would_take_all_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack(torch())
    monkeypatch.setattr(module, "MAX_TEXT", 1000)
    with pytest.raises(SnapshotError):
        unpack(data, "a")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        unpack(data, "a")


@settings(deadline=None)
@given(st.integers(0, 10_000), st.text(max_size=10))
def test_any_changed_text_is_refused_or_read(at: int, text: str) -> None:
    whole = good()
    at %= len(whole)
    with suppress(SnapshotError):
        unpack(packed(whole[:at] + text + whole[at + 1 :]), "a")


# --- how a snapshot is made ----------------------------------------------------------------------

INIT = '''
import ctypes

def _preload_cuda_deps(lib_folder, lib_name):
    """libnot.so.*"""

def _load_global_deps() -> None:
    lib_name = "libtorch_global_deps" + ".so"
    try:
        ctypes.CDLL(lib_path, mode=ctypes.RTLD_GLOBAL)
        with open("/proc/self/maps") as f:
            if "libcudart.so" not in f.read():
                return
        _preload_cuda_deps("cuda_nvrtc", "libnvrtc.so.*[0-9]")
        _preload_cuda_lib(lib_folder="nvjitlink", lib_name="libnvJitLink.so.*[0-9]")
    except OSError as err:
        for folder, name in {"cublas": "libcublas.so.*[0-9]"}.items():
            _preload_cuda_deps(folder, name)
        _preload_cuda_deps("cufft", "libcufft.so.*[0-9]")
'''


def test_what_import_torch_preloads_is_read_of_its_source() -> None:
    assert preloads(INIT) == ("libnvJitLink.so.*[0-9]", "libnvrtc.so.*[0-9]")


LATER = '''
def _preload_cuda_lib(lib_folder: str, lib_name: str, required: bool = True) -> None:
    """Preloads libnothing.so."""

def _preload_cuda_deps(err=None, required: bool = True) -> None:
    """libnot.so"""
    cuda_libs = [
        ("cublas", "libcublasLt.so.*[0-9]"),
        ("nvshmem", "libnvshmem_host.so.*[0-9]"),
    ]
    if err is not None and not [lib for _, lib in cuda_libs if lib in err.args[0]]:
        raise err
    for lib_folder, lib_name in cuda_libs:
        _preload_cuda_lib(lib_folder, lib_name, required=required)
    _preload_cuda_lib("nvtx", "libnvToolsExt.so.*[0-9]", required=False)

def _load_global_deps() -> None:
    try:
        ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)
        try:
            if "libcudart.so" not in _maps:
                return
            _preload_cuda_deps(required=False)
        except Exception:
            pass
    except OSError as err:
        _preload_cuda_deps(err)
'''


def test_what_later_ones_list_in_a_function_of_its_own() -> None:
    assert preloads(LATER) == (
        "libcublasLt.so.*[0-9]",
        "libnvToolsExt.so.*[0-9]",
        "libnvshmem_host.so.*[0-9]",
    )


def test_what_it_does_only_after_an_error_does_not_count() -> None:
    assert preloads(LATER.replace("_preload_cuda_deps(required=False)", "pass")) == ()


def test_a_torch_that_loads_in_another_way_is_refused() -> None:
    with pytest.raises(SnapshotError, match="how this torch loads"):
        preloads("import ctypes\n")


def test_what_import_torch_loads() -> None:
    found = [
        library("torch/lib/libtorch_global_deps.so", [], ["libgomp-1.so.1", "libnone.so"]),
        replace(library("torch/lib/libgomp-1.so.1"), soname="libgomp.so.1"),
        library("torch/lib/libtorch_python.so", [], ["libtorch.so"]),
        library("torch/lib/libtorch.so", [], ["libtorch_python.so", "libcublas.so.12"]),
        library("nvidia/cublas/lib/libcublas.so.12", wheel=1),
        library("nvidia/nvrtc/lib/libnvrtc.so.12", [], ["libhelp.so"], wheel=1),
        library("nvidia/nvrtc/lib/libhelp.so", wheel=1),
        library("nvidia/nvrtc/lib/libnvrtc-builtins.so.12", wheel=1),
    ]
    loaded = loading(found, ["libtorch_python.so"], ["libnvrtc.so.*[0-9]"])
    assert {path.rpartition("/")[2]: how.value for path, how in loaded.items()} == {
        "libtorch_global_deps.so": "global",
        "libgomp-1.so.1": "global",
        "libtorch_python.so": "local",
        "libtorch.so": "local",
        "libcublas.so.12": "local",
        "libnvrtc.so.12": "local",
        "libhelp.so": "local",
        "libnvrtc-builtins.so.12": "no",
    }


def test_a_library_is_found_by_the_name_it_was_loaded_under() -> None:
    renamed = replace(library("torch/lib/libgomp-1.so.1"), soname="libgomp.so.1")
    snapshot = torch(more=[renamed])
    assert snapshot.by_name["libgomp.so.1"] == snapshot.by_name["libgomp-1.so.1"]
    assert snapshot.libraries[snapshot.by_name["libgomp.so.1"]].loaded is Loaded.NO


@pytest.mark.parametrize(
    ("names", "flag"),
    [
        ([OLD_FLAG, "_ZN3c105ErrorC1Ev", "memcpy", "_Zwrong"], False),
        ([NEW_FLAG, "_ZN3c105ErrorC1Ev"], True),
    ],
)
def test_the_flag(names: list[str], flag: bool) -> None:
    assert cxx11_abi(names) is flag


@pytest.mark.parametrize("names", [[], ["_ZN3c105ErrorC1Ev"], [OLD_FLAG, NEW_FLAG]])
def test_a_flag_that_cannot_be_told_is_refused(names: list[str]) -> None:
    with pytest.raises(SnapshotError, match="ABI flag"):
        cxx11_abi(names)


# --- the system ----------------------------------------------------------------------------------

SYSTEM = SystemNames(
    packages=({"name": "libc6", "version": "2.36-9", "sha256": "0" * 64},),
    libraries={"libc.so.6": ("malloc", "modf"), "libm.so.6": ("modf", "sin")},
)


def test_system_names_are_read_as_they_were_written() -> None:
    assert abi_system.unpack(abi_system.pack(SYSTEM)) == SYSTEM
    assert abi_system.pack(SYSTEM) == abi_system.pack(SYSTEM)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pack(torch()),
        packed(abi_system.FORMAT + "\n{}\n"),
        packed(abi_system.FORMAT + "\n[1]\n"),
        packed(abi_system.FORMAT + '\n{"libraries": [["a", 2]], "packages": []}\nx\n'),
        packed(abi_system.FORMAT + '\n{"libraries": [["a", 0]], "packages": []}\nx\n'),
        packed(abi_system.FORMAT + '\n{"libraries": [["a", "1"]], "packages": []}\nx\n'),
    ],
)
def test_damaged_system_names_are_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        abi_system.unpack(data)


def test_the_system_names_there_are() -> None:
    owners = abi_system.owners()
    assert owners["malloc"] == ("libc.so.6",)
    assert owners["modf"] == ("libc.so.6", "libm.so.6")
    assert owners["_ZSt9terminatev"] == ("libstdc++.so.6",)
    assert owners["_Unwind_Resume"] == ("libgcc_s.so.1",)
    assert {s for of in owners.values() for s in of} <= abi_system.system_libraries("EM_X86_64")


# --- the snapshots there are ---------------------------------------------------------------------


def test_builds_are_in_order_and_in_the_matrix() -> None:
    rows = load_matrix(PROJECT / "arch_matrix.toml").torch
    assert builds()
    assert [build for build in rows if build in builds()] == list(builds())


def test_a_build_that_is_not_known_names_those_that_are() -> None:
    with pytest.raises(SnapshotError) as error:
        load("0.1.0+cu100")
    assert builds()[0] in error.value.evidence[0]


def test_a_damaged_snapshot_is_not_the_wheels_fault() -> None:
    """Its own exit code: 60 tells people to throw the wheel away."""
    with pytest.raises(SnapshotError) as error:
        unpack(b"", "2.4.0+cu121.zst")
    assert not isinstance(error.value, ArtifactError)
    assert error.value.exit_code == 61


@pytest.mark.parametrize("build", builds())
def test_each_snapshot_agrees_with_the_matrix(build: str) -> None:
    row = load_matrix(PROJECT / "arch_matrix.toml").torch[build]
    snapshot = load(build)
    assert snapshot.build == build
    assert snapshot.cxx11_abi is row.cxx11_abi
    assert snapshot.wheels[0].filename == row.source
    assert all(len(wheel.sha256) == 64 and wheel.size for wheel in snapshot.wheels)
    versions = {w.project.removesuffix("-cu12").removesuffix("-cu13"): w for w in snapshot.wheels}
    assert versions["nvidia-cudnn"].version == row.cudnn
    assert versions["nvidia-nccl"].version == row.nccl
    by_name = {library.soname: library for library in snapshot.libraries}
    for name in ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so"):
        assert by_name[name].loaded is Loaded.LOCAL
    runtime = next(name for name in by_name if name.startswith("libcudart.so."))
    assert by_name[runtime].loaded is Loaded.GLOBAL
    assert by_name[runtime].versions == (runtime,)
    # No sm_89 of its own in any of them, and still it runs there: see the machine code rules.
    assert set(by_name["libtorch_cuda.so"].cubins or ()) >= set(row.capabilities or ())

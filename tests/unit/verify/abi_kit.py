"""Libraries and torch builds made of names alone, for the tests of the ABI half of verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pinwheel.inspect.elf import Binding, Elf, Symbol, VersionNeed
from pinwheel.verify.abi_make import Found, make
from pinwheel.verify.snapshot import Snapshot, Wheel

OLD_FLAG = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
NEW_FLAG = (
    "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
)
#: What an extension that uses torch NEEDs.
TORCH = ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so")
SYSTEM = ("libstdc++.so.6", "libc.so.6")


def undefined(name: str, *, weak: bool = False) -> Symbol:
    """``name``, ``name@version`` or ``name@version@library``."""
    name, _, rest = name.partition("@")
    version, _, library = rest.partition("@")
    return Symbol(
        name=name,
        version=version,
        library=library,
        binding=Binding.WEAK if weak else Binding.GLOBAL,
        defined=False,
        exported=False,
        default=True,
    )


def exported(name: str) -> Symbol:
    """``name`` or ``name@version``, that version being the default."""
    name, _, version = name.partition("@")
    return Symbol(
        name=name,
        version=version,
        library="",
        binding=Binding.GLOBAL,
        defined=True,
        exported=True,
        default=True,
    )


def elf(
    name: str = "vllm/_C.abi3.so",
    *,
    needs: Iterable[str] = (),
    weak: Iterable[str] = (),
    exports: Iterable[str] = (),
    needed: Iterable[str] = (*TORCH, *SYSTEM),
    soname: str = "",
    rpath: Iterable[str] = (),
    machine: str = "EM_X86_64",
) -> Elf:
    """A library that needs and exports names."""
    symbols = [undefined(n) for n in needs] + [undefined(n, weak=True) for n in weak]
    return Elf(
        name=name,
        bits=64,
        little_endian=True,
        machine=machine,
        type="ET_DYN",
        dynamic=True,
        soname=soname,
        needed=tuple(needed),
        search_paths=tuple(("RPATH", path) for path in rpath),
        also_loads=(),
        version_needs=tuple(
            sorted({VersionNeed(s.library, s.version) for s in symbols if s.version})
        ),
        versions_defined=(),
        symbols=(*symbols, *(exported(n) for n in exports)),
        sections=(),
        executable_stack=False,
        interpreter="",
        build_id="",
        isa=(),
    )


def library(
    path: str, exports: Iterable[str] = (), needed: Iterable[str] = (), wheel: int = 0
) -> Found:
    """A library of torch (wheel 0) or of its CUDA wheel (wheel 1); ``name@version`` exports."""
    parts = [name.partition("@") for name in exports]
    return Found(
        wheel=wheel,
        path=path,
        soname=path.rpartition("/")[2],
        needed=tuple(needed),
        versions=tuple(sorted({version for _, _, version in parts if version})),
        exports=tuple((name, version, True) for name, _, version in parts),
    )


def torch(
    build: str = "2.4.0+cu121",
    cpu: Iterable[str] = (),
    *,
    flag: int = 0,
    cuda: str = "12",
    runtime: Iterable[str] = ("cudaMalloc",),
    python: Iterable[str] = (),
    more: Sequence[Found] = (),
    wheels: Mapping[str, str] | None = None,
) -> Snapshot:
    """A torch build of the usual shape: what libtorch_cpu and libtorch_python export, and CUDA.

    It preloads libcudart (through libtorch_global_deps) and, for itself alone, libnvrtc; libcufft
    is there and nothing loads it.
    """
    cudart, cublas = f"libcudart.so.{cuda}", f"libcublas.so.{cuda}"

    def of(name: str, directory: str, exports: Iterable[str], needed: Iterable[str] = ()) -> Found:
        return library(
            f"nvidia/{directory}/lib/{name}", [f"{e}@{name}" for e in exports], needed, wheel=1
        )

    libraries = [
        library("torch/lib/libtorch_global_deps.so", [], [cudart]),
        library("torch/lib/libc10.so", [OLD_FLAG if not flag else NEW_FLAG], ["libc.so.6"]),
        library("torch/lib/libc10_cuda.so", [], ["libc10.so", cudart]),
        library("torch/lib/libtorch_cpu.so", cpu, ["libc10.so"]),
        library("torch/lib/libtorch_cuda.so", [], ["libc10_cuda.so", "libtorch_cpu.so", cublas]),
        library("torch/lib/libtorch.so", [], ["libtorch_cpu.so", "libtorch_cuda.so"]),
        library("torch/lib/libtorch_python.so", python, ["libtorch.so"]),
        of(cudart, "cuda_runtime", runtime),
        of(cublas, "cublas", ["cublasHgemm"]),
        of("libnvrtc.so.12", "cuda_nvrtc", ["nvrtcCompileProgram"]),
        of("libcufft.so.11", "cufft", ["cufftExecC2C"]),
        *more,
    ]
    return make(
        build,
        [
            _wheel("torch", build.partition("+")[0]),
            *(_wheel(n, v) for n, v in (wheels or {"nvidia-cuda-cu12": "12.1"}).items()),
        ],
        libraries,
        entry=["libtorch_python.so"],
        patterns=["libnvrtc.so.*[0-9]"],
    )


def _wheel(project: str, version: str) -> Wheel:
    return Wheel(
        project=project,
        version=version,
        filename=f"{project}-{version}-py3-none-any.whl",
        sha256="0" * 64,
        size=1,
        pinned=True,
    )

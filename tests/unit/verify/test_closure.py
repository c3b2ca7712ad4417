"""Where undefined symbols come from: one test for each answer there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from abi_kit import SYSTEM, TORCH, elf, library, torch

from pinwheel.errors import ArtifactError
from pinwheel.inspect.elf import Elf
from pinwheel.verify.closure import Answer, Family, Need, close, close_all
from pinwheel.verify.snapshot import Snapshot

RUNTIME = "cudaMalloc@libcudart.so.12@libcudart.so.12"


def answer(library: Elf, snapshot: Snapshot | None = None, *family: Elf) -> tuple[Answer, str]:
    """How the only undefined symbol of a library is resolved."""
    closure = close(library, snapshot or torch(), family)
    (symbol,) = closure.symbols
    return symbol.answer, symbol.library


def test_a_torch_library_has_it() -> None:
    assert answer(elf(needs=["_ZN2at1fEv"]), torch(cpu=["_ZN2at1fEv"])) == (
        Answer.TORCH,
        "libtorch_cpu.so",
    )


def test_a_torch_library_has_it_that_only_another_one_needs() -> None:
    found = elf(needs=["_ZN2at1fEv"], needed=["libtorch.so"])
    assert answer(found, torch(cpu=["_ZN2at1fEv"]))[0] is Answer.TORCH


def test_a_cuda_library_has_it_under_the_version_asked_for() -> None:
    assert answer(elf(needs=[RUNTIME], needed=[*TORCH, "libcudart.so.12"])) == (
        Answer.CUDA,
        "libcudart.so.12",
    )


def test_a_cuda_library_of_another_version_does_not_count() -> None:
    found = elf(needs=[RUNTIME], needed=[*TORCH, "libcudart.so.12"])
    closure = close(found, torch(cuda="13"))
    assert [s.name for s in closure.unresolved] == ["cudaMalloc"]
    (missing,) = closure.missing
    assert (missing.name, missing.need, missing.nearest) == (
        "libcudart.so.12",
        Need.NOWHERE,
        "libcudart.so.13",
    )
    assert not closure.fits


def test_without_a_version_the_default_one_counts() -> None:
    found = elf(needs=["cudaMalloc"], needed=[*TORCH, "libcudart.so.12"])
    assert answer(found)[0] is Answer.CUDA


def test_a_definition_without_version_serves_every_reference() -> None:
    assert answer(elf(needs=["f@V_2@libtorch_cpu.so"]), torch(cpu=["f"]))[0] is Answer.TORCH


def test_what_only_torch_needs_is_a_warning() -> None:
    # vllm 0.6.3's _C does this with cublasHgemm.
    found = close(elf(needs=["cublasHgemm"]), torch())
    assert [(s.answer, s.library) for s in found.symbols] == [(Answer.PRELOADED, "libcublas.so.12")]
    assert found.fits


def test_what_torch_loads_for_everyone_is_a_warning() -> None:
    found = elf(needs=[RUNTIME], needed=["libc.so.6"])
    assert answer(found) == (Answer.PRELOADED, "libcudart.so.12")


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("_Z16THPVariable_WrapN2at10TensorBaseE", "libtorch_python.so"),
        ("nvrtcCompileProgram", "libnvrtc.so.12"),  # loaded, but not for everyone
        ("cufftExecC2C", "libcufft.so.11"),
        ("cuMemAlloc_v2", "libcuda.so.1"),
        ("nvmlInit_v2", "libnvidia-ml.so.1"),
    ],
)
def test_what_is_there_but_not_needed_is_missing_and_named(name: str, where: str) -> None:
    snapshot = torch(python=["_Z16THPVariable_WrapN2at10TensorBaseE"])
    assert answer(elf(needs=[name]), snapshot) == (Answer.UNRESOLVED, where)
    found = elf(needs=[name], needed=[*TORCH, where])
    assert answer(found, snapshot)[0] is not Answer.UNRESOLVED


def test_the_driver() -> None:
    found = elf(needs=["cuMemAlloc_v2"], needed=["libcuda.so.1"])
    assert answer(found) == (Answer.DRIVER, "libcuda.so.1")
    assert close(found, torch()).fits


def test_the_interpreter() -> None:
    assert answer(elf(needs=["PyModule_Create2"])) == (Answer.PYTHON, "")
    assert answer(elf(needs=["_Py_Dealloc"])) == (Answer.PYTHON, "")
    assert answer(elf(needs=["Pyramid"]))[0] is Answer.UNRESOLVED


@pytest.mark.parametrize(
    "symbol",
    [
        "memcpy@GLIBC_2.14@libc.so.6",
        "expf@GLIBC_2.27@libm.so.6",
        "__cxa_throw@CXXABI_1.3@libstdc++.so.6",
        "_Unwind_Resume@GCC_3.0@libgcc_s.so.1",
        "__tls_get_addr@GLIBC_2.3@ld-linux-x86-64.so.2",
    ],
)
def test_the_system(symbol: str) -> None:
    of = symbol.rpartition("@")[2]
    found = elf(needs=[symbol], needed=[of])
    assert answer(found) == (Answer.SYSTEM, of)
    assert close(found, torch()).fits


def test_a_system_library_that_nothing_needs_is_not_there() -> None:
    found = elf(needs=["expf@GLIBC_2.27@libm.so.6"], needed=["libc.so.6"])
    assert answer(found) == (Answer.UNRESOLVED, "libm.so.6")


def test_the_system_without_a_version() -> None:
    # DeepGEMM's dlopen: libc.so.6 has it from glibc 2.34 on.
    assert answer(elf(needs=["dlopen"])) == (Answer.SYSTEM, "libc.so.6")
    assert answer(elf(needs=["_ZSt9terminatev"])) == (Answer.SYSTEM, "libstdc++.so.6")
    assert answer(elf(needs=["frexp"], needed=["libm.so.6"])) == (Answer.SYSTEM, "libm.so.6")
    assert answer(elf(needs=["frexp"], needed=["libc.so.6"])) == (Answer.SYSTEM, "libc.so.6")


def test_the_system_that_only_torch_needs_is_a_warning() -> None:
    # vllm 0.22.1's spinloop does this with libstdc++.
    found = elf(needs=["_ZSt9terminatev"], needed=["libc10.so"])
    snapshot = torch(more=[library("torch/lib/libc10.so", [], ["libstdc++.so.6"])])
    assert answer(found, snapshot) == (Answer.PRELOADED, "libstdc++.so.6")
    assert answer(found) == (Answer.UNRESOLVED, "libstdc++.so.6")


def test_a_version_says_where_a_name_belongs_whoever_else_has_it() -> None:
    # libcufile exports parts of a libstdc++ of its own.
    name = "_ZNSt13runtime_errorC1EPKc"
    other = library("nvidia/cufile/lib/libcufile.so.0", [name], wheel=1)
    cpu = library("torch/lib/libtorch_cuda.so", [], ["libcufile.so.0", "libtorch_cpu.so"])
    found = elf(needs=[f"{name}@GLIBCXX_3.4.21@libstdc++.so.6"])
    assert answer(found, torch(more=[other, cpu])) == (Answer.SYSTEM, "libstdc++.so.6")
    assert answer(elf(needs=[name]), torch(more=[other, cpu])) == (Answer.SYSTEM, "libstdc++.so.6")


def test_a_system_library_that_not_every_system_has_is_nowhere() -> None:
    found = close(
        elf(needs=["GOMP_parallel@GOMP_4.0@libgomp.so.1"], needed=["libgomp.so.1"]), torch()
    )
    assert [n.need for n in found.missing] == [Need.NOWHERE]
    assert [s.name for s in found.unresolved] == ["GOMP_parallel"]


@pytest.mark.parametrize("machine", ["EM_AARCH64", "EM_MIPS"])
def test_nothing_of_torch_serves_another_machine(machine: str) -> None:
    found = elf(needs=["_ZN2at1fEv"], weak=["_ZN2at1gEv"], machine=machine)
    closure = close(found, torch(cpu=["_ZN2at1fEv", "_ZN2at1gEv"]))
    assert [s.name for s in closure.unresolved] == ["_ZN2at1fEv"]
    assert {n.name for n in closure.missing} >= set(TORCH)


def test_no_system_library_is_known_of_an_unknown_machine() -> None:
    found = elf(needs=["memcpy@GLIBC_2.14@libc.so.6"], needed=["libc.so.6"], machine="EM_MIPS")
    assert not close(found, torch()).fits


def test_a_weak_symbol_may_be_absent() -> None:
    assert answer(elf(weak=["__gmon_start__"]))[0] is Answer.ABSENT
    assert answer(elf(weak=["_ZN2at1fEv"]), torch(cpu=["_ZN2at1fEv"]))[0] is Answer.TORCH


# --- other libraries of the wheel ----------------------------------------------------------------


def beside(directory: str) -> Elf:
    return elf(f"{directory}/libhelp.so", exports=["help"], soname="libhelp.so", needed=SYSTEM)


def test_another_library_of_the_wheel_has_it() -> None:
    found = elf(needs=["help"], needed=["libhelp.so"], rpath=["$ORIGIN/../vllm.libs"])
    closure = close(found, torch(), [found, beside("vllm.libs")])
    assert [(s.answer, s.library) for s in closure.symbols] == [
        (Answer.WHEEL, "vllm.libs/libhelp.so")
    ]
    assert closure.fits


@pytest.mark.parametrize("rpath", [(), ("/opt/lib",), ("$ORIGIN",), ("$ORIGIN/../../vllm.libs",)])
def test_another_library_of_the_wheel_that_the_loader_is_not_led_to(rpath: tuple[str, ...]) -> None:
    found = elf(needs=["help"], needed=["libhelp.so"], rpath=rpath)
    closure = close(found, torch(), [found, beside("vllm.libs")])
    assert [(n.need, n.path) for n in closure.missing] == [(Need.APART, "vllm.libs/libhelp.so")]
    assert not closure.unresolved


def test_another_library_of_the_wheel_that_is_not_needed() -> None:
    other = beside("vllm")
    assert answer(elf(needs=["help"]), None, other) == (Answer.UNRESOLVED, "vllm/libhelp.so")


def test_what_another_library_of_the_wheel_needs_is_reached_too() -> None:
    found = elf(needs=["cufftExecC2C"], needed=["libhelp.so"], rpath=["$ORIGIN"])
    other = elf("vllm/libhelp.so", soname="libhelp.so", needed=["libcufft.so.11"])
    closure = close(found, torch(), [found, other])
    assert [s.answer for s in closure.symbols] == [Answer.CUDA]


def test_torchs_own_copy_goes_before_that_of_the_wheel() -> None:
    # As ld.so does it: what is loaded under that SONAME answers.
    found = elf(needs=["_ZN2at1fEv"], needed=["libtorch_cpu.so"], rpath=["$ORIGIN"])
    other = elf("vllm/libtorch_cpu.so", soname="libtorch_cpu.so", exports=["_ZN2at1fEv"])
    closure = close(found, torch(), [found, other])
    assert [n.path for n in closure.needed] == ["torch/lib/libtorch_cpu.so"]
    assert [s.answer for s in closure.symbols] == [Answer.UNRESOLVED]


# --- NEEDED --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("libtorch_cpu.so", Need.TORCH),
        ("libcudart.so.12", Need.CUDA),
        ("libnvrtc.so.12", Need.CUDA),
        ("libcufft.so.11", Need.UNLOADED),
        ("libcuda.so.1", Need.DRIVER),
        ("libc.so.6", Need.SYSTEM),
        ("ld-linux-x86-64.so.2", Need.SYSTEM),
        ("libpython3.11.so.1.0", Need.PYTHON),
        ("libnccl.so.2", Need.NOWHERE),
    ],
)
def test_how_a_needed_entry_is_found(name: str, need: Need) -> None:
    closure = close(elf(needed=[name]), torch())
    assert [n.need for n in closure.needed] == [need]
    assert closure.fits == need.fits


@pytest.mark.parametrize("origin", ["$ORIGIN", "${ORIGIN}"])
def test_a_cuda_library_that_nothing_has_loaded_is_found_by_search_path(origin: str) -> None:
    found = elf(needed=["libcufft.so.11"], rpath=[f"/none:{origin}/../nvidia/cufft/lib"])
    assert [n.need for n in close(found, torch()).needed] == [Need.CUDA]


def test_libraries_that_need_each_other_end() -> None:
    a = elf("vllm/liba.so", soname="liba.so", needed=["libb.so"], rpath=["$ORIGIN"])
    b = elf("vllm/libb.so", soname="libb.so", needed=["liba.so"], rpath=["$ORIGIN"])
    loop = torch(more=[library("torch/lib/libx.so", [], ["libx.so"])])
    assert [c.fits for c in close_all(loop, Family([a, b]))] == [True, True]


def test_libraries_that_need_each_other_beyond_reason_are_refused() -> None:
    many = [elf(f"a/lib{n}.so", needed=[f"lib{m}.so" for m in range(1000)]) for n in range(110)]
    with pytest.raises(ArtifactError, match="need more of each other"):
        Family(many)


def test_every_symbol_has_an_answer_and_they_are_counted() -> None:
    found = elf(needs=["nobody", "PyObject_Str", RUNTIME], weak=["maybe"])
    closure = close(found, torch())
    assert closure.counts == {"python": 1, "absent": 1, "preloaded": 1, "unresolved": 1}
    assert [s.name for s in closure.symbols] == sorted(s.name for s in found.undefined)


@pytest.mark.parametrize("make", [lambda: elf(name="a.so", needed=[]), lambda: elf(name="")])
def test_a_library_without_anything_fits(make: Callable[[], Elf]) -> None:
    assert close(make(), torch()).fits

"""Libraries of official vLLM wheels against the snapshots: what is known of them comes out."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from abi_kit import elf

from pinwheel.inspect.elf import Elf
from pinwheel.verify.abi_table import Table, table
from pinwheel.verify.classify import Cause
from pinwheel.verify.closure import Answer, close
from pinwheel.verify.snapshot import load, load_all

DATA = Path(__file__).parent / "data"
#: What torch 2.4 has and 2.3 has not, of what vllm 0.6.3's _C uses.
DRIFT = [
    "_ZN3c1021throwNullDataPtrErrorEv",
    "_ZN3c1021warnDeprecatedDataPtrEv",
    "_ZN5torch3jit11parseSchemaERKSsb",
    "_ZN5torch3jit17parseSchemaOrNameERKSsb",
    "_ZNK3c105Error4whatEv",
]


def real(name: str) -> Elf:
    """A library of an official wheel, by its list of needs (the first line says which)."""
    lines = (DATA / f"{name}.txt").read_text().splitlines()
    kinds = {kind: [x.split(" ")[1] for x in lines if x.startswith(f"{kind} ")] for kind in "uw"}
    needed = [line.removeprefix("needed ") for line in lines if line.startswith("needed ")]
    library = f"vllm/{name.rpartition('.')[2]}.abi3.so"
    return elf(library, needs=kinds["u"], weak=kinds["w"], needed=needed)


@cache
def against_all(name: str) -> Table:
    return table([real(name)], load_all())


def test_vllm_063_fits_the_torch_it_was_built_for() -> None:
    closure = close(real("vllm-0.6.3._C"), load("2.4.0+cu121"))
    assert closure.fits
    assert [s.name for s in closure.of(Answer.PRELOADED)] == ["cublasHgemm"]
    assert {s.name for s in closure.of(Answer.DRIVER)} == {
        "cuPointerGetAttribute",
        "cuTensorMapEncodeTiled",
    }


def test_vllm_063_misses_five_names_in_torch_23() -> None:
    closure = close(real("vllm-0.6.3._C"), load("2.3.0+cu121"))
    assert [s.name for s in closure.unresolved] == DRIFT
    assert not closure.missing


@pytest.mark.parametrize("build", ["2.3.0+cu121", "2.3.1+cu121"])
def test_vllm_063_in_torch_23_is_version_drift(build: str) -> None:
    missing = against_all("vllm-0.6.3._C").row(build).missing
    assert [m.name for _, m in missing] == DRIFT
    assert {m.cause for _, m in missing} == {Cause.TORCH_VERSION}
    assert all("2.4.0+cu121" in m.builds for _, m in missing)


def test_vllm_063_fits_no_torch_of_the_other_flag() -> None:
    found = against_all("vllm-0.6.3._C")
    assert found.fitting == ("2.4.0+cu121", "2.5.1+cu124", "2.6.0+cu124")
    assert all(row.cxx11_abi for row in found.rows if row.build.startswith(("2.7", "2.8", "2.11")))


def test_vllm_063_in_torch_211_is_the_flag_and_the_version_and_cuda() -> None:
    missing = [m for _, m in against_all("vllm-0.6.3._C").row("2.11.0+cu130").missing]
    torch = [m for m in missing if not m.version]
    assert len(torch) == 12
    by_name = {m.name: m.cause for m in torch}
    assert by_name["_ZN3c104cuda9SetDeviceEa"] is Cause.TORCH_VERSION
    assert by_name["_ZN5torch3jit17parseSchemaOrNameERKSsb"] is Cause.ABI_FLAG
    assert all(by_name[n] is Cause.ABI_FLAG for n in by_name if "Ss" in n)
    assert {m.cause for m in missing if m.version} == {Cause.CUDA_VERSION}


def test_vllm_0221_uses_the_stable_abi() -> None:
    found = against_all("vllm-0.22.1._C_stable_libtorch")
    (use,) = found.stable
    assert use.stable
    assert len(use.functions) == 79
    assert use.since == "2.10.0+cu128"
    # A minimum torch, and still the CUDA it was built for.
    assert found.fitting == ("2.11.0+cu130", "2.13.0+cu130", "2.14.0+cu130")
    assert not found.row("2.10.0+cu128").fits


def test_names_that_tell_one_torch_from_another() -> None:
    # vllm#1807, LocalAI#9557, and what torch did to the same names since.
    check = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_"
    device = "_ZN3c104cuda9SetDeviceE"
    names = [f"{device}i", f"{device}a", f"{device}ab", f"{check}ib", f"{check}jb"]
    found = table([elf(f"{n}.so", needs=[n]) for n in names], load_all())
    fits = {n: found.fitting_library(f"{n}.so") for n in names}
    assert {n: (of[0], of[-1]) for n, of in fits.items()} == {
        f"{device}i": ("2.1.2+cu121", "2.2.1+cu121"),
        f"{device}a": ("2.3.0+cu121", "2.7.1+cu126"),
        f"{device}ab": ("2.8.0+cu128", "2.14.0+cu130"),
        f"{check}ib": ("2.1.2+cu121", "2.9.1+cu128"),
        f"{check}jb": ("2.10.0+cu128", "2.13.0+cu130"),
    }
    missing = {m.name: m for _, m in found.row("2.3.0+cu121").missing}
    assert "built for torch 2.1 to 2.2" in missing[f"{device}i"].what
    assert "built for torch 2.10 to 2.13" in missing[f"{check}jb"].what

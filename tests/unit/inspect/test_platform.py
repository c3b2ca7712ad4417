from __future__ import annotations

from pathlib import Path

import pytest
from wheelkit import DEVICE_CODE, compile_library, needs_gcc

from pinwheel.build.elf import Library, UndefinedSymbol, VersionNeed, read_library
from pinwheel.errors import PlatformTagError
from pinwheel.inspect.platform import comes_from_elsewhere, platform_of, require, version_floor

ELSEWHERE = ("libtorch*", "libc10*", "libcudart.so.*", "libcuda.so.1")


def library(
    needs: dict[str, str] | None = None,
    needed: tuple[str, ...] = (),
    *,
    name: str = "vllm/_C.abi3.so",
    machine: str = "EM_X86_64",
    undefined: tuple[str, ...] = (),
    isa: tuple[str, ...] = (),
) -> Library:
    """``needs``: symbol version -> library."""
    needs = needs or {}
    symbols = [UndefinedSymbol(f"f_{v}", v, weak=False) for v in needs]
    symbols += [UndefinedSymbol(n, "", weak=False) for n in undefined]
    return Library(
        name=name,
        machine=machine,
        kind="extension",
        soname="",
        needed=needed,
        search_paths=(),
        version_needs=tuple(sorted(VersionNeed(lib, v) for v, lib in needs.items())),
        undefined=tuple(symbols),
        defined=1,
        executable_stack=False,
        symbol_table=False,
        device_code=0,
        isa=isa,
    )


C = "libc.so.6"
CXX = "libstdc++.so.6"


@pytest.mark.parametrize(
    ("needs", "tag"),
    [
        ({}, "manylinux_2_5_x86_64"),
        ({"GLIBC_2.14": C, "GLIBCXX_3.4.18": CXX}, "manylinux_2_17_x86_64"),
        # auditwheel has no 2_32 and no 2_33: what needs 2.32 is 2_34.
        ({"GLIBC_2.32": C, "GLIBCXX_3.4.29": CXX}, "manylinux_2_34_x86_64"),
        ({"GLIBC_2.34": C}, "manylinux_2_34_x86_64"),
        ({"GLIBC_2.2.5": C, "GLIBC_2.36": C}, "manylinux_2_36_x86_64"),
    ],
)
def test_the_oldest_policy_that_fits(needs: dict[str, str], tag: str) -> None:
    found = platform_of([library(needs, (C, CXX))], ELSEWHERE)
    assert found.tag == tag


def test_the_reason_names_symbol_and_library() -> None:
    found = platform_of([library({"GLIBC_2.32": C}, (C,))], ELSEWHERE)
    assert [str(r) for r in found.reasons] == [
        "vllm/_C.abi3.so needs GLIBC_2.32 of libc.so.6 (f_GLIBC_2.32)"
    ]


def test_the_worst_library_decides() -> None:
    old = library({"GLIBC_2.2.5": C}, name="a.so")
    new = library({"GLIBC_2.35": C}, name="b.so")
    assert platform_of([old, new], ELSEWHERE).tag == "manylinux_2_35_x86_64"


def test_what_torch_and_cuda_bring_does_not_count() -> None:
    needed = ("libtorch_cpu.so", "libc10_cuda.so", "libcudart.so.12", "libcuda.so.1", C)
    found = platform_of([library({"libcudart.so.12": "libcudart.so.12"}, needed)], ELSEWHERE)
    assert found.tag == "manylinux_2_5_x86_64"


def test_a_library_of_the_wheel_itself_does_not_count() -> None:
    own = library(name="vllm/libown.so")
    assert platform_of([library(needed=("libown.so",)), own], ()).tag == "manylinux_2_5_x86_64"


@pytest.mark.parametrize(
    ("lib", "evidence"),
    [
        (library({"GLIBC_2.99": C}, (C,)), "GLIBC_2.99"),
        (library(needed=("libgomp.so.1",)), "libgomp.so.1"),
        (library(needed=("libpython3.11.so.1.0",)), "libpython3.11.so.1.0"),
        (library({"GLIBC_PRIVATE": C}, (C,)), "GLIBC_PRIVATE"),
        (library({"MADEUP_1.0": C}, (C,)), "MADEUP_1.0"),
        (library(isa=("x86-64-v3",)), "x86-64-v3"),
        (library({"libcudart.so.12": "libcudart.so.12"}), "libcudart.so.12"),
    ],
)
def test_what_fits_nothing_is_named(lib: Library, evidence: str) -> None:
    elsewhere = ("libtorch*",)
    with pytest.raises(PlatformTagError) as caught:
        platform_of([lib], elsewhere)
    assert evidence in " ".join(caught.value.evidence)
    assert lib.name in " ".join(caught.value.evidence)


def test_private_symbols_of_zlib_keep_a_wheel_out() -> None:
    lib = library(needed=("libz.so.1", C), undefined=("inflate_table",))
    with pytest.raises(PlatformTagError, match="no platform tag") as caught:
        platform_of([lib], ())
    assert "inflate_table" in caught.value.evidence[0]


def test_mixed_and_unknown_machines_are_refused() -> None:
    x86, arm = library(name="a.so"), library(name="b.so", machine="EM_AARCH64")
    for libraries in ([x86, arm], [library(machine="EM_RISCV")]):
        with pytest.raises(PlatformTagError, match="machine"):
            platform_of(libraries, ())
    arm_tag = platform_of([arm], ()).tag
    assert arm_tag == "manylinux_2_17_aarch64"  # the oldest there is


# Case E3.
def test_a_tag_that_claims_too_much_names_symbol_and_right_tag() -> None:
    lib = library({"GLIBC_2.34": C}, (C,))
    with pytest.raises(PlatformTagError, match="manylinux_2_28_x86_64") as caught:
        require([lib], "manylinux_2_28_x86_64", ELSEWHERE)
    assert caught.value.evidence == (
        "vllm/_C.abi3.so needs GLIBC_2.34 of libc.so.6 (f_GLIBC_2.34)",
    )
    assert caught.value.next_step == "The right tag is manylinux_2_34_x86_64."
    require([lib], "manylinux_2_34_x86_64", ELSEWHERE)
    require([lib], "manylinux_2_40_x86_64", ELSEWHERE)  # true, if more careful than need be


def test_every_part_of_a_compressed_tag_and_unknown_tags_are_judged() -> None:
    lib = library({"GLIBC_2.14": C}, (C,))
    require([lib], "manylinux_2_17_x86_64.manylinux2014_x86_64", ())
    with pytest.raises(PlatformTagError, match="manylinux1_x86_64"):
        require([lib], "manylinux_2_17_x86_64.manylinux1_x86_64", ())
    for tag in ("linux_x86_64", "manylinux_2_33_x86_64", "manylinux_2_17_aarch64", "any"):
        with pytest.raises(PlatformTagError, match=tag):
            require([lib], tag, ())


def test_the_floor_compares_numbers() -> None:
    lib = library({"GLIBC_2.9": C, "GLIBC_2.14": C, "GLIBCXX_3.4.9": CXX, "GLIBCXX_3.4.29": CXX})
    assert version_floor(lib, ()) == {"GLIBC": "2.14", "GLIBCXX": "3.4.29"}


def test_patterns_match_whole_names() -> None:
    assert comes_from_elsewhere("libtorch_cuda.so", ELSEWHERE)
    assert not comes_from_elsewhere("_C_stable_libtorch.abi3.so", ELSEWHERE)
    assert not comes_from_elsewhere("LIBTORCH.so", ELSEWHERE)


@needs_gcc
def test_a_real_library_with_a_symbol_of_glibc_2_34(tmp_path: Path) -> None:
    source = "int dlclose(void *); int f(void) { return dlclose(0); }" + DEVICE_CODE
    path = compile_library(tmp_path / "x.so", source)
    lib = read_library(path, "x.so")
    if "GLIBC_2.34" not in {n.version for n in lib.version_needs}:
        pytest.skip("this host's glibc is older than 2.34")
    found = platform_of([lib], ())
    assert found.tag == "manylinux_2_34_x86_64"
    assert "dlclose" in str(found.reasons[0])

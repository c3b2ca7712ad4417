"""Why a symbol is missing: the field cases, and the line between each reason and the next."""

from __future__ import annotations

import pytest
from abi_kit import NEW_FLAG, OLD_FLAG, TORCH, elf, library, torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.inspect.elf import Elf
from pinwheel.verify.abi_make import Found
from pinwheel.verify.abi_table import MAX_MISSING, table
from pinwheel.verify.classify import Cause, Missing, span
from pinwheel.verify.snapshot import Snapshot

STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
SET_DEVICE = "_ZN3c104cuda9SetDeviceE"
CHECK = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_"


def why(library: Elf, build: str, *snapshots: Snapshot) -> list[Missing]:
    """What one torch build lacks, with the reasons."""
    return [missing for _, missing in table([library], snapshots).row(build).missing]


def one(name: str, build: str, *snapshots: Snapshot) -> Missing:
    (missing,) = why(elf(needs=[name]), build, *snapshots)
    return missing


# Which names torch had when, by minor, of those the cases are about.
TORCH_21 = torch("2.1.2+cu121", [f"{SET_DEVICE}i", f"{CHECK}ib"])
TORCH_22 = torch("2.2.1+cu121", [f"{SET_DEVICE}i", f"{CHECK}ib"])
TORCH_23 = torch("2.3.0+cu121", [f"{SET_DEVICE}a", f"{CHECK}ib"])
TORCH_24 = torch(
    "2.4.0+cu121",
    [f"{SET_DEVICE}a", f"{CHECK}ib", "_ZN5torch3jit17parseSchemaOrNameERKSsb"],
)
TORCH_28 = torch(
    "2.8.0+cu128",
    [f"{SET_DEVICE}ab", f"{CHECK}ib", f"_ZN5torch3jit17parseSchemaOrNameERK{STRING}b"],
    flag=1,
)
TORCH_210 = torch("2.10.0+cu128", [f"{SET_DEVICE}ab", f"{CHECK}jb"], flag=1)
ALL = (TORCH_21, TORCH_22, TORCH_23, TORCH_24, TORCH_28, TORCH_210)


def test_a1_the_flag_of_the_extension_is_0_and_torchs_is_1() -> None:
    missing = one(OLD_FLAG, "2.8.0+cu128", *ALL)
    assert missing.cause is Cause.ABI_FLAG
    assert missing.what == (
        "ABI flag mismatch: built with _GLIBCXX_USE_CXX11_ABI=0, torch 2.8.0+cu128 has 1"
    )
    assert missing.evidence == (f"torch 2.8.0+cu128 has {NEW_FLAG}",)


@pytest.mark.parametrize("build", ["2.3.0+cu121", "2.8.0+cu128"])
def test_a2_built_for_another_torch(build: str) -> None:
    missing = one(f"{SET_DEVICE}i", build, *ALL)
    assert missing.cause is Cause.TORCH_VERSION
    assert missing.what == (f"torch version drift: built for torch 2.1 to 2.2, not {build}")
    assert missing.builds == ("2.1.2+cu121", "2.2.1+cu121")
    form = "a" if build == "2.3.0+cu121" else "ab"
    assert missing.evidence == (f"torch {build} has {SET_DEVICE}{form}",)


def test_a3_a_method_that_came_later_names_both_versions() -> None:
    name = "_ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv"
    later = torch("2.5.1+cu124", [name])
    missing = one(name, "2.4.0+cu121", TORCH_24, later)
    assert missing.cause is Cause.TORCH_VERSION
    assert "torch 2.5" in missing.what
    assert "2.4.0+cu121" in missing.what


def test_a4_the_same_name_is_the_flag_or_the_version_by_the_torch_that_is_there() -> None:
    name = "_ZN5torch3jit17parseSchemaOrNameERKSsb"
    assert one(name, "2.8.0+cu128", *ALL).cause is Cause.ABI_FLAG
    assert one(name, "2.3.0+cu121", *ALL).cause is Cause.TORCH_VERSION


def test_a4_the_flag_shows_though_torch_has_the_function_in_no_form() -> None:
    missing = one("_ZN5torch3jit17parseSchemaOrNameERKSsb", "2.10.0+cu128", *ALL)
    assert missing.cause is Cause.ABI_FLAG
    assert missing.evidence == ("torch 2.4 has it as it is",)


def test_a5_the_other_way_round() -> None:
    name = f"_ZN3c106ivalue14ConstantString6createE{STRING}"
    old = torch("2.4.0+cu121", ["_ZN3c106ivalue14ConstantString6createESs"])
    missing = one(name, "2.4.0+cu121", old, TORCH_28)
    assert missing.cause is Cause.ABI_FLAG
    assert "built with _GLIBCXX_USE_CXX11_ABI=1, torch 2.4.0+cu121 has 0" in missing.what


def test_a5_a_function_that_returns_a_string_is_told_by_its_tag() -> None:
    new = torch("2.8.0+cu128", ["_ZNK3c104Type3strB5cxx11Ev"], flag=1)
    assert one("_ZNK3c104Type3strEv", "2.8.0+cu128", TORCH_24, new).cause is Cause.ABI_FLAG


def test_a6_a_function_of_the_package_itself_is_not_torchs_fault() -> None:
    name = "_Z20cutlass_moe_mm_sm100RN2at6TensorERKS0_S2_iRKNSt8optionalIS0_EEb"
    missing = one(name, "2.8.0+cu128", *ALL)
    assert missing.cause is Cause.INTERNAL
    assert missing.what.startswith("in no torch at all: it is the package's own")
    assert missing.evidence == ("cutlass_moe_mm_sm100",)
    assert missing.builds == ()


@pytest.mark.parametrize(
    "name", ["_ZN4vllm9silu_implERN2at6TensorE", "_ZN7marlin4gemmEv", "_ZTIN4vllm1aE"]
)
def test_a6_whatever_its_namespace(name: str) -> None:
    assert one(name, "2.8.0+cu128", *ALL).cause is Cause.INTERNAL


def test_a6_with_a_string_in_it_and_under_either_flag() -> None:
    for snapshot in (TORCH_24, TORCH_28):
        assert one("_Z7cutlassSs", snapshot.build, *ALL).cause is Cause.INTERNAL


@pytest.mark.parametrize(
    ("form", "build", "span_of"),
    [("ib", "2.10.0+cu128", "2.1 to 2.8"), ("jb", "2.8.0+cu128", "2.10")],
)
def test_a7_one_letter_of_one_name(form: str, build: str, span_of: str) -> None:
    missing = one(f"{CHECK}{form}", build, *ALL)
    assert missing.cause is Cause.TORCH_VERSION
    assert f"built for torch {span_of}," in missing.what


# --- the line between torch and the package ------------------------------------------------------


def test_torchs_own_name_that_no_known_build_has() -> None:
    missing = one(f"{SET_DEVICE}x", "2.3.0+cu121", *ALL)
    assert missing.cause is Cause.TORCH_VERSION
    assert missing.what.endswith("it is torch's, and no torch known has this form")
    assert missing.evidence == (
        "c10::cuda::SetDevice",
        f"torch 2.3.0+cu121 has {SET_DEVICE}a",
    )


def test_a_global_function_of_torch_with_other_arguments_is_torchs() -> None:
    old = torch("2.0.1+cu117", python=["_Z16THPVariable_WrapN2at6TensorE"])
    new = torch("2.4.0+cu121", python=["_Z16THPVariable_WrapRKN2at10TensorBaseE"])
    missing = one("_Z16THPVariable_WrapN2at10TensorBaseE", "2.4.0+cu121", old, new)
    assert missing.cause is Cause.TORCH_VERSION


def test_a_name_that_merely_begins_like_one_of_torchs_is_not() -> None:
    snapshot = torch(python=["_Z16THPVariable_WrapN2at6TensorE"])
    missing = one("_Z20THPVariable_Wrap_allN2at6TensorE", snapshot.build, snapshot)
    assert missing.cause is Cause.INTERNAL


def test_only_the_other_flags_build_has_it() -> None:
    newer = torch("2.8.0+cu128", [f"_ZN5torch1fE{STRING}"], flag=1)
    missing = one("_ZN5torch1fESs", "2.4.0+cu121", TORCH_24, newer)
    assert missing.cause is Cause.TORCH_VERSION
    assert missing.what.endswith("torch 2.8 has it under the other ABI flag")


# --- other libraries -----------------------------------------------------------------------------


def test_a_library_that_is_there_and_not_needed() -> None:
    missing = one("nvrtcCompileProgram", "2.4.0+cu121", *ALL)
    assert missing.cause is Cause.MISSING_LINK
    assert missing.what.startswith("libnvrtc.so.12 has it")


def test_built_for_another_cuda() -> None:
    found = elf(
        needs=["cudaMalloc@libcudart.so.12@libcudart.so.12"], needed=[*TORCH, "libcudart.so.12"]
    )
    newer = torch("2.11.0+cu130", flag=1, cuda="13")
    (missing,) = why(found, "2.11.0+cu130", TORCH_24, newer)
    assert missing.cause is Cause.CUDA_VERSION
    assert "libcudart.so.12 of torch 2.4 has it" in missing.what
    assert missing.evidence == ("cudaMalloc@libcudart.so.13",)
    (missing,) = why(found, "2.11.0+cu130", newer)
    assert missing.cause is Cause.CUDA_VERSION


def test_built_for_another_cuda_whose_names_have_no_versions() -> None:
    name = "nvrtcGetCUBIN"
    newer = torch("2.11.0+cu130", flag=1, cuda="13", more=[nvrtc("13", name)])
    older = torch("2.4.0+cu121", more=[nvrtc("11", name)])
    found = elf(needs=[name], needed=[*TORCH, "libnvrtc.so.13"])
    (missing,) = why(found, "2.4.0+cu121", older, newer)
    assert missing.cause is Cause.CUDA_VERSION
    assert "built for libnvrtc.so.13, torch 2.4.0+cu121 has libnvrtc.so.1" in missing.what


def nvrtc(version: str, name: str) -> Found:
    return library(f"nvidia/cuda_nvrtc/lib/libnvrtc.so.{version}", [name], wheel=1)


def test_another_machine_is_no_reason_to_blame_a_version() -> None:
    found = elf(needs=[f"{SET_DEVICE}a"], machine="EM_AARCH64")
    (missing,) = why(found, "2.4.0+cu121", *ALL)
    assert missing.cause is Cause.UNKNOWN
    assert missing.what == "torch 2.4.0+cu121 has it, for another machine"


@pytest.mark.parametrize(
    "name", ["nobody_knows", "_ZSt4movev", "_ZN10__cxxabiv11aEv", "_Znope", "cublasXgemm"]
)
def test_what_nothing_explains_stays_unknown(name: str) -> None:
    assert one(name, "2.4.0+cu121", *ALL).cause is Cause.UNKNOWN


# --- the table -----------------------------------------------------------------------------------


def test_the_table_says_which_builds_fit_the_whole_wheel() -> None:
    first = elf("vllm/_C.abi3.so", needs=[f"{SET_DEVICE}a", f"{CHECK}ib"])
    second = elf("vllm/_moe_C.abi3.so", needs=["_ZN5torch3jit17parseSchemaOrNameERKSsb"])
    found = table([first, second], reversed(ALL))
    assert [row.build for row in found.rows] == [s.build for s in ALL]
    assert found.fitting == ("2.4.0+cu121",)
    assert found.fitting_library(first.name) == ("2.3.0+cu121", "2.4.0+cu121")
    row = found.row("2.3.0+cu121")
    assert [(name, m.name) for name, m in row.missing] == [
        (second.name, "_ZN5torch3jit17parseSchemaOrNameERKSsb")
    ]
    with pytest.raises(KeyError):
        found.row("1.0.0+cu100")


def test_names_that_came_and_went_at_different_times_are_one_reason() -> None:
    later = "_ZN5torch3jit17parseSchemaOrNameERKSsb"
    names = [f"{SET_DEVICE}a", later, f"{CHECK}ib", "_ZN4vllm1fEv", "_ZN4vllm1gEv"]
    found = table([elf(needs=names), elf("b.so", needs=[later], needed=["libx.so"])], ALL)
    known = [row.build for row in found.rows]
    reasons = found.row("2.1.2+cu121").reasons(known)
    assert {what.split(":")[0]: of for what, of in reasons.items()} == {
        "torch version drift": (f"{SET_DEVICE}a", later),
        "in no torch at all": ("_ZN4vllm1fEv", "_ZN4vllm1gEv"),
        "NEEDED, nowhere": ("libx.so",),
    }
    assert "torch version drift: built for torch 2.4, not 2.1.2+cu121" in reasons
    # No build has both: each is a reason of its own.
    apart = table([elf(needs=[f"{SET_DEVICE}i", later])], ALL).row("2.3.0+cu121").reasons(known)
    assert {*apart} == {
        "torch version drift: built for torch 2.1 to 2.2, not 2.3.0+cu121",
        "torch version drift: built for torch 2.4, not 2.3.0+cu121",
    }


def test_the_table_as_plain_data() -> None:
    data = table([elf(needs=[f"{SET_DEVICE}i", "cublasHgemm"])], ALL).as_dict()
    assert data["fits"] == ["2.1.2+cu121", "2.2.1+cu121"]
    row = data["builds"][2]
    assert (row["build"], row["cxx11-abi"], row["fits"]) == ("2.3.0+cu121", False, False)
    (fit,) = row["libraries"]
    assert fit["missing"][0]["cause"] == "torch-version"
    assert fit["preloaded"] == [{"symbol": "cublasHgemm", "library": "libcublas.so.12"}]
    assert fit["symbols"] == {"preloaded": 1, "unresolved": 1}


def test_a_library_that_lacks_everything_is_listed_up_to_a_bound() -> None:
    found = elf(needs=[f"_Z{len(n)}{n}v" for n in (f"f{i}" for i in range(MAX_MISSING + 500))])
    (fit,) = table([found], [TORCH_24]).rows[0].libraries
    assert len(fit.missing) == MAX_MISSING
    assert fit.counts == {"unresolved": MAX_MISSING + 500}


# --- the stable ABI ------------------------------------------------------------------------------

SHIMS = ["aoti_torch_get_data_ptr", "torch_call_dispatcher"]
STABLE = (
    torch("2.8.0+cu128", SHIMS, flag=1),
    torch("2.9.0+cu128", SHIMS[:1], flag=1),
    torch("2.10.0+cu128", SHIMS, flag=1),
    torch("2.11.0+cu130", SHIMS, flag=1),
)


def test_a8_only_the_stable_abi_is_a_minimum_torch() -> None:
    found = table([elf(needs=SHIMS)], STABLE)
    (use,) = found.stable
    assert use.stable
    assert use.since == "2.10.0+cu128"
    assert found.row("2.11.0+cu130").fits
    assert not found.row("2.9.0+cu128").fits


def test_a8_not_before_torch_promised_it() -> None:
    (use,) = table([elf(needs=SHIMS[:1])], STABLE).stable
    assert use.since == "2.9.0+cu128"


def test_a8_a_function_newer_than_every_torch_known() -> None:
    found = table([elf(needs=["aoti_torch_new"])], STABLE)
    (use,) = found.stable
    assert (use.stable, use.since, use.unknown) == (True, "", ("aoti_torch_new",))
    ((_, missing),) = found.row("2.11.0+cu130").missing
    assert missing.cause is Cause.TORCH_VERSION
    assert missing.what.endswith("in no torch up to 2.11.0+cu130")


def test_a8_one_other_name_makes_its_torch_exact() -> None:
    for other in ("_ZN2at6Tensor1fEv", "_Z16THPVariable_WrapN2at6TensorE"):
        python = torch("2.12.0+cu130", SHIMS, flag=1, python=["_Z16THPVariable_WrapN2at6TensorE"])
        (use,) = table([elf(needs=[*SHIMS, other])], [*STABLE, python]).stable
        assert not use.stable
        assert use.others == (other,)


def test_a8_a_part_of_the_c_library_that_torch_exports_is_no_use_of_torch() -> None:
    # vllm 0.22.1's stable library takes std::ios_base_library_init from torch.
    part = "_ZSt21ios_base_library_initv"
    newest = torch("2.12.0+cu130", [*SHIMS, part], flag=1)
    (use,) = table([elf(needs=[*SHIMS, part])], [*STABLE, newest]).stable
    assert use.stable
    assert use.since == "2.12.0+cu130"
    (use,) = table([elf(needs=[part])], [*STABLE, newest]).stable
    assert (use.uses_torch, use.since) == (False, "")


def test_a8_what_is_headers_alone_and_what_is_weak_is_no_use_of_torch() -> None:
    header = "_ZN5torch6stable6Tensor1fEv"
    (use,) = table([elf(needs=[*SHIMS, header], weak=["_ZN2at1fEv"])], STABLE).stable
    assert use.stable


def test_a_library_without_torch() -> None:
    (use,) = table([elf(needs=["memcpy@GLIBC_2.14@libc.so.6"])], STABLE).stable
    assert not use.uses_torch
    assert not use.stable


# --- words ---------------------------------------------------------------------------------------

KNOWN = ("2.1.2+cu121", "2.2.1+cu121", "2.3.0+cu121", "2.3.1+cu121", "2.4.0+cu121")


@pytest.mark.parametrize(
    ("builds", "text"),
    [
        (KNOWN[:2], "2.1 to 2.2"),
        (KNOWN[:1], "2.1"),
        (KNOWN, "2.1 to 2.4"),
        ((KNOWN[0], KNOWN[4]), "2.1, 2.4"),
        ((KNOWN[1], KNOWN[3], KNOWN[4]), "2.2, 2.3.1+cu121, 2.4"),
        ((), ""),
    ],
)
def test_builds_in_few_words(builds: tuple[str, ...], text: str) -> None:
    assert span(builds, KNOWN) == text


@settings(deadline=None)
@given(st.sets(st.sampled_from(KNOWN)))
def test_the_words_are_of_these_builds_only(builds: set[str]) -> None:
    meant = set()
    for part in filter(None, span(builds, KNOWN).split(", ")):
        first, _, last = part.partition(" to ")
        if "+" in part:
            meant.add(part)
            continue
        minors = [".".join(b.split(".")[:2]) for b in KNOWN]
        low, high = minors.index(first), len(minors) - 1 - minors[::-1].index(last or first)
        meant |= set(KNOWN[low : high + 1])
    assert meant == builds


def test_the_flag_is_read_of_the_names() -> None:
    assert [s.cxx11_abi for s in ALL] == [False, False, False, False, True, True]
    more = torch(more=[library("nvidia/x/lib/libx.so", [NEW_FLAG], wheel=1)])
    assert not more.cxx11_abi

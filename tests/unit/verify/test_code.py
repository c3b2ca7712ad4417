"""Machine code against a declared list: the field cases of section B, exceptions, kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwheel.matrix.capability import Capability, Cover
from pinwheel.matrix.models import Matrix, load_matrix
from pinwheel.verify.code import (
    CODE_RULES,
    CodeException,
    CodeFault,
    LibraryCode,
    Targets,
    check_code,
    cover,
)
from pinwheel.verify.gpus import check_torch_code, gpu_table

MATRIX: Matrix = load_matrix(Path(__file__).parents[3] / "arch_matrix.toml")
KNOWN = MATRIX.known


def caps(text: str) -> list[Capability]:
    return [c for part in text.split() for c in MATRIX.parse_capabilities(part)]


def library(
    name: str, sass: str, ptx: str = "", kernels: dict[str, tuple[str, str]] | None = None
) -> LibraryCode:
    return LibraryCode(
        name=name,
        cubins=dict.fromkeys(caps(sass), 1),
        ptx=dict.fromkeys(caps(ptx), 1),
        kernels={
            kernel: Targets(frozenset(caps(s)), frozenset(caps(p)))
            for kernel, (s, p) in (kernels or {}).items()
        },
    )


def broken(
    libraries: list[LibraryCode], declared: str, exceptions: tuple[CodeException, ...] = ()
) -> dict[str, list[str]]:
    checked = check_code(libraries, caps(declared), known=KNOWN, exceptions=exceptions)
    found: dict[str, list[str]] = {}
    for problem in checked.problems:
        found.setdefault(problem.rule, []).append(problem.what)
    return found


@pytest.mark.parametrize(
    ("sass", "ptx", "gpu", "expected"),
    [
        ("8.0", "", "8.6", Cover.SAME_MAJOR),  # B4
        ("8.0 8.6", "", "8.7", Cover.NONE),  # B5: Orin is a Tegra part
        ("8.0 8.6 8.9 9.0", "", "12.0", Cover.NONE),  # B6
        ("9.0a", "", "10.0", Cover.NONE),  # B8
        ("9.0a", "", "9.0", Cover.NATIVE),
        ("8.0 9.0", "", "8.9", Cover.SAME_MAJOR),  # B9
        ("8.6", "", "8.0", Cover.NONE),
        ("8.0", "9.0", "10.0", Cover.PTX),
        ("", "9.0a", "10.0", Cover.NONE),
        ("", "8.0", "8.0", Cover.PTX),  # PTX for it is still no machine code
        ("8.7", "", "8.9", Cover.NONE),
        ("", "", "8.0", Cover.NONE),
    ],
)
def test_cover(sass: str, ptx: str, gpu: str, expected: Cover) -> None:
    targets = Targets(frozenset(caps(sass)), frozenset(caps(ptx)))
    (device,) = caps(gpu)
    assert cover(targets, device, known=KNOWN).cover is expected


def test_same_major_code_is_no_fault_and_is_reported_as_such() -> None:
    """B9: FlashAttention in the official 0.6.3 wheel."""
    flash = library("vllm_flash_attn_c.abi3.so", "8.0 9.0")
    assert broken([flash], "8.0 8.6 8.9 9.0") == {}
    rows = {row["gpu"]: row for row in gpu_table([flash], None, known=KNOWN)}
    assert rows["8.0"]["verdict"] == rows["9.0"]["verdict"] == "native"
    assert rows["8.6"]["verdict"] == rows["8.9"]["verdict"] == "runs"
    assert rows["8.7"]["verdict"] == rows["12.0"]["verdict"] == "does not run"
    assert rows["8.6"]["limited-by"] == flash.name


def test_what_a_library_lacks_and_what_the_wheel_lacks() -> None:
    found = broken([library("a.so", "8.0"), library("b.so", "8.0 9.0")], "8.0 9.0")
    assert found == {"code-libraries": ["a.so has no code that runs on 9.0"]}
    none = broken([library("a.so", "8.0"), library("b.so", "8.0 9.0")], "8.0 9.0 12.0")
    assert none["code-present"] == ["no library has code for 12.0, which is declared"]  # B6
    assert len(none["code-libraries"]) == 1  # 12.0 is said once


def test_a_variant_that_is_declared_must_be_there_itself() -> None:
    assert broken([library("a.so", "9.0a")], "9.0a") == {}
    assert "code-present" in broken([library("a.so", "9.0")], "9.0a")


def test_what_must_be_served_need_not_be_what_it_was_compiled_for() -> None:
    """--archs 8.6 on a wheel of 8.0 code: it runs, and the code that serves it is meant."""

    def undeclared(built: str | None) -> list[str]:
        stated = None if built is None else caps(built) if built else []
        checked = check_code([library("a.so", "8.0 9.0")], caps("8.6"), known=KNOWN, built=stated)
        return [p.what for p in checked.problems if p.rule == "code-declared"]

    assert undeclared(None) == ["a.so holds code for 8.0 9.0, which is not declared"]
    assert undeclared("8.0") == ["a.so holds code for 9.0, which is not declared"]
    assert undeclared("8.0 9.0") == []
    assert undeclared("") == ["a.so holds code for 9.0, which is not declared"]


def test_nothing_declared_and_nothing_there() -> None:
    nothing = check_code([], [], known=KNOWN)
    assert set(nothing.skipped) == set(CODE_RULES)
    unsure = check_code([library("a.so", "8.0")], [], known=KNOWN)
    assert set(unsure.unsure) == set(CODE_RULES)
    assert broken([], "8.0") == {"code-present": ["no library has code for 8.0, which is declared"]}
    expected = check_code([library("a.so", "8.0")], caps("8.0"), known=KNOWN, expected=["b.so"])
    assert [p.what for p in expected.problems] == ["b.so holds no device code at all"]


def test_kernels_that_were_not_read_are_unknown_and_their_exceptions_not_stale() -> None:
    rest = exception("9.0", CodeFault.KERNELS)
    checked = check_code(
        [library("a.so", "8.0 9.0")], caps("8.0 9.0"), known=KNOWN, exceptions=[rest], kernels=False
    )
    assert checked.problems == ()
    assert set(checked.unsure) == {"code-kernels", "code-present"}


def test_ptx_alone_is_its_own_fault_and_names_the_driver() -> None:
    checked = check_code(
        [library("a.so", "8.0", "8.0")],
        caps("8.0 9.0"),
        known=KNOWN,
        ptx_driver=lambda c: f"for {c.compute}",
    )
    (problem,) = checked.problems
    assert problem.rule == "code-native"
    assert problem.evidence[-1] == "compiling that PTX takes driver for compute_80"
    # 9.0+PTX declares PTX beside the machine code, not in its place.
    (problem,) = check_code(
        [library("a.so", "8.0", "9.0")], caps("8.0 9.0+PTX"), known=KNOWN
    ).problems
    assert problem.rule == "code-native"


def test_declared_ptx_must_be_there() -> None:
    assert broken([library("a.so", "9.0", "9.0"), library("b.so", "9.0")], "9.0+PTX") == {}
    found = broken([library("a.so", "9.0", "8.0")], "8.0 9.0+PTX")
    assert found["code-libraries"] == [
        "no library holds PTX for 9.0, which 9.0+PTX declares",
    ]


def test_undeclared_code_and_the_variant_of_a_declared_one() -> None:
    found = broken([library("a.so", "5.2 9.0 9.0a", "5.2")], "9.0")
    assert found == {"code-declared": ["a.so holds code for 5.2, which is not declared"]}


def test_a_kernel_that_falls_short_of_its_library() -> None:
    kernels = {
        "whole": ("8.0 9.0", ""),
        "old": ("8.0", ""),
        "old_with_ptx": ("8.0", "8.0"),
        "hopper": ("9.0a", ""),
    }
    found = broken([library("a.so", "8.0 9.0 9.0a", "8.0", kernels)], "8.0 9.0")
    assert found == {
        "code-kernels": ["2 kernels of a.so have no machine code for 9.0, though others have"]
    }


def exception(text: str, fault: CodeFault, name: str = "a.so") -> CodeException:
    (capability,) = caps(text)
    return CodeException(name, capability, fault, "because")


def test_an_exception_covers_its_fault_alone_and_may_not_go_stale() -> None:
    short = [library("a.so", "8.0")]
    whole = library("b.so", "8.0 9.0")
    needed = exception("9.0", CodeFault.MISSING)
    assert broken([*short, whole], "8.0 9.0", (needed,)) == {}
    newer = library("b.so", "8.0 9.0 10.0")
    assert "code-libraries" in broken([*short, newer], "8.0 9.0 10.0", (needed,))
    assert "code-present" in broken(short, "8.0 9.0", (needed,))  # no exception makes code
    stale = broken([library("a.so", "8.0 9.0")], "8.0 9.0", (needed,))
    assert list(stale) == ["code-exceptions"]
    other = broken([*short, whole], "8.0 9.0", (exception("9.0", CodeFault.MISSING, "b.so"),))
    assert sorted(other) == ["code-exceptions", "code-libraries"]


def test_torch_falls_short_where_vllm_does_not() -> None:
    """B7: the wheel has sm_120, torch up to sm_90."""
    torch = library("libtorch_cuda.so", "5.0 6.0 7.0 7.5 8.0 8.6 9.0")
    ours = library("a.so", "8.9 12.0")
    checked = check_torch_code(torch, caps("8.9 12.0"), build="2.6.0+cu124", known=KNOWN)
    (problem,) = checked.problems
    assert problem.what == "torch 2.6.0+cu124 itself does not run on 12.0"
    rows = {row["gpu"]: row for row in gpu_table([ours], torch, known=KNOWN)}
    assert rows["12.0"]["verdict"] == "does not run"
    assert rows["12.0"]["limited-by"] == torch.name
    assert rows["8.9"]["verdict"] == "runs"


def test_unknown_torch_code_is_unknown() -> None:
    assert "torch-code" in check_torch_code(None, caps("8.0"), build="9.9", known=KNOWN).unsure


def with_kernels(name: str, images: str, serving: str, ptx: str = "") -> LibraryCode:
    """A library with images for some capabilities, and kernels in those for fewer."""
    return replace(library(name, images, ptx), serving=Targets(frozenset(caps(serving))))


def test_an_image_without_a_kernel_serves_nobody() -> None:
    """nvcc writes one for each capability it is told, also of a source that has none."""
    code = with_kernels("a.so", "8.0 9.0 12.0", "8.0", ptx="9.0")
    rows = {row["gpu"]: row["verdict"] for row in gpu_table([code], None, known=KNOWN)}
    assert rows["8.0"] == "native"
    assert rows["8.6"] == "runs"
    assert {rows[gpu] for gpu in ("9.0", "10.0", "12.0")} == {"does not run"}
    found = broken([code], "8.0 9.0")
    assert found["code-present"] == ["no library has code for 9.0, which is declared"]
    assert found["code-declared"] == ["a.so holds code for 12.0, which is not declared"]


def test_a_library_without_any_kernel_limits_nothing_and_is_none_that_was_promised() -> None:
    idle, real = with_kernels("idle.so", "5.2", ""), with_kernels("a.so", "8.0", "8.0")
    rows = {row["gpu"]: row for row in gpu_table([idle, real], None, known=KNOWN)}
    assert (rows["8.0"]["verdict"], rows["8.0"]["without"]) == ("native", [])
    assert gpu_table([idle], None, known=KNOWN) == []
    assert set(broken([idle, real], "8.0")) == {"code-declared"}
    checked = check_code([idle, real], caps("8.0"), known=KNOWN, expected=["idle.so"])
    assert "idle.so holds no kernel at all" in {p.what for p in checked.problems}
    assert "code-present" in broken([idle], "8.0")
    assert set(check_code([idle], [], known=KNOWN).skipped) == set(CODE_RULES)


LISTS = st.lists(st.sampled_from(sorted(KNOWN.accepted)), max_size=6).map(frozenset)
DEVICES = st.sampled_from(sorted(c for c in KNOWN.accepted if not c.variant))


@given(LISTS, LISTS, LISTS, DEVICES)
def test_more_code_never_serves_worse(
    sass: frozenset[Capability],
    more: frozenset[Capability],
    ptx: frozenset[Capability],
    device: Capability,
) -> None:
    order = [Cover.NONE, Cover.PTX, Cover.SAME_MAJOR, Cover.NATIVE]
    before = cover(Targets(sass, ptx), device, known=KNOWN).cover
    after = cover(Targets(sass | more, ptx), device, known=KNOWN).cover
    assert order.index(after) >= order.index(before)


@given(LISTS.filter(bool), DEVICES)
def test_a_served_declaration_has_no_problem(
    sass: frozenset[Capability], device: Capability
) -> None:
    code = LibraryCode(name="a.so", cubins=dict.fromkeys(sass, 1))
    rules = {p.rule for p in check_code([code], [device], known=KNOWN).problems}
    runs = cover(code.targets, device, known=KNOWN).cover is not Cover.NONE
    assert ("code-present" in rules) is not runs
    assert "code-libraries" not in rules

from __future__ import annotations

from pathlib import Path

import pytest

from pinwheel.build.cubins import count_cubins, require_code
from pinwheel.buildroot.sandbox import Sandbox
from pinwheel.errors import WheelError
from pinwheel.matrix.models import load_matrix
from pinwheel.process import Result

# What cuobjdump 12.4.131 says: of a library with cubins for 8.0 and 9.0a and PTX for 9.0, of one
# without PTX, of one without device code, of a file that is none.
WHOLE = {
    "--list-elf": (
        "ELF file    1: k.1.sm_80.cubin\nELF file    2: k.2.sm_90.cubin\n"
        "ELF file    3: k.3.sm_80.cubin\nELF file    4: k.4.sm_90a.cubin\n",
        0,
    ),
    "--list-ptx": ("PTX file    1: k.1.sm_90.ptx\n", 0),
}
NO_PTX = {
    "--list-elf": (
        "ELF file    1: _moe_C.abi3.1.sm_86.cubin\nELF file   12: x.12.sm_120f.cubin\n",
        0,
    ),
    "--list-ptx": (
        "cuobjdump info    : No PTX file found to extract from '_moe_C.abi3.so'. "
        "You may try with -all option.\n",
        0,
    ),
}
NONE = dict.fromkeys(
    WHOLE,
    ("cuobjdump info    : File '_core_C.abi3.so' does not contain device code\n", 255),
)
BROKEN = dict.fromkeys(NONE, ("cuobjdump fatal   : Invalid fatbin header in 'x.so'\n", 1))


class Recorded(Sandbox):
    """Gives back what cuobjdump said, and checks what it would have seen."""

    def run(self, args, **options):  # type: ignore[no-untyped-def]  # noqa: ANN
        program, flag, library = args
        assert program == "/opt/cuda/bin/cuobjdump"
        assert {b.inside for b in options["binds"]} == {"/out", "/opt/cuda"}
        assert not any(b.writable for b in options["binds"])
        assert library == "/out/_C.abi3.so"
        output, code = SAID[flag]
        return Result(code, output, 0.0, 0.0)


SAID: dict[str, tuple[str, int]] = {}


def count(said: dict[str, tuple[str, int]], tmp_path: Path) -> dict[str, int]:
    SAID.update(said)
    return count_cubins(tmp_path / "_C.abi3.so", Recorded(tmp_path, ("none",)), tmp_path)


def test_cubins_and_ptx_are_counted_per_target(tmp_path: Path) -> None:
    assert count(WHOLE, tmp_path) == {"ptx sm_90": 1, "sm_80": 2, "sm_90": 1, "sm_90a": 1}
    assert count(NO_PTX, tmp_path) == {"sm_120f": 1, "sm_86": 1}


def test_no_device_code_is_an_empty_count(tmp_path: Path) -> None:
    assert count(NONE, tmp_path) == {}


def test_a_library_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=r"_C\.abi3\.so") as caught:
        count(BROKEN, tmp_path)
    assert "Invalid fatbin header" in caught.value.evidence[0]


MATRIX = load_matrix(Path(__file__).parents[3] / "arch_matrix.toml")
FLAGSHIP = {"sm_80": 9, "sm_86": 9, "sm_89": 9, "sm_90": 9, "sm_90a": 2}


def require(archs: str, **libraries: dict[str, int]) -> None:
    require_code(libraries, MATRIX.parse_capabilities(archs), known=MATRIX.known)


@pytest.mark.parametrize(
    ("archs", "libraries"),
    [
        ("8.0;8.6;8.9;9.0", {"_C": FLAGSHIP, "_moe_C": {"sm_80": 1, "sm_90": 1}}),
        # B9: 8.6 and 8.9 are served by 8.0's code of the same major.
        ("8.0;8.6;8.9;9.0", {"fa2": {"sm_80": 4, "sm_90": 4}}),
        ("8.0;9.0", {"_C": {"sm_80": 1, "sm_90": 1}, "fa3": {"sm_90a": 1}}),
        ("9.0a", {"_C": {"sm_90": 1, "sm_90a": 1}}),
        ("9.0+PTX", {"_C": {"sm_90": 1, "ptx sm_90": 1}}),
    ],
)
def test_code_for_every_capability(archs: str, libraries: dict[str, dict[str, int]]) -> None:
    require(archs, **libraries)


@pytest.mark.parametrize(
    ("archs", "library", "missing"),
    [
        ("8.7", {"sm_86": 9}, "no machine code for 8.7: 8.7 is missing"),  # B5, vLLM 0.6.3
        ("6.0;8.0", {"sm_80": 9}, "no machine code for 6.0: 6.0 is missing"),
        ("8.0;9.0", {"sm_80": 9, "ptx sm_80": 1}, "no machine code for 9.0"),  # PTX is no code
        ("8.0+PTX", {"sm_80": 9}, "no PTX for 8.0"),
        ("8.0;9.0+PTX", {"sm_80": 9, "sm_90": 9, "ptx sm_80": 9}, "no PTX for 9.0"),
        ("9.0a", {"sm_90": 9}, "no machine code for 9.0a"),
        ("8.0", {}, "no machine code for 8.0"),
    ],
)
def test_a_wheel_without_code_it_promises_is_refused(
    archs: str, library: dict[str, int], missing: str
) -> None:
    with pytest.raises(WheelError) as caught:
        require(archs, _C=library)
    assert caught.value.evidence[0].startswith(missing)
    assert caught.value.evidence[-1].startswith("_C: ")
    assert archs in caught.value.next_step

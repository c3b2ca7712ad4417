"""Requirements of METADATA: exact pins, markers, companions."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from verify_kit import Gate, Parts, broken, told

from pinwheel.verify.model import Status
from pinwheel.verify.requirements import exact_pin, on_linux


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("torch==2.3.0", "2.3.0"),
        ("torch===2.3.0", "2.3.0"),
        ("torch==2.3.0+cu121", "2.3.0+cu121"),
        ("torch==2.3.*", ""),
        ("torch>=2.3.0", ""),
        ("torch==2.3.0,!=2.3.1", ""),
        ("torch", ""),
        ("torch @ file:///x.whl", ""),
    ],
)
def test_exact_pin(text: str, pin: str) -> None:
    assert exact_pin(Requirement(text)) == pin


@pytest.mark.parametrize(
    ("marker", "asked"),
    [
        ("", True),
        ('; sys_platform == "linux"', True),
        ('; platform_machine == "aarch64"', False),
        ('; python_version < "3.10"', False),
        ('; python_version < "3.12"', True),
        ('; extra == "audio"', False),
        ('; os_name == "nt"', False),
    ],
)
def test_markers_are_those_of_linux_and_these_pythons(marker: str, asked: bool) -> None:
    assert on_linux(Requirement(f"torch{marker}"), ["3.10", "3.11"]) is asked


def test_a_companion_that_is_left_open(gate: Gate) -> None:
    parts = Parts(official=None)
    parts.requires[1] = "torchvision>=0.18"
    report = gate.report(parts)
    assert broken(report) == {"companion-pins": Status.FAILED}
    assert "does not pin torchvision" in told(report, "companion-pins")


def test_a_companion_that_metadata_does_not_name_is_the_locks_matter(gate: Gate) -> None:
    parts = Parts(official=None)
    del parts.requires[1]
    assert broken(gate.report(parts)) == {}


def test_a_wheel_that_uses_torch_and_does_not_ask_for_it(gate: Gate) -> None:
    parts = Parts(official=None)
    del parts.requires[0]
    report = gate.report(parts)
    assert broken(report) == {"torch-pin": Status.FAILED}
    assert "does not require torch" in told(report, "torch-pin")


def test_the_stable_abi_may_leave_the_release_open(gate: Gate) -> None:
    """A8: only aoti_torch_* and its like; a minimum torch, not an exact one."""
    parts = Parts(official=None)
    parts.requires[0] = "torch>=2.3"
    for library in (parts.c, parts.moe, parts.core):
        library.symbols = [s for s in library.symbols if not s.name.startswith("_Z")]
    report = gate.report(parts)
    assert broken(report) == {}
    library = report.facts["libraries"]["tinypack/_C.abi3.so"]
    assert library["torch-abi"] == "none"


def test_a_wheel_without_libraries(gate: Gate) -> None:
    parts = Parts(with_manifest=False, official=None)
    parts.requires = ["numpy"]
    parts.libraries = dict  # type: ignore[method-assign]
    report = gate.report(parts)
    # Upstream builds this release for GPUs, so one without any code is not what it claims.
    assert broken(report) == {"code-present": Status.FAILED}
    skipped = {o.rule for o in report.outcomes if o.status is Status.NOT_APPLICABLE}
    assert {"torch-pin", "torch-known", "abi-version", "platform-tag", "torch-code"} <= skipped

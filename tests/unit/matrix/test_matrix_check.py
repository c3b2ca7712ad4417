from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from matrix_kit import SMALL

from pinwheel.errors import ContradictionError
from pinwheel.matrix.check import check_matrix, driver_version, on_pin, raise_findings
from pinwheel.matrix.models import Matrix, ReleaseRow, TorchBuild, parse_matrix

Change = Callable[..., Matrix]


def test_the_projects_matrix_holds_no_contradiction(matrix: Matrix) -> None:
    assert check_matrix(matrix) == []


def test_small_holds_none() -> None:
    assert check_matrix(parse_matrix(SMALL, "small.toml")) == []


@pytest.mark.parametrize(
    ("path", "value", "rule", "sides"),
    [
        (
            ("cuda", "12.1", "native-driver"),
            "500.10.01",
            "driver-order",
            ("500.10.01", "525.60.13"),
        ),
        (("cuda", "12.4", "minor-driver"), "530.30.02", "minor-driver-differs", ("12.1", "12.4")),
        (("cuda", "12.1", "update-drivers"), {"12.1.1": "530.30.02"}, "driver-order", ("12.1.1",)),
        (("cuda", "12.1", "nvcc"), ["12.1.105", "12.4.1"], "version-of-another-line", ("12.4.1",)),
        (("cuda", "12.1", "releases"), {"12.1.1": "12.1.66"}, "nvcc-unknown", ("12.1.66",)),
        (("cuda", "12.1", "gcc-source"), None, "no-source", ("newest-gcc",)),
        (("cuda", "12.1", "newest-gcc"), None, "newest-gcc-unknown", ("12.1",)),
        (("cuda", "12.1", "native-driver"), None, "native-driver-unknown", ("12.1",)),
        (("torch", "2.3.0+cu121", "version"), "2.3.1", "torch-key", ("2.3.0+cu121", "2.3.1")),
        (("torch", "2.3.0+cu121", "cuda"), "12.4", "torch-key", ("2.3.0+cu121", "12.4")),
        (("torch", "2.3.0+cu121", "cuda"), "12.9", "cuda-line-unknown", ("12.9",)),
        (("torch", "2.3.0+cu121", "capabilities"), ["8.7"], "capability-not-targetable", ("8.7",)),
        (("toolkits", "tool-12.1.105", "line"), "13.0", "nvcc-unknown", ("12.1.105", "13.0.88")),
        (("toolkits", "tool-12.1.105", "line"), "12.2", "cuda-line-unknown", ("12.2",)),
        (("releases", "pkg", "1.0", "torch"), "2.5.0", "torch-unknown", ("2.5.0",)),
        (("releases", "pkg", "1.0", "torch"), None, "cuda-without-torch", ("12.1",)),
        (("releases", "pkg", "1.0", "cuda"), "12.4", "torch-cuda", ("12.4", "12.1")),
        (("releases", "pkg", "1.0", "python"), ">=3.12", "no-common-python", ("3.12", "3.11")),
        (
            ("combos", "cu121-torch2.3-pkg1.0", "torch"),
            "2.4.0+cu121",
            "combo-torch",
            ("2.3", "2.4"),
        ),
        (("combos", "cu121-torch2.3-pkg1.0", "torch"), "2.9.0+cu121", "torch-unknown", ("2.9.0",)),
        (("releases", "pkg"), None, "release-unknown", ("pkg 1.0",)),
    ],
)
def test_each_rule(
    change: Change, path: tuple[str, ...], value: Any, rule: str, sides: tuple[str, ...]
) -> None:
    findings = [f for f in check_matrix(change(*path, value=value)) if f.rule == rule]
    assert findings
    said = "\n".join(findings[0].sides)
    for text in sides:
        assert text in said
    assert "[" in said
    assert findings[0].next_step
    assert findings[0].as_dict()["rule"] == rule


def test_combo_of_another_cuda(change: Change) -> None:
    matrix = change(
        "combos", "cu124-torch2.3-pkg1.0", value={"torch": "2.3.0+cu121", "source": "here"}
    )
    (finding,) = check_matrix(matrix)
    assert finding.rule == "combo-cuda"
    assert "12.4" in finding.what
    assert "12.1" in finding.what


def test_findings_become_one_error_naming_all(change: Change) -> None:
    findings = check_matrix(change("torch", "2.3.0+cu121", "cuda", value="12.4"))
    assert len(findings) > 1
    with pytest.raises(ContradictionError) as caught:
        raise_findings(findings)
    assert caught.value.exit_code == 15
    for finding in findings:
        assert any(finding.what in line for line in caught.value.evidence)
        for text in finding.sides:
            assert any(text in line for line in caught.value.evidence)
    raise_findings([])


def _build(version: str, cuda: str) -> TorchBuild:
    return TorchBuild(version=version, cuda=cuda, pythons=("3.11",), source="a claim")


@pytest.mark.parametrize(
    ("release", "torch", "cuda", "right"),
    [
        ("0.4.2", "2.1.0", "11.8", False),
        ("0.5.3", "2.2.2", "12.1", False),
        ("0.6.3", "2.3.0", "12.1", False),
        ("0.4.3", "2.3.0", "12.1", True),
        ("0.4.3", "2.3.0", "11.8", False),
        ("0.6.3", "2.4.0", "12.1", True),
        ("0.5.3", "2.3.1", "12.1", True),
    ],
)
def test_pairs_that_circulate(
    matrix: Matrix, release: str, torch: str, cuda: str, right: bool
) -> None:
    assert on_pin(_build(torch, cuda), matrix.releases["vllm"][release]) is right


def test_a_release_without_pin_takes_any() -> None:
    assert on_pin(_build("9.9.9", "13.0"), ReleaseRow(source="none given"))


def test_driver_versions_compare_numerically() -> None:
    assert driver_version("570.26") < driver_version("570.124.06")  # C6
    assert driver_version("525.60.12") < driver_version("525.60.13")
    assert driver_version("580") <= driver_version("580.65.06")

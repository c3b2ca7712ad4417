"""The manifest against the wheel, the matrix, and the recipe; a forged one breaks nothing else."""

from __future__ import annotations

import json
import zipfile

import pytest
from verify_kit import INFO, Gate, Parts, broken, cubin_entry, told

from pinwheel.verify.model import Status

LIBRARY = "tinypack/_C.abi3.so"
DIGEST = "7" * 64


def stated(gate: Gate) -> dict[str, object]:
    """The right manifest."""
    gate.make()
    with zipfile.ZipFile(gate.wheel) as archive:
        found: dict[str, object] = json.loads(archive.read(f"{INFO}/pinwheel.json"))
    gate.place = gate.place / "again"
    gate.place.mkdir()
    return found


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": "1.3+cu121.torch2.3.ctk124"}, "another version"),
        ({"version": "1.2"}, "its version is none of an artifact"),
        ({"distribution": "otherpack"}, "another distribution"),
        ({"platform-tag": "manylinux1_x86_64"}, "another platform tag"),
        ({"toolkit": {"name": "debian-12.4.131", "line": "12.1", "nvcc": "x"}}, "toolkit and"),
        ({"recipe-sha256": DIGEST}, "another recipe"),
        ({"torch": {"version": "2.3.0", "cuda": "12.1", "cxx11-abi": True}}, "ABI flag"),
        ({"capabilities-of-recipe": "8.0"}, "capabilities that its recipe does not have"),
        ({"capabilities-of-recipe": "native"}, "cannot be read"),
        ({"python": "3.12"}, "another Python"),
    ],
)
def test_a_false_statement(gate: Gate, changes: dict[str, object], says: str) -> None:
    # With --combo, so that a manifest whose digests are false is compared all the same.
    report = gate.report(Parts(manifest=changes), combo="cu121-torch2.3-tinypack1.2")
    assert broken(report) == {"manifest-agrees": Status.FAILED}
    assert says in told(report, "manifest-agrees")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("sha256", DIGEST, "another hash"),
        ("size", 1, "another size"),
        ("kind", "library", "another kind"),
        ("needed", ["libtorch.so"], "other NEEDED"),
        ("device-code", False, "device code"),
        ("symbol-floor", {"GLIBC": "2.5"}, "another symbol floor"),
        ("cubins", {"sm_80": 2}, "other cubins"),
    ],
)
def test_a_false_statement_on_a_library(gate: Gate, key: str, value: object, says: str) -> None:
    libraries = stated(gate)["libraries"]
    assert isinstance(libraries, dict)
    libraries[LIBRARY][key] = value
    report = gate.report(Parts(manifest={"libraries": libraries}))
    assert broken(report) == {"manifest-agrees": Status.FAILED}
    assert f"{LIBRARY}: {says}" in told(report, "manifest-agrees")


def test_a_library_more_and_a_library_less(gate: Gate) -> None:
    libraries = stated(gate)["libraries"]
    assert isinstance(libraries, dict)
    libraries["tinypack/_gone.so"] = libraries.pop(LIBRARY)
    report = gate.report(Parts(manifest={"libraries": libraries}))
    said = told(report, "manifest-agrees")
    assert "a library it does not name" in said
    assert "a library that is not there" in said
    assert "other libraries than the recipe's" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"manifest-version": 2},
        {"lock-sha256": "short"},
        {"capabilities": "8.0"},
        {"libraries": []},
        {"torch": None},
        {"toolkit": {}},
    ],
)
def test_one_of_another_shape_cannot_be_read_and_stays_ours(
    gate: Gate, changes: dict[str, object]
) -> None:
    report = gate.report(Parts(manifest=changes))
    assert report.profile.value == "ours"
    assert broken(report)["manifest-agrees"] is Status.FAILED
    assert "cannot be read" in told(report, "manifest-agrees")
    assert not report.fits


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff", b'{"a": 1e999999}', b"null"])
def test_one_that_is_no_json(gate: Gate, data: bytes) -> None:
    parts = Parts(with_manifest=False)
    parts.files[f"{INFO}/pinwheel.json"] = data
    report = gate.report(parts)
    assert broken(report)["manifest-agrees"] is Status.FAILED


def test_one_that_is_too_large(gate: Gate) -> None:
    parts = Parts(with_manifest=False)
    parts.files[f"{INFO}/pinwheel.json"] = b" " * (5 << 20)
    assert "more than" in told(gate.report(parts), "manifest-agrees")


def test_exceptions_of_the_manifest_count_where_the_recipe_is_not_at_hand(gate: Gate) -> None:
    row = {
        "library": "tinypack/_moe_C.abi3.so",
        "capability": "9.0",
        "fault": "missing",
        "reason": "a test",
    }
    parts = Parts(manifest={"code-exceptions": [row], "recipe-sha256": DIGEST})
    parts.moe.entries = [cubin_entry(80)]
    found = broken(gate.report(parts))
    assert not {rule for rule in found if rule.startswith("code-")}


def test_a_list_of_the_recipe_that_cannot_be_read_leaves_the_code_unknown(gate: Gate) -> None:
    changes = {"capabilities-of-recipe": "native", "recipe-sha256": DIGEST}
    found = broken(gate.report(Parts(manifest=changes)))
    assert found["manifest-agrees"] is Status.FAILED
    assert found["code-present"] is Status.UNKNOWN

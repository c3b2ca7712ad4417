"""``--profile release``: what it asks beyond a wheel of ours, each rule broken by itself."""

from __future__ import annotations

import json
import shutil
import zipfile
from typing import Any

import pytest
from verify_kit import (
    COMBO,
    INFO,
    TOOLKIT,
    Gate,
    Parts,
    broken,
    cubin_entry,
    outcome,
    told,
    write_official,
)

from pinwheel.recipe.lock import Role
from pinwheel.recipe.lockfile import read_lock
from pinwheel.verify.model import Profile, Report, Status

LOCKED = {"name": TOOLKIT, "line": "12.4", "nvcc": "12.4.131", "kind": "locked"}
EXCEPTION = {
    "library": "tinypack/_moe_C.abi3.so",
    "capability": "9.0",
    "fault": "missing",
    "reason": "a test",
}


def release(gate: Gate, parts: Parts | None = None, **request: Any) -> Report:
    return gate.report(parts, profile=Profile.RELEASE, **request)


def only_80(parts: Parts) -> Parts:
    for library in (parts.c, parts.moe):
        library.entries = [cubin_entry(80)]
    return parts


def test_a_wheel_for_fewer_capabilities_is_ours_and_no_release(gate: Gate) -> None:
    parts = only_80(Parts(manifest={"capabilities": ["8.0"]}))
    report = release(gate, parts)
    assert broken(report) == {"whole": Status.FAILED}
    assert "missing: 9.0" in told(report, "whole")
    assert broken(gate.again(gate.wheel, loaded=parts.loaded)) == {}


def test_an_option_that_asks_for_less_is_no_release(gate: Gate) -> None:
    report = release(gate, archs="8.0")
    assert report.fits is False
    assert "--archs" in told(report, "whole")
    assert "it was built for" not in told(report, "whole")


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"root": {"kind": "host"}}, Status.FAILED, "locked root"),
        ({"root": {"kind": "container", "digest": "x"}}, Status.FAILED, "container"),
        ({"root": None}, Status.UNKNOWN, "does not say which root"),
        ({"toolkit": {**LOCKED, "kind": "system"}}, Status.FAILED, "locked toolkit"),
        ({"toolkit": {**LOCKED, "kind": ""}}, Status.UNKNOWN, "does not say which toolkit"),
    ],
)
def test_a_root_or_toolkit_that_is_not_locked(
    gate: Gate, changes: dict[str, Any], status: Status, says: str
) -> None:
    parts = Parts(manifest=changes)
    report = release(gate, parts)
    assert broken(report) == {"hermetic": status}
    assert says in told(report, "hermetic")
    assert broken(gate.again(gate.wheel, loaded=parts.loaded)) == {}


def test_a_lock_without_a_root_makes_the_word_a_lie(gate: Gate) -> None:
    wheel = gate.make()
    lock = next(gate.settings.project.rglob("lock.*.toml"))
    lock.write_text(lock.read_text().replace('roles = ["root"]', 'roles = ["tool"]'))
    report = gate.again(wheel, profile=Profile.RELEASE, combo=COMBO, loaded=Parts().loaded)
    assert outcome(report, "hermetic").status is Status.FAILED
    assert "lock: 0 files" in told(report, "hermetic")


def test_without_the_projects_recipe_nothing_is_a_release(gate: Gate) -> None:
    report = release(gate, Parts(manifest={"recipe-sha256": "5" * 64}))
    found = broken(report)
    assert {"recipe-known", "whole", "parity-answered"} <= {*found}
    assert set(found.values()) == {Status.UNKNOWN}
    assert "another now" in told(report, "recipe-known")


def test_the_wheels_own_exceptions_excuse_no_release(gate: Gate) -> None:
    changes = {"code-exceptions": [EXCEPTION], "recipe-sha256": "5" * 64}
    parts = Parts(manifest=changes)
    parts.moe.entries = [cubin_entry(80)]
    report = release(gate, parts)
    assert outcome(report, "code-libraries").status is Status.FAILED
    ours = gate.again(gate.wheel, loaded=parts.loaded)
    assert outcome(ours, "code-libraries").status is Status.PASSED


def test_exceptions_that_the_recipe_does_not_have_are_a_forgery(gate: Gate) -> None:
    parts = Parts(manifest={"code-exceptions": [EXCEPTION]})
    report = release(gate, parts)
    assert broken(report) == {"manifest-agrees": Status.FAILED}
    assert "other exceptions" in told(report, "manifest-agrees")


def test_a_lock_that_names_no_official_wheel_leaves_parity_open(gate: Gate) -> None:
    parts = Parts(official=None)
    report = release(gate, parts)
    assert broken(report) == {"parity-answered": Status.UNKNOWN}
    assert "names no official wheel" in told(report, "parity-answered")
    assert broken(gate.again(gate.wheel, loaded=parts.loaded)) == {}


def test_an_official_wheel_that_is_not_in_the_store(gate: Gate) -> None:
    wheel = gate.make()
    shutil.rmtree(gate.settings.store)
    report = gate.again(wheel, profile=Profile.RELEASE, loaded=Parts().loaded)
    assert broken(report) == {"parity": Status.UNKNOWN, "parity-answered": Status.UNKNOWN}
    assert "pinwheel fetch" in outcome(report, "parity").next_steps[0]


def test_another_wheel_than_the_locks_is_not_the_official_one(gate: Gate) -> None:
    wheel = gate.make()
    (gate.place / "other").mkdir()
    name = "tinypack-1.2-cp38-abi3-manylinux1_x86_64.whl"
    other = write_official(Parts(official={"tinypack/more.txt": b"x"}), gate.place / "other" / name)
    for official in (other, wheel):
        report = gate.again(
            wheel, profile=Profile.RELEASE, official=official, loaded=Parts().loaded
        )
        assert outcome(report, "parity-answered").status is Status.FAILED
        assert "which the lock names" in told(report, "parity-answered")


def test_without_the_loaders_answer_it_is_none(gate: Gate) -> None:
    report = release(gate, loaded=None)
    assert broken(report) == {"loader-answered": Status.UNKNOWN}
    assert ".whl.manifest.json" in outcome(report, "loader-answered").next_steps[0]


def test_an_answer_with_a_hole_is_none_either(gate: Gate) -> None:
    parts = Parts()
    del parts.loaded["libcudart"]
    report = release(gate, parts)
    assert broken(report) == {
        "one-libtorch": Status.UNKNOWN,
        "loader-answered": Status.UNKNOWN,
    }


def test_anyone_elses_wheel_is_no_release(gate: Gate) -> None:
    report = release(gate, Parts(with_manifest=False))
    found = broken(report)
    assert found["manifest-agrees"] is Status.FAILED
    assert {"whole", "hermetic", "recipe-known"} <= {*found}
    assert all(o.next_steps for o in report.broken())


# --- parity says what it is held against ----------------------------------------------------


def test_parity_names_the_official_wheel_and_the_targets_of_both(gate: Gate) -> None:
    parts = Parts()
    parts.moe.entries = [cubin_entry(80), cubin_entry(90), cubin_entry(86)]
    gate.make(parts)
    parity = gate.again(gate.wheel, loaded=parts.loaded).facts["parity"]
    (item,) = read_lock(next(gate.settings.project.rglob("lock.*.toml"))).with_role(Role.REFERENCE)
    assert (parity["official"], parity["official-sha256"]) == (item.path, item.sha256)
    assert parity["targets"]["tinypack/_moe_C.abi3.so"] == {
        "official": {"sm_80": 1, "sm_90": 1, "sm_90a": 1},
        "ours": {"sm_80": 1, "sm_86": 1, "sm_90": 1},
    }
    assert "tinypack/_core_C.abi3.so" not in parity["targets"]


def test_the_kits_manifest_states_what_a_build_states(gate: Gate) -> None:
    with zipfile.ZipFile(gate.make()) as archive:
        stated = json.loads(archive.read(f"{INFO}/pinwheel.json"))
    assert stated["root"]["kind"] == stated["toolkit"]["kind"] == "locked"

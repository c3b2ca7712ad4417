"""The loader's answer: kept beside the wheel by the build, bound to it, and read later."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verify_kit import COMBO, TOOLKIT, Gate, Parts, outcome, told

from pinwheel.build import placing
from pinwheel.build.gate import gate as ask_gate
from pinwheel.build.gate import keep_loaded
from pinwheel.console import Console
from pinwheel.errors import GateError
from pinwheel.files import sha256_file
from pinwheel.verify.loaded import KEY, ONE, kept
from pinwheel.verify.manifest import MOST, SIDECAR
from pinwheel.verify.model import Profile, Report, Status
from pinwheel.verify.show import show

LOADED = {name: paths[0] for name, paths in Parts().loaded.items()}


def beside(wheel: Path) -> Path:
    return wheel.with_name(f"{wheel.name}{SIDECAR}")


def built(gate: Gate, parts: Parts | None = None) -> Path:
    """A wheel as it lies in dist/, with what finishing and the gate write beside it."""
    wheel = gate.make(parts)
    stated = {"wheel": {"name": wheel.name, "sha256": sha256_file(wheel)}}
    beside(wheel).write_text(json.dumps(stated))
    keep_loaded(wheel, sha256_file(wheel), LOADED)
    return wheel


def rewrite(wheel: Path, change: Any) -> None:
    stated = json.loads(beside(wheel).read_text())
    change(stated)
    beside(wheel).write_text(json.dumps(stated))


def reason(report: Report) -> tuple[Status, str]:
    found = outcome(report, ONE)
    return found.status, found.reason


def test_the_build_and_verify_mean_the_same_file() -> None:
    assert SIDECAR == placing.SIDECAR


def test_what_the_build_saw_answers_the_rule_and_every_path_is_named(gate: Gate) -> None:
    report = gate.again(built(gate))
    status, said = reason(report)
    assert status is Status.PASSED
    assert all(f"{name}: {path}" in said for name, path in LOADED.items())
    assert report.facts[KEY] == {
        "from": "kept in the manifest beside it",
        "libraries": {name: [path] for name, path in LOADED.items()},
    }


def test_the_sums_beside_the_wheel_hold_and_nothing_else_changes(gate: Gate) -> None:
    wheel = built(gate)
    before = wheel.read_bytes()
    lines = (wheel.parent / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert sums == {p.name: sha256_file(p) for p in (wheel, beside(wheel))}
    stated = json.loads(beside(wheel).read_text())
    assert stated.pop(KEY)["wheel-sha256"] == sha256_file(wheel)
    assert stated == {"wheel": {"name": wheel.name, "sha256": sha256_file(wheel)}}
    keep_loaded(wheel, sha256_file(wheel), LOADED)
    assert wheel.read_bytes() == before


@pytest.mark.parametrize("fits", [True, False])
def test_the_builds_gate_keeps_it_for_a_wheel_that_fits(gate: Gate, fits: bool) -> None:
    parts = Parts()
    if not fits:
        parts.c.stack = 7
    wheel = gate.make(parts)
    beside(wheel).write_text("{}")
    order: Any = SimpleNamespace(loaded=SimpleNamespace(combo=COMBO), toolkit=TOOLKIT)
    with nullcontext() if fits else pytest.raises(GateError):
        ask_gate(wheel, order, LOADED, gate.settings, Console(quiet=True))
    stated = json.loads(beside(wheel).read_text())
    assert stated == ({KEY: kept(sha256_file(wheel), Parts().loaded)} if fits else {})


def test_without_a_manifest_beside_it_there_is_nothing_to_keep_it_in(gate: Gate) -> None:
    wheel = gate.make()
    keep_loaded(wheel, sha256_file(wheel), LOADED)
    assert not beside(wheel).exists()
    status, said = reason(gate.again(wheel))
    assert status is Status.NOT_APPLICABLE
    assert said.startswith("not run here")


def test_one_that_keeps_no_answer_is_not_run(gate: Gate) -> None:
    wheel = gate.make()
    beside(wheel).write_text("{}")
    status, said = reason(gate.again(wheel))
    assert status is Status.NOT_APPLICABLE
    assert "did not keep" in said


def test_an_answer_for_other_bytes_is_none(gate: Gate) -> None:
    wheel = built(gate)
    rewrite(wheel, lambda stated: stated[KEY].update({"wheel-sha256": "6" * 64}))
    report = gate.again(wheel)
    assert outcome(report, ONE).status is Status.UNKNOWN
    assert "6" * 64 in told(report, ONE)
    assert sha256_file(wheel) in told(report, ONE)
    assert not report.fits


def test_two_copies_are_an_error_that_names_both(gate: Gate) -> None:
    """A9."""
    wheel = built(gate)
    other = "/opt/env/other/libtorch.so"
    rewrite(wheel, lambda stated: stated[KEY]["libraries"]["libtorch"].append(other))
    found = outcome(gate.again(wheel), ONE)
    assert found.status is Status.FAILED
    assert found.problems[0].evidence == tuple(sorted((LOADED["libtorch"], other)))


@pytest.mark.parametrize("name", LOADED)
def test_one_that_was_not_looked_for_is_unknown(gate: Gate, name: str) -> None:
    wheel = built(gate)
    rewrite(wheel, lambda stated: stated[KEY]["libraries"].pop(name))
    report = gate.again(wheel)
    assert outcome(report, ONE).status is Status.UNKNOWN
    assert f"no {name}" in told(report, ONE)


def test_a_strangers_wheel_is_not_run_whatever_lies_beside_it(gate: Gate) -> None:
    report = gate.again(built(gate), profile=Profile.STRANGER)
    status, said = reason(report)
    assert status is Status.NOT_APPLICABLE
    assert said.startswith("not run")
    assert KEY not in report.facts


DIGEST = "7" * 64
HOSTILE = {
    "empty": b"",
    "no json": b"{",
    "deep": b"[" * 100_000,
    "bytes": b"\xff\x00",
    "null": b"null",
    "a list": b"[]",
    "another shape": json.dumps({KEY: {"wheel-sha256": DIGEST, "libraries": []}}).encode(),
    "a number": json.dumps({KEY: {"wheel-sha256": DIGEST, "libraries": {"libc10": [1]}}}).encode(),
    "a strange name": json.dumps(
        {KEY: {"wheel-sha256": DIGEST, "libraries": {"\x1b[2J": ["/x"]}}}
    ).encode(),
    "an empty path": json.dumps(
        {KEY: {"wheel-sha256": DIGEST, "libraries": {"libc10": [""]}}}
    ).encode(),
    "no digest": json.dumps({KEY: {"libraries": {}}}).encode(),
    "too large": b" " * (MOST + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_that_cannot_be_read_is_unknown_with_a_next_step(gate: Gate, name: str) -> None:
    wheel = gate.make()
    beside(wheel).write_bytes(HOSTILE[name])
    report = gate.again(wheel)
    assert outcome(report, ONE).status is Status.UNKNOWN
    assert all(outcome(report, ONE).next_steps)
    assert not report.fits


def test_a_pipe_in_its_place_holds_nobody_up(gate: Gate) -> None:
    wheel = gate.make()
    os.mkfifo(beside(wheel))
    assert reason(gate.again(wheel))[0] is Status.NOT_APPLICABLE


def test_a_path_cannot_drive_a_terminal(gate: Gate) -> None:
    wheel = built(gate)
    evil = "/opt\x1b[2J\nFAILED abi-version"
    rewrite(wheel, lambda stated: stated[KEY]["libraries"]["libtorch"].append(evil))
    out = StringIO()
    show(gate.again(wheel), Console(out=out))
    assert "\x1b" not in out.getvalue()
    assert not any(line.startswith("FAILED abi") for line in out.getvalue().splitlines())


names = st.dictionaries(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=4), max_size=5)


@given(names)
def test_what_is_kept_is_the_same_whatever_the_order(found: dict[str, list[str]]) -> None:
    turned = {name: tuple(reversed(paths)) for name, paths in reversed(found.items())}
    assert json.dumps(kept(DIGEST, found)) == json.dumps(kept(DIGEST, turned))

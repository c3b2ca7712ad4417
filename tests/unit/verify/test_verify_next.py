"""Whoever reads UNKNOWN or FAILED is told what to do, in each form a report has."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from verify_kit import Gate, Parts, cubin_entry

from pinwheel.console import Console
from pinwheel.verify.junit import junit
from pinwheel.verify.model import Profile, Report, Status
from pinwheel.verify.show import document, show

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "verify-report.schema.json").read_text())


def nothing_known(gate: Gate) -> Report:
    parts = Parts(with_manifest=False, requires=["numpy<2"])
    return gate.report(parts, profile=Profile.RELEASE, loaded=None)


def no_torch(gate: Gate) -> Report:
    return gate.report(Parts(with_manifest=False, requires=["torch>=2.3"]), loaded=None)


def no_kernels(gate: Gate) -> Report:
    return gate.report(kernels=False)


def another_lock(gate: Gate) -> Report:
    return gate.report(Parts(manifest={"lock-sha256": "5" * 64}))


def new_capability(gate: Gate) -> Report:
    parts = Parts()
    parts.c.entries.append(cubin_entry(88))
    return gate.report(parts)


MADE: list[Callable[[Gate], Report]] = [
    nothing_known,
    no_torch,
    no_kernels,
    another_lock,
    new_capability,
]
Make = pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)


def open_rules(report: Report) -> list[str]:
    found = [o.rule for o in report.broken(Status.UNKNOWN, Status.FAILED)]
    assert found
    return found


@Make
def test_in_plain_lines(gate: Gate, make: Callable[[Gate], Report]) -> None:
    report = make(gate)
    out = io.StringIO()
    show(report, Console(out=out))
    rule, told = "", {}
    for line in out.getvalue().splitlines():
        if line.startswith(("UNKNOWN", "FAILED", "passed", "warning", "- ")):
            rule = line.split()[1]
        if line.strip().startswith("next: "):
            told[rule] = line
    assert set(open_rules(report)) <= set(told)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@Make
def test_in_the_table(
    gate: Gate, make: Callable[[Gate], Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "2000")
    report = make(gate)
    out = Terminal()
    show(report, Console(out=out))
    text = out.getvalue()
    for outcome in report.broken(Status.UNKNOWN, Status.FAILED):
        assert all(" ".join(step.split()) in text for step in outcome.next_steps), outcome.rule


@Make
def test_in_json(gate: Gate, make: Callable[[Gate], Report]) -> None:
    report = make(gate)
    data: dict[str, Any] = json.loads(json.dumps(document([report])))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    outcomes = {o["rule"]: o for o in data["reports"][0]["outcomes"]}
    for rule in open_rules(report):
        assert outcomes[rule]["problems"]
        assert all(p["next"] for p in outcomes[rule]["problems"])


@Make
def test_in_junit(gate: Gate, make: Callable[[Gate], Report]) -> None:
    report = make(gate)
    cases = {case.get("name"): case for case in ET.fromstring(junit([report])).iter("testcase")}
    for rule in open_rules(report):
        (found,) = cases[rule]
        assert found.tag in ("failure", "error")
        assert "next: " in (found.text or ""), rule


def test_the_schema_wants_a_next_step(gate: Gate) -> None:
    data = json.loads(json.dumps(document([no_kernels(gate)])))
    unknown = next(o for o in data["reports"][0]["outcomes"] if o["status"] == "unknown")
    unknown["problems"][0]["next"] = ""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(data)
    unknown["problems"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(data)

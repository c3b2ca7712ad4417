"""What people and programs are shown: lines, tables, JSON by its schema, JUnit."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from verify_kit import Gate, Parts, Sym, cubin_entry

from pinwheel.console import Console
from pinwheel.errors import ArtifactError
from pinwheel.verify.junit import junit
from pinwheel.verify.model import Outcome, Problem, Profile, Report, Status
from pinwheel.verify.rules import RULES
from pinwheel.verify.show import document, show

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "verify-report.schema.json").read_text())
ERROR = ArtifactError("x.whl cannot be read", evidence=["at 0x0"], next_step="Get it again.")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(report: Report, *, terminal: bool = False, verbose: int = 0) -> str:
    out = Terminal() if terminal else io.StringIO()
    show(report, Console(out=out, err=io.StringIO(), verbose=verbose))
    return out.getvalue()


def damaged() -> Parts:
    parts = Parts()
    parts.c.symbols.append(Sym("a_function_nobody_has"))
    parts.c.symbols.append(Sym("cublasHgemm"))
    parts.moe.entries = [cubin_entry(80)]
    return parts


def validate(data: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(data)))


@pytest.mark.parametrize("parts", [Parts(), damaged(), Parts(with_manifest=False)])
def test_the_document_is_what_the_schema_says(gate: Gate, parts: Parts) -> None:
    report = gate.report(parts)
    validate(document([report]))
    validate(document([report], [("x.whl", ERROR.as_dict())]))
    validate(document([]))


def test_unknown_keys_and_statuses_are_no_document(gate: Gate) -> None:
    data = document([gate.report()])
    data["reports"][0]["outcomes"][0]["status"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        validate(data)


def test_nothing_read_fits_nothing(gate: Gate) -> None:
    assert document([])["fits"] is False
    report = gate.report()
    assert document([report])["fits"] is True
    assert document([report], [("x.whl", ERROR.as_dict())])["fits"] is False


def test_plain_lines_have_no_escape_and_say_what_to_do(gate: Gate) -> None:
    text = shown(gate.report(damaged()))
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].startswith(gate.wheel.name)
    assert any(line.startswith("FAILED   abi-resolved") for line in lines)
    assert any(line.startswith("warning  abi-preload") for line in lines)
    assert any(line.startswith("FAILED   code-libraries") for line in lines)
    assert any(line.strip().startswith("next: Find the library") for line in lines)
    gpus = [line.split("\t") for line in lines if line.startswith(("8.0\t", "9.0\t", "12.0\t"))]
    assert [row[0] for row in gpus] == ["8.0", "9.0", "12.0"]
    assert {len(row) for row in gpus} == {6}


def test_a_terminal_gets_tables(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(gate.report(damaged()), terminal=True)
    assert "what to do" in text
    assert "does not run" in text


def report_of(problem: Problem) -> Report:
    outcome = Outcome(rule=problem.rule, title="a title", status=Status.FAILED, problems=(problem,))
    stated = {"value": "x", "from": "y"}
    return Report(
        wheel="a-1-py3-none-any.whl",
        sha256="0" * 64,
        size=1,
        profile=Profile.STRANGER,
        claim={
            **dict.fromkeys(("profile", "combo", "lock", "torch"), stated),
            "capabilities": {"value": [], "from": "nobody"},
            "overridden": [],
        },
        outcomes=(outcome,),
        facts={"libraries": {}},
    )


def test_hostile_names_cannot_forge_lines_or_drive_a_terminal() -> None:
    evil = "x\x1b[2J\npassed   abi-version\u202e"
    report = report_of(
        Problem(rule="no-rpath", subject=evil, what=evil, evidence=(evil,), next_step=evil)
    )
    for terminal in (False, True):
        text = shown(report, terminal=terminal)
        assert "\x1b[2J" not in text
        assert "\u202e" not in text
        assert not any(line.startswith("passed") for line in text.splitlines())
    ET.fromstring(junit([report]))  # XML that can be read


def test_long_evidence_is_cut_and_v_shows_it() -> None:
    lines = tuple(f"line {i}" for i in range(40))
    report = report_of(Problem(rule="no-rpath", subject="a", what="b", evidence=lines))
    assert "line 30" not in shown(report)
    assert "34 more lines (-v)" in shown(report)
    assert "line 30" in shown(report, verbose=1)


def test_junit_has_a_case_for_each_rule(gate: Gate) -> None:
    report = gate.report(damaged(), torch="2.5.1")
    root = ET.fromstring(junit([report], [("x.whl", ERROR)]))
    suite, other = root
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == list(RULES)
    tags = {name: [child.tag for child in case] for name, case in cases.items()}
    by_status = {
        Status.PASSED: [],
        Status.FAILED: ["failure"],
        Status.UNKNOWN: ["error"],
        Status.NOT_APPLICABLE: ["skipped"],
        Status.WARNING: ["system-out"],
    }
    for outcome in report.outcomes:
        assert tags[outcome.rule] == by_status[outcome.status]
    statuses = [o.status for o in report.outcomes]
    assert suite.get("failures") == str(statuses.count(Status.FAILED))
    assert suite.get("errors") == str(statuses.count(Status.UNKNOWN))
    assert suite.get("tests") == str(len(RULES))
    assert other.get("name") == "x.whl"
    assert other.find(".//error") is not None

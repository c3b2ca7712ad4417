from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pinwheel import errors
from pinwheel.cli.main import BUG, INTERRUPTED, READER_GONE
from pinwheel.errors import PinwheelError

PROJECT = Path(__file__).parents[2]
CLASSES = sorted(
    (
        c
        for c in vars(errors).values()
        if isinstance(c, type) and issubclass(c, PinwheelError) and c is not PinwheelError
    ),
    key=lambda c: c.exit_code,
)
# Codes that are no class: success, a check that answers no, wrong usage, the endings.
OTHERS = {0: "", 1: "", 2: "", BUG: "internal", INTERRUPTED: "", READER_GONE: ""}


def table() -> dict[int, tuple[str, str, str]]:
    """The rows of docs/exit-codes.md: code -> rule, what, what to do."""
    text = (PROJECT / "docs/exit-codes.md").read_text(encoding="utf-8")
    rows: dict[int, tuple[str, str, str]] = {}
    for line in text.splitlines():
        row = line.strip().removeprefix("|").removesuffix("|")
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        if len(cells) == 4 and cells[0].isdigit():
            assert int(cells[0]) not in rows, f"{cells[0]} is there twice"
            rows[int(cells[0])] = (cells[1].strip("`"), cells[2], cells[3])
    return rows


def test_each_class_has_a_code_and_a_rule_of_its_own() -> None:
    assert len(CLASSES) > 20
    assert len({c.exit_code for c in CLASSES}) == len(CLASSES)
    assert len({c.rule for c in CLASSES}) == len(CLASSES)
    for kind in CLASSES:
        assert "exit_code" in vars(kind), kind
        assert "rule" in vars(kind), kind
        assert 10 <= kind.exit_code < BUG
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.rule)
        assert kind.__doc__


def test_the_documented_codes_are_the_codes() -> None:
    documented = {code: row[0] for code, row in table().items()}
    assert documented == {**OTHERS, **{c.exit_code: c.rule for c in CLASSES}}


def test_each_documented_code_says_what_to_do() -> None:
    for code, (_, what, todo) in table().items():
        assert what, code
        assert todo or code == 0


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_an_error_as_data(kind: type[PinwheelError]) -> None:
    error = kind("it is wrong", evidence=["a", "b"], next_step="Correct it.")
    assert str(error) == "it is wrong"
    assert error.as_dict() == {
        "error": "it is wrong",
        "rule": kind.rule,
        "evidence": ["a", "b"],
        "next": "Correct it.",
        "exit_code": kind.exit_code,
    }


def test_one_line_of_evidence_is_one_line() -> None:
    assert PinwheelError("x", evidence="line", next_step="y").evidence == ("line",)


def test_every_error_raised_says_what_to_do_next() -> None:
    """No call without ``next_step`` hides in a branch that no test reaches."""
    names = {c.__name__ for c in CLASSES}
    calls = 0
    for path in (PROJECT / "src/pinwheel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in names
            ):
                calls += 1
                keywords = {k.arg for k in node.keywords}
                assert keywords & {"next_step", None}, f"{path}:{node.lineno}"
    assert calls > 50

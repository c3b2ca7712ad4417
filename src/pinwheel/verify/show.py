"""A report for people: tables on a terminal, plain lines anywhere else, the summary last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pinwheel.console import Console
from pinwheel.files import human_bytes
from pinwheel.inspect.region import printable
from pinwheel.verify.model import REPORT_VERSION, Outcome, Problem, Report, Status

SHOWN = 6  # evidence lines of one problem; -v and --json have all
_WIDEST = 500  # characters of one line
_WORD = {
    Status.PASSED: "passed",
    Status.NOT_APPLICABLE: "-",
    Status.WARNING: "warning",
    Status.UNKNOWN: "UNKNOWN",
    Status.FAILED: "FAILED",
}


def show(report: Report, console: Console) -> None:
    """Everything but the summary, on stdout."""
    for line in _head(report):
        console.result(line)
    console.result("")
    if console.out.isatty():
        console.table(
            "", ("rule", "verdict", "what was found", "what to do"), _rows(report, console)
        )
    else:
        for outcome in report.outcomes:
            _plain(outcome, console)
    if gpus := _gpus(report):
        console.result("")
        console.table("GPUs", gpus[0], gpus[1:])


def _head(report: Report) -> Iterator[str]:
    claim = report.claim
    yield f"{printable(report.wheel)}: {human_bytes(report.size)}, sha256 {report.sha256}"
    for key in ("profile", "combo", "torch", "capabilities"):
        part: dict[str, Any] = claim[key]
        value = part["value"]
        text = " ".join(value) if isinstance(value, list) else str(value or "")
        source = printable(part["from"], _WIDEST)
        yield f"{key:<13} {printable(text)} ({source})" if text else f"{key:<13} {source}"
    for line in claim["overridden"]:
        yield f"{'overridden':<13} {printable(line, _WIDEST)}"


def _rows(report: Report, console: Console) -> Iterator[tuple[str, str, str, str]]:
    for outcome in report.outcomes:
        word = _WORD[outcome.status]
        if not outcome.problems:
            yield outcome.rule, word, printable(outcome.reason, _WIDEST), ""
        for number, problem in enumerate(outcome.problems):
            found = "\n".join(_found(problem, console))
            first = (outcome.rule, word) if number == 0 else ("", "")
            yield *first, found, printable(problem.next_step, _WIDEST)


def _plain(outcome: Outcome, console: Console) -> None:
    head = f"{_WORD[outcome.status]:<8} {outcome.rule:<16}"
    if not outcome.problems:
        console.result(f"{head} {printable(outcome.reason, _WIDEST)}".rstrip())
    for problem in outcome.problems:
        first, *rest = _found(problem, console)
        console.result(f"{head} {first}")
        for line in rest:
            console.result(f"{'':<25} {line}")
        if problem.next_step:
            console.result(f"{'':<25} next: {printable(problem.next_step, _WIDEST)}")


def _found(problem: Problem, console: Console) -> list[str]:
    evidence = problem.evidence
    shown = evidence if console.verbose or len(evidence) <= SHOWN + 1 else evidence[:SHOWN]
    lines = [printable(problem.what, _WIDEST), *(f"  {printable(e, _WIDEST)}" for e in shown)]
    if len(shown) < len(evidence):
        lines.append(f"  and {len(evidence) - len(shown)} more lines (-v)")
    return lines


def _gpus(report: Report) -> Sequence[tuple[str, ...]]:
    rows = [
        (r["gpu"], r["name"], r["verdict"], r["limited-by"], r["reason"], " ".join(r["without"]))
        for r in report.facts.get("gpus", ())
    ]
    return [("GPU", "name", "verdict", "limited by", "why", "without"), *rows] if rows else ()


def document(
    reports: Sequence[Report], errors: Sequence[tuple[str, dict[str, object]]] = ()
) -> dict[str, Any]:
    """What ``--json`` writes; ``docs/verify-report.schema.json`` is its schema.

    Args:
        reports: of the wheels that could be read.
        errors: file name and error, as plain data, of those that could not.
    """
    return {
        "report-version": REPORT_VERSION,
        "fits": all(r.fits for r in reports) and bool(reports) and not errors,
        "reports": [r.as_dict() for r in reports],
        "errors": [{"wheel": name, **error} for name, error in errors],
    }

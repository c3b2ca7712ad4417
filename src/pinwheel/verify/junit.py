"""Reports as JUnit XML, which every CI shows: a suite for each wheel, a case for each rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from pinwheel.errors import PinwheelError
from pinwheel.verify.model import Outcome, Problem, Report, Status

# What XML 1.0 cannot hold at all, "Characters".
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(reports: Sequence[Report], errors: Sequence[tuple[str, PinwheelError]] = ()) -> bytes:
    """One document for all wheels.

    Args:
        reports: of those that could be read.
        errors: file name and error of those that could not.

    A failed rule is a failure, an unknown one an error, a warning stands in system-out.
    """
    root = ET.Element("testsuites", name="pinwheel verify")
    for report in reports:
        suite = _suite(root, report.wheel, [o.status for o in report.outcomes])
        for outcome in report.outcomes:
            _case(suite, report.wheel, outcome)
    for name, error in errors:
        suite = _suite(root, name, [Status.UNKNOWN])
        case = ET.SubElement(suite, "testcase", classname=_clean(name), name=error.rule)
        found = ET.SubElement(case, "error", type=error.rule, message=_clean(error.what))
        found.text = _clean("\n".join((*error.evidence, f"next: {error.next_step}")))
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _suite(root: ET.Element, wheel: str, statuses: Sequence[Status]) -> ET.Element:
    return ET.SubElement(
        root,
        "testsuite",
        name=_clean(wheel),
        tests=str(len(statuses)),
        failures=str(statuses.count(Status.FAILED)),
        errors=str(statuses.count(Status.UNKNOWN)),
        skipped=str(statuses.count(Status.NOT_APPLICABLE)),
    )


def _case(suite: ET.Element, wheel: str, outcome: Outcome) -> None:
    case = ET.SubElement(suite, "testcase", classname=_clean(wheel), name=outcome.rule)
    text = "\n".join(line for problem in outcome.problems for line in _lines(problem))
    first = outcome.problems[0].what if outcome.problems else outcome.reason
    match outcome.status:
        case Status.FAILED | Status.UNKNOWN:
            tag = "failure" if outcome.status is Status.FAILED else "error"
            found = ET.SubElement(case, tag, type=outcome.rule, message=_clean(first))
            found.text = _clean(text or outcome.reason)
        case Status.NOT_APPLICABLE:
            ET.SubElement(case, "skipped", message=_clean(outcome.reason))
        case Status.WARNING:
            ET.SubElement(case, "system-out").text = _clean(f"warning\n{text or outcome.reason}")
        case Status.PASSED:
            pass


def _lines(problem: Problem) -> list[str]:
    lines = [problem.what, *(f"  {line}" for line in problem.evidence)]
    return [*lines, f"next: {problem.next_step}"] if problem.next_step else lines


def _clean(text: str) -> str:
    return _NO_XML.sub(lambda match: ascii(match[0])[1:-1], text)

"""The registry, its page, and how outcomes follow from what was found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pinwheel.verify.model import Checked, Problem, Profile, Report, Severity, Status, merge
from pinwheel.verify.rules import RULES, asked, judge

PAGE = Path(__file__).parents[3] / "docs" / "rules.md"
EVERYTHING = Checked(looked=dict.fromkeys(RULES, ""))


def problem(rule: str, *, unknown: bool = False) -> Problem:
    return Problem(rule=rule, subject="a.so", what="it is so", unknown=unknown)


def test_the_page_has_each_rule_with_a_paragraph_and_the_same_words() -> None:
    text = PAGE.read_text()
    row = r"^\| \[`([a-z0-9-]+)`\]\(#\1\) \| (\w+) \| (\w+) \| (\w+) \| (.+) \|$"
    columns = (Profile.OURS, Profile.RELEASE, Profile.STRANGER)
    assert re.findall(row, text, re.M) == [
        (r.id, *(r.severity(profile).value for profile in columns), r.title) for r in RULES.values()
    ]
    paragraphs = dict(re.findall(r"^### ([a-z0-9-]+)\n((?:[^#\n].*\n)+)", text, re.M))
    assert list(paragraphs) == list(RULES)
    assert all("Cure: " in words for words in paragraphs.values())


def test_a_rule_nobody_looked_at_is_unknown_and_does_not_fit() -> None:
    outcomes = judge(Checked(), Profile.RELEASE)
    assert {o.status for o in outcomes} == {Status.UNKNOWN}
    assert not report(outcomes).fits
    assert not report(()).fits


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("state", ["unlooked", "unsure", "broken", "doubtful"])
def test_nobody_is_left_without_a_next_step(profile: Profile, state: str) -> None:
    checked = {
        "unlooked": Checked(),
        "unsure": Checked(unsure=dict.fromkeys(RULES, "who knows")),
        "broken": Checked(problems=tuple(map(problem, RULES))),
        "doubtful": Checked(problems=tuple(problem(rule, unknown=True) for rule in RULES)),
    }[state]
    for outcome in report(judge(checked, profile)).broken():
        assert all(p.next_step and p.what for p in outcome.problems), outcome
        assert outcome.next_steps, outcome
        assert [p["next"] for p in outcome.as_dict()["problems"]]


def test_a_next_step_of_its_own_is_kept() -> None:
    mine = Problem(rule="parity", subject="a", what="b", next_step="Do this.")
    checked = merge([EVERYTHING, Checked(problems=(mine, problem("parity")))])
    (found,) = report(judge(checked, Profile.OURS)).broken()
    assert found.next_steps == ("Do this.", RULES["parity"].cure)


def test_a_release_is_held_to_more_than_ours_and_to_nothing_less() -> None:
    worse = [Severity.OFF, Severity.WARNING, Severity.ERROR]
    for rule in RULES.values():
        assert worse.index(rule.severity(Profile.RELEASE)) >= worse.index(rule.ours)
    more = set(asked(Profile.RELEASE)) - set(asked(Profile.OURS))
    assert more == {"whole", "hermetic", "recipe-known", "parity-answered", "loader-answered"}
    assert not more & set(asked(Profile.STRANGER))


def report(outcomes: tuple) -> Report:  # type: ignore[type-arg]
    return Report(
        wheel="a-1-py3-none-any.whl",
        sha256="0" * 64,
        size=1,
        profile=Profile.OURS,
        claim={},
        outcomes=outcomes,
        facts={},
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("profile", Profile)
def test_one_problem_is_judged_by_the_profile(rule: str, profile: Profile) -> None:
    checked = merge([EVERYTHING, Checked(problems=(problem(rule),))])
    outcomes = judge(checked, profile)
    (mine,) = (o for o in outcomes if o.rule == rule)
    severity = RULES[rule].severity(profile)
    assert (
        mine.status
        is {
            Severity.ERROR: Status.FAILED,
            Severity.WARNING: Status.WARNING,
            Severity.OFF: Status.NOT_APPLICABLE,
        }[severity]
    )
    assert report(outcomes).fits is (severity is not Severity.ERROR)
    others = {o.status for o in outcomes if o.rule != rule}
    assert others <= {Status.PASSED, Status.NOT_APPLICABLE}


def test_what_cannot_be_judged_is_unknown_unless_something_is_plainly_wrong() -> None:
    unsure = problem("abi-version", unknown=True)
    for problems, status in (
        ((unsure,), Status.UNKNOWN),
        ((unsure, problem("abi-version")), Status.FAILED),
    ):
        outcomes = judge(merge([EVERYTHING, Checked(problems=problems)]), Profile.STRANGER)
        (mine,) = (o for o in outcomes if o.rule == "abi-version")
        assert mine.status is status
        assert not report(outcomes).fits


def test_skipped_is_not_passed_and_still_fits() -> None:
    skipped = {"parity": "no official wheel"}
    looked = {rule: "" for rule in RULES if rule not in skipped}
    outcomes = judge(Checked(looked=looked, skipped=skipped), Profile.OURS)
    assert report(outcomes).fits
    (mine,) = (o for o in outcomes if o.rule == "parity")
    assert (mine.status, mine.reason) == (Status.NOT_APPLICABLE, "no official wheel")


def test_a_strange_rule_and_two_answers_are_mistakes_of_ours() -> None:
    with pytest.raises(ValueError, match="no-such"):
        judge(Checked(problems=(problem("no-such"),)), Profile.OURS)
    with pytest.raises(ValueError, match="parity"):
        merge([Checked(looked={"parity": ""}), Checked(looked={"parity": ""})])


def test_the_summary_counts() -> None:
    checked = merge([EVERYTHING, Checked(problems=(problem("parity"), problem("abi-preload")))])
    line = report(judge(checked, Profile.OURS)).summary()
    assert line == (
        f"a-1-py3-none-any.whl: does not fit: {len(asked(Profile.OURS)) - 2} rules passed; "
        "1 failed, 1 warned"
    )

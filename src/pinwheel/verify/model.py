"""What verify says: the outcome of each rule, with its evidence, and the report of them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: Version of what ``--json`` writes; ``docs/verify-report.schema.json`` describes it.
REPORT_VERSION = 1


class Status(StrEnum):
    """How one rule came out, worst last."""

    PASSED = "passed"
    NOT_APPLICABLE = "not-applicable"
    WARNING = "warning"
    UNKNOWN = "unknown"
    FAILED = "failed"

    @property
    def fits(self) -> bool:
        """Whether a wheel with this outcome may still fit; unknown never does."""
        return self not in (Status.UNKNOWN, Status.FAILED)


class Severity(StrEnum):
    """What a broken rule means under a profile."""

    ERROR = "error"
    WARNING = "warning"
    OFF = "off"


class Profile(StrEnum):
    """Whose wheel it is, which decides what is an error."""

    OURS = "ours"
    STRANGER = "stranger"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One way in which a wheel breaks a rule.

    Attributes:
        rule: id of the rule.
        subject: file within the wheel, symbol, requirement or capability it is about.
        what: one sentence.
        evidence: what was read, a line each.
        next_step: what to do about it.
        unknown: it could not be judged, which is no pass.
    """

    rule: str
    subject: str
    what: str
    evidence: tuple[str, ...] = ()
    next_step: str = ""
    unknown: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "rule": self.rule,
            "subject": self.subject,
            "what": self.what,
            "evidence": list(self.evidence),
            "next": self.next_step,
            "unknown": self.unknown,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One rule's outcome over the whole wheel.

    Attributes:
        rule: its id.
        title: what it asks, in a few words.
        status: how it came out.
        problems: what broke it, or why it could not be answered; empty when it passed.
        reason: why it passed, does not apply or could not be answered, where that is worth a line.
    """

    rule: str
    title: str
    status: Status
    problems: tuple[Problem, ...] = ()
    reason: str = ""

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What to do about it, each once; never empty where it is unknown or failed."""
        return tuple(dict.fromkeys(p.next_step for p in self.problems if p.next_step))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "rule": self.rule,
            "title": self.title,
            "status": self.status.value,
            "reason": self.reason,
            "problems": [p.as_dict() for p in self.problems],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a group of checks hands over: which rules it looked at, and what broke them.

    Attributes:
        looked: id -> why it passed, should nothing have broken it (may be empty).
        skipped: id -> why it does not apply to this wheel.
        unsure: id -> why it could not be answered, which is no pass.
        problems: everything found.
        facts: what was read on the way and belongs into the report, plain data.
    """

    looked: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    unsure: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything verify says of one wheel.

    Attributes:
        wheel: file name.
        sha256: of the file.
        size: bytes.
        profile: whose wheel it was taken for.
        claim: what it was held against: combo, torch build, capabilities, and where each comes
            from; plain data.
        outcomes: one for each rule, in the registry's order.
        facts: libraries, capabilities, GPUs and so on, by group; plain data.
    """

    wheel: str
    sha256: str
    size: int
    profile: Profile
    claim: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    facts: Mapping[str, Any]

    @property
    def fits(self) -> bool:
        """True only when every rule passed, does not apply or merely warns."""
        return bool(self.outcomes) and all(o.status.fits for o in self.outcomes)

    def broken(self, *statuses: Status) -> tuple[Outcome, ...]:
        """Outcomes of these statuses; without any, all that are neither passed nor skipped."""
        wanted = statuses or (Status.WARNING, Status.UNKNOWN, Status.FAILED)
        return tuple(o for o in self.outcomes if o.status in wanted)

    def summary(self) -> str:
        """One line: the wheel, the verdict, and what stands in its way."""
        return f"{self.wheel}: {self.verdict()}"

    def verdict(self) -> str:
        """The summary without the wheel's name."""
        counts = {s: len(self.broken(s)) for s in (Status.FAILED, Status.UNKNOWN, Status.WARNING)}
        named = ", ".join(
            f"{counts[status]} {word}"
            for status, word in (
                (Status.FAILED, "failed"),
                (Status.UNKNOWN, "unknown"),
                (Status.WARNING, "warned"),
            )
            if counts[status]
        )
        passed = len(self.broken(Status.PASSED))
        verdict = "fits" if self.fits else "does not fit"
        rest = f"; {named}" if named else ""
        return f"{verdict}: {passed} rules passed{rest}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``; the schema is docs/verify-report.schema.json."""
        return {
            "wheel": self.wheel,
            "sha256": self.sha256,
            "size": self.size,
            "profile": self.profile.value,
            "fits": self.fits,
            "summary": self.summary(),
            "claim": dict(self.claim),
            "outcomes": [o.as_dict() for o in self.outcomes],
            "facts": dict(self.facts),
        }


def merge(parts: Iterable[Checked]) -> Checked:
    """Several groups of checks as one.

    Raises:
        ValueError: two groups answer for the same rule or the same facts; a mistake of ours.
    """
    looked: dict[str, str] = {}
    skipped: dict[str, str] = {}
    unsure: dict[str, str] = {}
    problems: list[Problem] = []
    facts: dict[str, Any] = {}
    for part in parts:
        pairs: tuple[tuple[dict[str, Any], Mapping[str, Any]], ...] = (
            (looked, part.looked),
            (skipped, part.skipped),
            (unsure, part.unsure),
            (facts, part.facts),
        )
        for mine, theirs in pairs:
            if twice := set(mine) & set(theirs):
                raise ValueError(f"answered twice: {', '.join(sorted(twice))}")
            mine.update(theirs)
        problems.extend(part.problems)
    return Checked(
        looked=looked, skipped=skipped, unsure=unsure, problems=tuple(problems), facts=facts
    )

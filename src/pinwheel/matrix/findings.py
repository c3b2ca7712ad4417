"""What a check of the matrix finds: two statements that exclude each other, with sources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pinwheel.errors import ContradictionError

#: How a source is called that is the matrix's own key rather than an outside document.
MATRIX_FILE = "arch_matrix.toml"


@dataclass(frozen=True, slots=True)
class Finding:
    """Two statements that exclude each other.

    Attributes:
        rule: stable name of the rule, for tests and ``--json``.
        subject: what it is about: a combo, a row of the matrix.
        what: the contradiction in one sentence.
        sides: both statements, each with its source.
        next_step: what resolves it.
    """

    rule: str
    subject: str
    what: str
    sides: tuple[str, ...]
    next_step: str

    def as_dict(self) -> dict[str, object]:
        """The finding as plain data, for ``--json``."""
        return {
            "rule": self.rule,
            "subject": self.subject,
            "what": self.what,
            "sides": list(self.sides),
            "next": self.next_step,
        }


def side(where: str, says: str, source: str) -> str:
    """One side of a contradiction: where it is written, what it says, what it rests on."""
    return f"{where}: {says} [{source}]"


def raise_findings(findings: Iterable[Finding]) -> None:
    """Nothing when there are none.

    Raises:
        ContradictionError: lists every finding with both its sides.
    """
    found = list(findings)
    if not found:
        return
    evidence = []
    for finding in found:
        evidence.append(f"{finding.subject}: {finding.what} ({finding.rule})")
        evidence.extend(f"    {line}" for line in finding.sides)
        evidence.append(f"    to resolve: {finding.next_step}")
    count = "one contradiction" if len(found) == 1 else f"{len(found)} contradictions"
    raise ContradictionError(
        f"matrix and recipes hold {count}; first, {found[0].subject}: {found[0].what}",
        evidence=evidence,
        next_step=found[0].next_step,
    )

"""The rules of verify: stable ids, what each asks, and what it means for whose wheel.

Reasons, sources and cures stand in ``docs/rules.md``, a paragraph for each id; a test keeps the
two equal. An id never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pinwheel.verify.model import Checked, Outcome, Problem, Profile, Severity, Status

ERROR, WARNING, OFF = Severity.ERROR, Severity.WARNING, Severity.OFF


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: stable name.
        title: what it asks, in a few words.
        ours: what breaking it means for a wheel that pinwheel built.
        stranger: what it means for anyone else's.
    """

    id: str
    title: str
    ours: Severity = ERROR
    stranger: Severity = ERROR

    def severity(self, profile: Profile) -> Severity:
        """What breaking it means; a release is held to what holds for ours."""
        return self.stranger if profile is Profile.STRANGER else self.ours


_ALL = (
    # the wheel as a file
    Rule("names-agree", "file name, METADATA, WHEEL and dist-info name one version"),
    Rule("record-true", "RECORD lists every file with its hash and size"),
    Rule("tags-agree", "the file name carries the tags that WHEEL states", stranger=WARNING),
    Rule("manifest-agrees", "the manifest is there and says what the wheel holds", stranger=OFF),
    # what it asks for
    Rule("torch-pin", "METADATA pins the torch of the lock"),
    Rule("companion-pins", "companions are pinned as the lock has them"),
    # the platform
    Rule("platform-tag", "glibc and libstdc++ floors hold for the platform tag", stranger=WARNING),
    Rule("abi3-true", "libraries called abi3 use the limited API alone", stranger=WARNING),
    Rule("no-vendored", "no library that torch, CUDA or the driver brings"),
    Rule("no-rpath", "no search path in a library", stranger=WARNING),
    Rule("no-build-path", "no path of the build in a library", stranger=WARNING),
    Rule("no-exec-stack", "no library asks for an executable stack", stranger=WARNING),
    Rule("stripped", "no symbol table for debuggers, no debug sections", stranger=OFF),
    # libtorch
    Rule("torch-known", "the torch build it is held against is known"),
    Rule("abi-flag", "the CXX11 ABI flag is that torch build's"),
    Rule("abi-version", "every torch symbol exists in that torch build"),
    Rule("abi-internal", "no symbol of the package's own is missing"),
    Rule("abi-link", "what it uses of a library it names as NEEDED"),
    Rule("abi-resolved", "every other symbol has a known origin"),
    Rule("abi-preload", "nothing relies on what torch happens to load", WARNING, WARNING),
    # machine code
    Rule("code-present", "the wheel has code for every declared capability"),
    Rule("code-libraries", "every library with device code has it too", stranger=WARNING),
    Rule("code-native", "no declared capability is left to PTX", stranger=WARNING),
    Rule("code-kernels", "no kernel falls short of its library", stranger=WARNING),
    Rule("code-declared", "no code for a capability that is not declared", stranger=WARNING),
    Rule("code-exceptions", "every exception of the recipe is still needed"),
    Rule("torch-code", "torch itself has code for every declared capability"),
    # against others
    Rule("parity", "nothing differs from the official wheel but what the recipe says"),
    Rule("one-libtorch", "the loader takes one libtorch, libc10 and libcudart for all"),
)

RULES: Mapping[str, Rule] = {rule.id: rule for rule in _ALL}


def judge(checked: Checked, profile: Profile) -> tuple[Outcome, ...]:
    """An outcome for each rule of the registry, in its order.

    A rule nobody looked at is unknown, never passed.

    Raises:
        ValueError: a check speaks of a rule that is not registered; a mistake of ours.
    """
    answered = {*checked.looked, *checked.skipped, *checked.unsure}
    named = answered | {p.rule for p in checked.problems}
    if strange := named - RULES.keys():
        raise ValueError(f"no such rule: {', '.join(sorted(strange))}")
    by_rule: dict[str, list[Problem]] = {}
    for problem in checked.problems:
        by_rule.setdefault(problem.rule, []).append(problem)
    return tuple(
        _outcome(rule, checked, tuple(by_rule.get(rule.id, ())), rule.severity(profile))
        for rule in RULES.values()
    )


def _outcome(
    rule: Rule, checked: Checked, problems: tuple[Problem, ...], severity: Severity
) -> Outcome:
    def made(status: Status, reason: str = "") -> Outcome:
        return Outcome(
            rule=rule.id, title=rule.title, status=status, problems=problems, reason=reason
        )

    if severity is Severity.OFF:
        return Outcome(
            rule=rule.id,
            title=rule.title,
            status=Status.NOT_APPLICABLE,
            reason="not asked of a wheel that pinwheel did not build",
        )
    unsure = checked.unsure.get(rule.id, "")
    if problems or rule.id in checked.unsure:
        # Broken, such a rule would warn; that it may be broken is no more than that.
        if severity is Severity.WARNING:
            return made(Status.WARNING, unsure)
        only_unknown = all(p.unknown for p in problems)
        return made(Status.UNKNOWN if only_unknown else Status.FAILED, unsure)
    if rule.id in checked.looked:
        return made(Status.PASSED, checked.looked[rule.id])
    if rule.id in checked.skipped:
        return made(Status.NOT_APPLICABLE, checked.skipped[rule.id])
    return made(Status.UNKNOWN, "nothing looked at it")

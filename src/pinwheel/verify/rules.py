"""The rules of verify: stable ids, what each asks, and what it means for whose wheel.

Reasons, sources and cures stand in ``docs/rules.md``, a paragraph for each id; a test keeps the
two equal. An id never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pinwheel.verify.model import Checked, Outcome, Problem, Profile, Severity, Status

ERROR, WARNING, OFF = Severity.ERROR, Severity.WARNING, Severity.OFF

_OURS_ONLY = "not asked of a wheel that pinwheel did not build"
_RELEASE_ONLY = "asked of a release alone (--profile release)"
_UNANSWERED = (
    "This is a mistake in pinwheel: please report it, with the command and the wheel's name."
)

_AGAIN = "Take the wheel from where it was built; do not change it afterwards."
_BUILD = "Correct what the rule names and build again: docs/rules.md."
_NAME_TORCH = (
    "Name the torch build it is for with --torch; one that is not known yet is made known by "
    "scripts/torch_snapshots.py BUILD."
)
_NAME_ARCHS = (
    "Name the capabilities it is for with --archs; one that arch_matrix.toml does not know is "
    "entered there first, under [capabilities]."
)
_PROJECT = (
    "Verify it in the project that built it, with recipe and lock as they were then; or name the "
    "combo with --combo."
)
_BUILD_WHOLE = "Build it without --archs: a wheel for fewer capabilities is for trying out."
_LOADER = (
    "Keep the .whl.manifest.json that the build wrote beside the wheel; where it is lost, build "
    "again: pinwheel build --again."
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: stable name.
        title: what it asks, in a few words.
        cure: what to do about a finding that has no next step of its own; most of all where
            nothing could answer the rule.
        ours: what breaking it means for a wheel that pinwheel built.
        stranger: what it means for anyone else's.
        release: what it means for a wheel of ours that is to be published; None: as ``ours``.
    """

    id: str
    title: str
    cure: str
    ours: Severity = ERROR
    stranger: Severity = ERROR
    release: Severity | None = None

    def severity(self, profile: Profile) -> Severity:
        """What breaking it means for such a wheel."""
        if profile is Profile.STRANGER:
            return self.stranger
        if profile is Profile.RELEASE and self.release is not None:
            return self.release
        return self.ours


def _of_release(rule: str, title: str, cure: str) -> Rule:
    return Rule(rule, title, cure, ours=OFF, stranger=OFF, release=ERROR)


_ALL = (
    # the wheel as a file
    Rule("names-agree", "file name, METADATA, WHEEL and dist-info name one version", _AGAIN),
    Rule("record-true", "RECORD lists every file with its hash and size", _AGAIN),
    Rule("tags-agree", "the file name carries the tags that WHEEL states", _AGAIN, ERROR, WARNING),
    Rule(
        "manifest-agrees", "the manifest is there and says what the wheel holds", _AGAIN, ERROR, OFF
    ),
    # what it asks for
    Rule("torch-pin", "METADATA pins the torch of the lock", _BUILD),
    Rule("companion-pins", "companions are pinned as the lock has them", _PROJECT),
    # the platform
    Rule(
        "platform-tag",
        "glibc and libstdc++ floors hold for the platform tag",
        _BUILD,
        stranger=WARNING,
    ),
    Rule("abi3-true", "libraries called abi3 use the limited API alone", _BUILD, stranger=WARNING),
    Rule("no-vendored", "no library that torch, CUDA or the driver brings", _BUILD),
    Rule("no-rpath", "no search path in a library", _BUILD, stranger=WARNING),
    Rule("no-build-path", "no path of the build in a library", _BUILD, stranger=WARNING),
    Rule("no-exec-stack", "no library asks for an executable stack", _BUILD, stranger=WARNING),
    Rule("stripped", "no symbol table for debuggers, no debug sections", _BUILD, stranger=OFF),
    # libtorch
    Rule("torch-known", "the torch build it is held against is known", _NAME_TORCH),
    Rule("abi-flag", "the CXX11 ABI flag is that torch build's", _NAME_TORCH),
    Rule("abi-version", "every torch symbol exists in that torch build", _NAME_TORCH),
    Rule("abi-internal", "no symbol of the package's own is missing", _NAME_TORCH),
    Rule("abi-link", "what it uses of a library it names as NEEDED", _NAME_TORCH),
    Rule("abi-resolved", "every other symbol has a known origin", _NAME_TORCH),
    Rule(
        "abi-preload",
        "nothing relies on what torch happens to load",
        _NAME_TORCH,
        ours=WARNING,
        stranger=WARNING,
    ),
    # machine code
    Rule("code-present", "the wheel has code for every declared capability", _NAME_ARCHS),
    Rule(
        "code-libraries",
        "every library with device code has it too",
        _NAME_ARCHS,
        stranger=WARNING,
    ),
    Rule("code-native", "no declared capability is left to PTX", _NAME_ARCHS, stranger=WARNING),
    Rule(
        "code-kernels",
        "no kernel falls short of its library",
        f"Read the kernels too: leave out --no-kernels. {_NAME_ARCHS}",
        stranger=WARNING,
    ),
    Rule(
        "code-declared",
        "no code for a capability that is not declared",
        _NAME_ARCHS,
        stranger=WARNING,
    ),
    Rule("code-exceptions", "every exception of the recipe is still needed", _NAME_ARCHS),
    Rule(
        "torch-code",
        "torch itself has code for every declared capability",
        f"{_NAME_TORCH} {_NAME_ARCHS}",
    ),
    # against others
    Rule(
        "parity",
        "nothing differs from the official wheel but what the recipe says",
        f"Fetch the official wheel (pinwheel fetch), or name it with --official. {_PROJECT}",
    ),
    Rule("one-libtorch", "the loader takes one libtorch, libc10 and libcudart for all", _LOADER),
    # what a release has beyond a wheel of ours
    _of_release("whole", "it is for every capability of its recipe", _BUILD_WHOLE),
    _of_release(
        "hermetic",
        "it was built in the locked root with a locked toolkit",
        "Build it from its lock with a pinwheel whose manifest states root and toolkit.",
    ),
    _of_release(
        "recipe-known", "recipe and lock are the project's, not the wheel's word", _PROJECT
    ),
    _of_release(
        "parity-answered",
        "it was compared with the official wheel of the lock",
        "Lock the official wheel ([proof] official in the recipe), fetch it, and verify again "
        "without --official.",
    ),
    _of_release("loader-answered", "the loader's answer is kept beside it", _LOADER),
)

RULES: Mapping[str, Rule] = {rule.id: rule for rule in _ALL}


def asked(profile: Profile) -> tuple[str, ...]:
    """Ids of the rules that mean anything for such a wheel."""
    return tuple(rule.id for rule in RULES.values() if rule.severity(profile) is not OFF)


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
        for_release = rule.severity(Profile.RELEASE) is not rule.ours
        return Outcome(
            rule=rule.id,
            title=rule.title,
            status=Status.NOT_APPLICABLE,
            reason=_RELEASE_ONLY if for_release else _OURS_ONLY,
        )
    unsure = checked.unsure.get(rule.id, "")
    if rule.id in checked.unsure:
        problems = (*problems, _unanswered(rule, unsure, rule.cure))
    if problems:
        # Nobody is left with a finding and without a next step, wherever it was made.
        problems = tuple(p if p.next_step else replace(p, next_step=rule.cure) for p in problems)
        # Broken, such a rule would warn; that it may be broken is no more than that.
        if severity is Severity.WARNING:
            return made(Status.WARNING, unsure)
        only_unknown = all(p.unknown for p in problems)
        return made(Status.UNKNOWN if only_unknown else Status.FAILED, unsure)
    if rule.id in checked.looked:
        return made(Status.PASSED, checked.looked[rule.id])
    if rule.id in checked.skipped:
        return made(Status.NOT_APPLICABLE, checked.skipped[rule.id])
    why = "nothing looked at it"
    problems = (_unanswered(rule, why, _UNANSWERED),)
    return made(Status.UNKNOWN, why)


def _unanswered(rule: Rule, why: str, next_step: str) -> Problem:
    """What could not be answered is a finding like any other: it says why, and what to do."""
    return Problem(rule=rule.id, subject="the wheel", what=why, next_step=next_step, unknown=True)

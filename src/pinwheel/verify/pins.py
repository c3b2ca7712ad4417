"""``torch-pin`` and ``companion-pins``: what METADATA asks for against what the wheel is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from pinwheel.inspect.abi import TorchAbi
from pinwheel.inspect.dist_info import CoreMetadata
from pinwheel.inspect.region import printable
from pinwheel.recipe.lock import Role
from pinwheel.verify.claim import Claim, Project
from pinwheel.verify.library import ReadLibrary, shortened
from pinwheel.verify.model import Checked, Problem, merge
from pinwheel.verify.requirements import exact_pin, on_linux

TORCH = "torch"
_OTHER = "Install the torch that it asks for, or take a wheel that was built for yours."
_CORRECT = "Correct the recipe's [[requirements]] and build again."


def check_pins(metadata: CoreMetadata, claim: Claim, libraries: Sequence[ReadLibrary]) -> Checked:
    """Both rules."""
    asked = [r for r in metadata.requires_dist if on_linux(r, claim.pythons)]
    return merge([_torch(asked, claim, libraries), _companions(asked, claim)])


# --- torch-pin ------------------------------------------------------------------------------


def _torch(asked: Sequence[Requirement], claim: Claim, libraries: Sequence[ReadLibrary]) -> Checked:
    rule = "torch-pin"
    next_step = _CORRECT if claim.ours else _OTHER
    of_torch = [r for r in asked if _name(r) == TORCH]
    verdicts = [(library.name, library.torch) for library in libraries if library.host]
    tied = [name for name, verdict in verdicts if verdict.abi is TorchAbi.UNSTABLE]
    using = [name for name, verdict in verdicts if verdict.abi is not TorchAbi.NONE]
    if not of_torch and not using and not claim.torch:
        return Checked(skipped={rule: "it neither uses nor requires torch"})
    wanted = claim.torch_release

    def problem(what: str, *evidence: str) -> Checked:
        lines = (*(f"METADATA: {printable(str(r))}" for r in of_torch), *evidence)
        if wanted:
            lines = (*lines, f"held against: torch {claim.torch} ({claim.torch_from})")
        return Checked(
            problems=(
                Problem(rule=rule, subject=TORCH, what=what, evidence=lines, next_step=next_step),
            )
        )

    if not of_torch:
        return problem("METADATA does not require torch", *shortened(using))
    if local := [r for r in of_torch if r.url or any("+" in s.version for s in r.specifier)]:
        return problem(
            f"the requirement {printable(str(local[0]))} cannot be met by an index that serves "
            "public versions",
        )
    if wanted and not all(r.specifier.contains(wanted, prereleases=True) for r in of_torch):
        pinned = printable(", ".join(str(r.specifier) for r in of_torch))
        return problem(f"METADATA requires torch {pinned}, which excludes {wanted}")
    if tied and not any(exact_pin(r) for r in of_torch):
        return problem(
            "METADATA leaves the torch release open, and libraries are tied to one",
            *(f"{name} uses torch's C++ API" for name in tied),
        )
    return Checked(looked={rule: printable(", ".join(str(r) for r in of_torch))})


# --- companion-pins -------------------------------------------------------------------------


def _companions(asked: Sequence[Requirement], claim: Claim) -> Checked:
    rule = "companion-pins"
    project = claim.project
    if project is None:
        if claim.ours:
            return Checked(unsure={rule: f"no lock to hold them against: {claim.project_from}"})
        return Checked(skipped={rule: "no lock is held against it (--combo)"})
    locked = {canonicalize_name(i.name): i.version for i in project.lock.with_role(Role.RUN)}
    named = _companions_of(project)
    rest = [r for r in asked if _name(r) != TORCH]
    problems = tuple(
        Problem(
            rule=rule,
            subject=printable(r.name, 100),
            what=what,
            evidence=(f"METADATA: {printable(str(r))}", f"{project.path}: {said}"),
            next_step=_CORRECT,
        )
        for r in rest
        for what, said in _judge(r, locked.get(_name(r)), exact=_name(r) in named)
    )
    exact = sorted(_name(r) for r in rest if _name(r) in named)
    return Checked(
        looked={rule: ", ".join(f"{n}=={locked[n]}" for n in exact if n in locked)},
        problems=problems,
    )


def _judge(
    requirement: Requirement, version: str | None, *, exact: bool
) -> Iterator[tuple[str, str]]:
    """What is wrong with one requirement, and what the lock has."""
    name = printable(requirement.name, 100)
    if version is None:
        yield f"METADATA requires {name}, which the lock does not have", f"no {name}"
        return
    said = f"{name} {version}"
    if not requirement.specifier.contains(version, prereleases=True):
        yield f"METADATA excludes the {said} that the lock has", said
    elif exact and not _same(exact_pin(requirement), version):
        yield f"METADATA does not pin {name} to the {version} that the lock has", said


def _same(pin: str, version: str) -> bool:
    try:
        return Version(pin) == Version(version)
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return False


def _companions_of(project: Project) -> set[NormalizedName]:
    """Projects that the recipe pins beside torch: compiled against it, or pinned by one that is."""
    found = set()
    for line in project.loaded.recipe.run.companions:
        try:
            found.add(canonicalize_name(Requirement(line).name))
        except InvalidRequirement:  # pragma: no cover - the recipe's model admits none
            continue
    return found - {canonicalize_name(TORCH)}


def _name(requirement: Requirement) -> NormalizedName:
    return canonicalize_name(requirement.name)

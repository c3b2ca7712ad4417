"""What a release must have beyond a wheel of ours: whole, hermetic, and every question answered.

A wheel for trying out may be for one GPU, be compared with nothing, or lie where its recipe is not.
One that is published stands for its combo, so none of that may be left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pinwheel.errors import CapabilityError
from pinwheel.inspect.region import printable
from pinwheel.matrix.capability import Capability, format_capabilities
from pinwheel.matrix.models import Matrix
from pinwheel.recipe.lock import Role
from pinwheel.verify.claim import Claim
from pinwheel.verify.loaded import ONE
from pinwheel.verify.manifest import LOCKED, Manifest
from pinwheel.verify.model import Checked, Problem, Profile, merge
from pinwheel.verify.parity_rule import PARITY


def check_release(claim: Claim, checked: Checked, matrix: Matrix) -> Checked:
    """The rules that only a release is held to; nothing for any other wheel.

    Args:
        claim: what the wheel is held against.
        checked: what every other check has found.
        matrix: for the capability lists.
    """
    if claim.profile is not Profile.RELEASE:
        return Checked()
    return merge(
        [
            _whole(claim, matrix),
            _hermetic(claim),
            _recipe_known(claim),
            _parity_answered(claim, checked),
            _loader_answered(checked),
        ]
    )


# --- whole ----------------------------------------------------------------------------------


def _whole(claim: Claim, matrix: Matrix) -> Checked:
    """The capabilities it was built for, and those it is held against, are the recipe's."""
    rule = "whole"
    if claim.project is None or claim.manifest is None:
        lacks = "recipe" if claim.project is None else "manifest"
        return Checked(unsure={rule: f"there is no {lacks} to compare capabilities with"})
    try:
        recipe = matrix.parse_capabilities(claim.project.loaded.recipe.capabilities)
        built = matrix.parse_capabilities(claim.manifest.capabilities)
    except CapabilityError as error:
        return Checked(unsure={rule: error.what})
    said = format_capabilities(recipe)
    held = [("it was built for", "the wheel's manifest", built)]
    if claim.capabilities != built:
        # --archs leaves machine code unlooked at that a release must have.
        held.append(("it is held against", claim.capabilities_from, claim.capabilities))
    problems = tuple(
        Problem(
            rule=rule,
            subject=format_capabilities(missing),
            what=f"{how} {_shown(listed)}, its recipe is for {said}",
            evidence=(f"missing: {format_capabilities(missing)}", f"from: {source}"),
            next_step="Build it without --archs, and verify it without: a wheel for fewer "
            "capabilities is for trying out.",
        )
        for how, source, listed in held
        if (missing := [c for c in recipe if c not in listed])
    )
    return Checked(looked={rule: f"built for {said}, as its recipe"}, problems=problems)


def _shown(capabilities: tuple[Capability, ...]) -> str:
    return format_capabilities(capabilities) if capabilities else "none"


# --- hermetic -------------------------------------------------------------------------------


def _hermetic(claim: Claim) -> Checked:
    """Root and toolkit are stated as locked, and the lock has them."""
    rule = "hermetic"
    if claim.manifest is None:
        return Checked(unsure={rule: "no manifest says where it was built"})
    problems = tuple(
        Problem(
            rule=rule,
            subject=what,
            what=f"its manifest does not say which {what} it was built with",
            next_step="Build it again: pinwheel build states root and toolkit in the manifest.",
            unknown=True,
        )
        if not said
        else Problem(
            rule=rule,
            subject=what,
            what=f"it was not built with a locked {what}",
            evidence=(printable(f"manifest: {what} {said}"), f"lock: {locked}"),
            next_step="Build it from its lock (pinwheel build); a root or toolkit of the "
            "building machine is for trying out.",
        )
        for what, said, locked in _places(claim, claim.manifest)
    )
    root = claim.manifest.root
    digest = printable(root.digest) if root else ""
    toolkit = printable(claim.manifest.toolkit.name)
    return Checked(
        looked={rule: f"locked root {digest}, locked toolkit {toolkit}"}, problems=problems
    )


def _places(claim: Claim, manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """What is not locked: its name, its kind in the manifest or empty, what the lock has."""
    stated = {
        Role.ROOT: ("root", manifest.root.kind if manifest.root else ""),
        Role.TOOLKIT: ("toolkit", manifest.toolkit.kind),
    }
    for role, (what, said) in stated.items():
        count = len(claim.project.lock.with_role(role)) if claim.project else None
        # Without the lock the word stands alone; recipe-known says that the lock is missing.
        locked = "not at hand" if count is None else f"{count} files"
        if said != LOCKED or count == 0:
            yield what, said, locked


# --- recipe, parity, loader -----------------------------------------------------------------


def _recipe_known(claim: Claim) -> Checked:
    rule = "recipe-known"
    project = claim.project
    if project is None:
        return Checked(unsure={rule: claim.project_from})
    count = len(project.loaded.recipe.code_exceptions)
    return Checked(looked={rule: f"{project.loaded.combo}, {count} exceptions of machine code"})


def _parity_answered(claim: Claim, checked: Checked) -> Checked:
    """Compared, and with the very wheel that the lock names."""
    rule = "parity-answered"
    if why := checked.skipped.get(PARITY) or checked.unsure.get(PARITY):
        return Checked(unsure={rule: why})
    facts: Mapping[str, Any] = checked.facts.get(PARITY, {})
    sha256 = facts.get("official-sha256", "")
    reference = claim.project.lock.with_role(Role.REFERENCE) if claim.project else ()
    if not reference:
        return Checked(unsure={rule: "no lock says which wheel is the official one"})
    wanted = [item.sha256 for item in reference]
    problem = Problem(
        rule=rule,
        subject=reference[0].path,
        what=f"it was compared with another wheel than {reference[0].path}, which the lock names",
        evidence=(f"lock: sha256 {wanted[0]}", f"compared with: sha256 {sha256 or 'unknown'}"),
        next_step="Leave out --official: the lock's is taken from the store (pinwheel fetch).",
    )
    return Checked(
        looked={rule: f"{reference[0].path}, sha256 {sha256}"},
        problems=() if sha256 in wanted else (problem,),
    )


def _loader_answered(checked: Checked) -> Checked:
    rule = "loader-answered"
    if why := checked.skipped.get(ONE):
        return Checked(unsure={rule: why})
    unanswered = [p.what for p in checked.problems if p.rule == ONE and p.unknown]
    if unanswered:
        return Checked(unsure={rule: unanswered[0]})
    return Checked(looked={rule: checked.looked.get(ONE, "")})

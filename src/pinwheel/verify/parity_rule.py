"""``parity``: how a wheel differs from upstream's own, and for which capabilities each is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pinwheel.errors import MissingInputsError
from pinwheel.files import make_directory, sha256_file
from pinwheel.inputs.patch_file import read_series
from pinwheel.inputs.store import Store
from pinwheel.inspect.compared import DIST_INFO
from pinwheel.inspect.parity import Change, Difference, Parity, compare_wheels
from pinwheel.inspect.region import unreadable
from pinwheel.inspect.wheel import open_wheel
from pinwheel.recipe.lock import Role
from pinwheel.recipe.models import Recipe
from pinwheel.verify.claim import Claim, Project
from pinwheel.verify.library import read_libraries, shortened
from pinwheel.verify.manifest import NAME
from pinwheel.verify.model import Checked, Problem

PARITY = "parity"
Counts = Mapping[str, Mapping[str, int]]  # library -> target, ``sm_80``, -> how many cubins
_FINISHED = "written when the wheel is finished (docs/wheel.md)"
#: What finishing adds to the package, whatever upstream has there.
_MODULES = ("_version.py", "_pinwheel.py")


def check_parity(
    wheel: Path,
    sha256: str,
    official: Path | None,
    claim: Claim,
    store: Store,
    scratch: Path,
    *,
    targets: Counts,
) -> Checked:
    """Compare with upstream's own wheel: the one given, or the lock's from the store.

    Args:
        wheel: the wheel.
        sha256: of its file.
        official: upstream's wheel, given by hand.
        claim: what the wheel is held against; its recipe explains differences.
        store: where the lock's reference is looked for.
        scratch: a directory to work in.
        targets: the wheel's own device code.

    Raises:
        WheelError, ArtifactError: one of the two wheels cannot be read.
        PatchError: the recipe's patches cannot be read.
        HashMismatchError: the store's copy is damaged.
    """
    project = claim.project
    if official is not None:
        return _compare(wheel, sha256, official, claim, targets, scratch)
    if project is None:
        if claim.ours:
            why = f"no lock names an official wheel: {claim.project_from}"
            return Checked(unsure={PARITY: why})
        return Checked(skipped={PARITY: "no official wheel is given (--official)"})
    reference = project.lock.with_role(Role.REFERENCE)
    if not reference:
        return Checked(skipped={PARITY: "the lock names no official wheel"})
    (item,) = reference
    try:
        path = store.get(item)
    except MissingInputsError:
        why = f"{item.path} is not in the store: `pinwheel fetch`, or --official"
        return Checked(unsure={PARITY: why})
    with _named(path, item.path, scratch) as named:
        return _compare(wheel, sha256, named, claim, targets, scratch)


@contextmanager
def _named(path: Path, name: str, scratch: Path) -> Iterator[Path]:
    """A file of the store under the name it has on the index."""
    with tempfile.TemporaryDirectory(prefix="official-", dir=make_directory(scratch)) as directory:
        link = Path(directory) / name
        link.symlink_to(path)
        yield link


def _compare(
    wheel: Path, sha256: str, official: Path, claim: Claim, targets: Counts, scratch: Path
) -> Checked:
    if not official.is_file():
        raise unreadable(official.name, "there is no such file", str(official))
    if sha256_file(official) == sha256:
        return Checked(
            looked={PARITY: "it is the official wheel itself"},
            facts={PARITY: {"official": official.name, "official-sha256": sha256, "ok": True}},
        )
    parity = _explained(wheel, official, claim)
    problems = []
    if not parity.ok:
        problems.append(
            Problem(
                rule=PARITY,
                subject=official.name,
                what=f"{len(parity.unexplained)} differences from {official.name} that nothing "
                "explains",
                evidence=shortened([_line(d) for d in parity.unexplained]),
                next_step="State what is meant in the recipe ([proof] official-absent, "
                "[[requirements]]) or in the patch series; otherwise correct the build.",
            )
        )
    explained = len(parity.differences) - len(parity.unexplained)
    return Checked(
        looked={PARITY: f"{official.name}: {explained} differences, all explained"},
        problems=tuple(problems),
        facts={
            PARITY: {
                **parity.as_dict(),
                "targets": compared_targets(wheel_targets(official, scratch), targets),
            }
        },
    )


def wheel_targets(wheel: Path, scratch: Path) -> dict[str, dict[str, int]]:
    """Cubins and PTX of each library that has any, by target, as cuobjdump lists them.

    Args:
        wheel: a wheel, from anywhere.
        scratch: a directory to work in.

    Raises:
        ArtifactError: it cannot be read.
        DiskFullError, NotWritableError: ``scratch`` cannot take its libraries.
    """
    with open_wheel(wheel, scratch) as reader:
        libraries = read_libraries(reader, kernels=False, paths=())
        return {library.name: library.counts for library in libraries if library.counts}


def compared_targets(official: Counts, ours: Counts) -> dict[str, dict[str, dict[str, int]]]:
    """Both wheels' device code side by side: library -> ``official``, ``ours`` -> target -> count.

    A difference that the recipe explains is explained for these targets: another list of
    capabilities is another wheel.
    """
    return {
        name: {"official": dict(official.get(name, {})), "ours": dict(ours.get(name, {}))}
        for name in sorted(official.keys() | ours.keys())
    }


def _line(difference: Difference) -> str:
    return f"{difference.change.value}: {difference.path} ({difference.kind.value})"


def _explained(wheel: Path, official: Path, claim: Claim) -> Parity:
    """The comparison with all that recipe, patches and finishing explain."""
    project = claim.project
    if project is None:
        return compare_wheels(wheel, official, absent_ok={}, patched=())
    recipe = project.loaded.recipe
    package = f"{recipe.proof.module.partition('.')[0]}/"
    finished = {f"{package}{name}": _FINISHED for name in _MODULES}
    finished[f"{DIST_INFO}/{NAME}"] = _FINISHED
    parity = compare_wheels(
        wheel,
        official,
        absent_ok=recipe.proof.official_absent,
        patched=_patched(project),
        generated=finished,
        requirements={r.old: r.new for r in recipe.requirements},
        namespaces={n: e.namespace for n, e in recipe.extensions.items() if e.namespace},
        # Compilers hide short schemas in instructions; the proof holds the recipe to these names.
        registered={n: e.operators for n, e in recipe.extensions.items()},
        unbound=unbound_operators(
            recipe,
            claim.manifest.capabilities if claim.manifest else map(str, claim.capabilities),
        ),
    )
    return replace(parity, differences=tuple(_finishing(parity.differences, finished)))


def unbound_operators(recipe: Recipe, capabilities: Iterable[str]) -> dict[str, dict[str, str]]:
    """Library -> operator that a wheel for these capabilities only declares -> the reason."""
    there = {text.partition("+")[0].rstrip("af") for text in capabilities}
    found: dict[str, dict[str, str]] = {}
    for row in recipe.kernels_for:
        if row.capability not in there:
            found.setdefault(row.library, {}).update(dict.fromkeys(row.operators, row.reason))
    return found


def _finishing(
    differences: Sequence[Difference], finished: Mapping[str, str]
) -> Iterator[Difference]:
    """What finishing writes where upstream has a file too, or has none to write."""
    for difference in differences:
        if difference.path not in finished or difference.reason:
            yield difference
        elif difference.change is Change.DIFFERENT:
            yield replace(difference, reason=_FINISHED)
        elif difference.change is not Change.UNUSED:
            yield difference


def _patched(project: Project) -> set[str]:
    return {path for patch in read_series(project.loaded.patches) for path in patch.paths}

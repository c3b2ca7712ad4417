"""Does a lock still follow from its recipe, matrix, data files and patches? Needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwheel.errors import LockStaleError
from pinwheel.files import sha256_file
from pinwheel.matrix.models import Matrix
from pinwheel.recipe.data import data_digest
from pinwheel.recipe.load import LoadedRecipe, lock_path
from pinwheel.recipe.lock import Input, Lock, Role, SourceKind
from pinwheel.recipe.tomlfile import canonical_sha256


def patch_inputs(loaded: LoadedRecipe) -> tuple[Input, ...]:
    """The patch files as a lock lists them."""
    return tuple(
        Input(
            roles=(Role.PATCH,),
            source=SourceKind.PROJECT,
            name=path.name,
            version=loaded.recipe.patches,
            path=name,
            size=path.stat().st_size,
            sha256=sha256_file(path),
        )
        for path, name in zip(loaded.patches, loaded.patch_names(), strict=True)
    )


def matrix_slice_digest(matrix: Matrix, loaded: LoadedRecipe, toolkit: str) -> str:
    """SHA-256 of the matrix rows a combo built with ``toolkit`` uses, without their sources.

    Raises:
        MatrixError, UnknownComboError: the matrix does not have one of the rows.
        CapabilityError: the recipe's capabilities cannot be parsed.
    """
    combo = matrix.combo(str(loaded.combo))
    kit = matrix.toolkit(toolkit)
    build = matrix.torch_of(combo)
    wanted = matrix.parse_capabilities(loaded.recipe.capabilities)
    keys = sorted({f"{c.major}.{c.minor}" for c in wanted})
    release = matrix.releases.get(combo.package, {}).get(combo.release)
    rows: dict[str, Any] = {
        "combo": _row(matrix.combos[str(combo)]),
        "toolkit": _row(kit),
        "torch": _row(build),
        "cuda": {line: _row(matrix.line(line)) for line in sorted({build.cuda, kit.line})},
        "release": _row(release) if release else None,
        "capabilities": {k: _row(matrix.capabilities[k]) for k in keys if k in matrix.capabilities},
    }
    return canonical_sha256(rows)


def _row(row: Any) -> Mapping[str, Any]:
    data: dict[str, Any] = row.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {k: v for k, v in data.items() if k != "source" and not k.endswith("-source")}


def stale_reasons(lock: Lock, loaded: LoadedRecipe, matrix: Matrix, toolkit: str) -> list[str]:
    """What differs between a lock and what it was made from; nothing when it is fresh."""
    reasons = []
    if (lock.combo, lock.toolkit) != (loaded.recipe.combo, toolkit):
        reasons.append(f"the lock is of {lock.combo} with {lock.toolkit}")
    if lock.recipe_sha256 != loaded.digest:
        reasons.append(f"recipe {loaded.path} says something else now")
    if lock.matrix_sha256 != matrix_slice_digest(matrix, loaded, toolkit):
        reasons.append(f"the rows of arch_matrix.toml that {loaded.recipe.combo} uses have changed")
    if lock.data_sha256 != data_digest(toolkit):
        reasons.append(f"pinwheel's data files of root, tools or toolkit {toolkit} have changed")
    locked = {i.path: i for i in lock.with_role(Role.PATCH)}
    present = {i.path: i for i in patch_inputs(loaded)}
    for path in sorted(locked.keys() | present.keys()):
        if path not in present:
            reasons.append(f"patch {path} is in the lock and no longer in the series")
        elif path not in locked:
            reasons.append(f"patch {path} is not in the lock")
        elif locked[path] != present[path]:
            reasons.append(f"patch {path} has changed")
    return reasons


def check_fresh(lock: Lock, loaded: LoadedRecipe, matrix: Matrix, toolkit: str) -> None:
    """Accept a lock only when it follows from what is there now.

    Raises:
        LockStaleError: it does not; names what differs.
    """
    if reasons := stale_reasons(lock, loaded, matrix, toolkit):
        raise LockStaleError(
            f"{lock_path(loaded, toolkit)} is stale",
            evidence=reasons,
            next_step=f"Write it anew: pinwheel lock --combo {loaded.recipe.combo} "
            f"--toolkit {toolkit}",
        )

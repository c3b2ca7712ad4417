"""Reads and checks what a person asked to build, before anything is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pinwheel.build.bench import require_compiler
from pinwheel.build.recipes import require_recipe
from pinwheel.build.work import inside_files, work_key
from pinwheel.errors import CapabilityError
from pinwheel.matrix.capability import Capability, format_capabilities
from pinwheel.matrix.combo import ArtifactVersion
from pinwheel.matrix.findings import raise_findings
from pinwheel.matrix.models import Matrix, TorchBuild, load_matrix
from pinwheel.matrix.require import require_targets
from pinwheel.recipe.check import check_recipe
from pinwheel.recipe.load import LoadedRecipe, chosen_toolkit, load_recipe
from pinwheel.recipe.lock import Lock
from pinwheel.recipe.lockfile import lock_path, lock_text, read_lock
from pinwheel.recipe.stale import check_fresh
from pinwheel.settings import MATRIX, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a person asked for.

    Attributes:
        combo: combo id.
        toolkit: name of one of the recipe's toolkits; None is its default.
        archs: capability list instead of the recipe's, of targets that it declares.
        jobs: compilers at once instead of what fits.
        replace: overwrite a wheel of the same name and other bytes.
        again: build although nothing has changed.
    """

    combo: str
    toolkit: str | None = None
    archs: str | None = None
    jobs: int | None = None
    replace: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request with everything it names read and checked, before anything is downloaded."""

    loaded: LoadedRecipe
    lock: Lock
    lock_path: Path
    matrix: Matrix
    torch: TorchBuild
    toolkit: str
    line: str
    capabilities: tuple[Capability, ...]
    whole: bool
    version: str
    key: str

    @property
    def capability_list(self) -> str:
        """As ``TORCH_CUDA_ARCH_LIST`` wants it."""
        return ";".join(str(c) for c in self.capabilities)

    @property
    def build_tag(self) -> str:
        """Build tag of a wheel for another capability list than the recipe's; else empty.

        Such a wheel has the recipe's version, so its file name must say what it lacks.
        """
        if self.whole:
            return ""
        names = (c.sm.replace("_", "") + ("ptx" if c.ptx else "") for c in self.capabilities)
        return "0" + ".".join(names)


def require_declared(
    loaded: LoadedRecipe,
    stated: Sequence[Capability],
    wanted: Sequence[Capability],
    toolkit: str,
) -> None:
    """Refuse targets that the recipe does not declare.

    What a toolkit can target is not what a package has code for, and a package's build says so
    only by leaving it out, after everything else has been compiled. ``9.0a`` is another target than
    ``9.0``, and PTX is one more; only to leave PTX away asks for less than was declared.

    Raises:
        CapabilityError: names the targets, the recipe's list, and how to add to it.
    """
    declared = {*stated, *(c.code for c in stated)}
    missing = [c for c in wanted if c not in declared]
    if not missing:
        return
    combo = loaded.combo
    raise CapabilityError(
        f"recipe {combo} does not declare {' '.join(map(str, missing))}",
        evidence=(
            f"{loaded.path}: capabilities: {format_capabilities(stated)}",
            f"asked for: {format_capabilities(wanted)}",
        ),
        next_step="Leave it out of --archs. If this release does have code for it, add it to "
        f"the recipe's capabilities and lock again: pinwheel lock --combo {combo} "
        f"--toolkit {toolkit}.",
    )


def take_order(request: Request, settings: Settings) -> Order:
    """Read and check what a request names; touches neither network nor store.

    Raises:
        UnknownComboError, MatrixError, RecipeError, LockError: an input that cannot be read.
        SettingsError: there are no recipes where the settings look for them.
        CapabilityError, ContradictionError, ToolchainError: a rule that refuses it.
        LockStaleError: the lock does not follow from recipe, matrix and patches any more.
    """
    matrix = load_matrix(settings.project / MATRIX)
    combo = matrix.combo(request.combo)
    require_recipe(settings, combo)
    loaded = load_recipe(settings, combo)
    raise_findings(check_recipe(matrix, loaded.recipe))
    toolkit = chosen_toolkit(loaded, request.toolkit)
    line = matrix.toolkit(toolkit).line
    stated = matrix.parse_capabilities(loaded.recipe.capabilities)
    wanted = stated if request.archs is None else matrix.parse_capabilities(request.archs)
    require_targets(matrix, line, wanted)
    require_declared(loaded, stated, wanted, toolkit)
    path = lock_path(loaded, toolkit)
    lock = read_lock(path)
    check_fresh(lock, loaded, matrix, toolkit)
    require_compiler(matrix, line, lock)
    facts = {
        "lock": lock_text(lock),
        "capabilities": [str(c) for c in wanted],
        "inside": inside_files(loaded.recipe),
        "recipe": loaded.digest,
    }
    return Order(
        loaded=loaded,
        lock=lock,
        lock_path=path,
        matrix=matrix,
        torch=matrix.torch_of(combo),
        toolkit=toolkit,
        line=line,
        capabilities=wanted,
        whole=set(wanted) == set(stated),
        version=str(ArtifactVersion.of(combo, line)),
        key=work_key(facts),
    )

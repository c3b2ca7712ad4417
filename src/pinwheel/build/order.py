"""Reads and checks what a person asked to build, before anything is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pinwheel.build.bench import require_compiler
from pinwheel.build.metadata import WHOLE_BUILD
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
        """``1``, or of a wheel for a part of the recipe's capability list its list after a ``0``.

        Such a wheel has the recipe's version, so its file name must say what it lacks; and the
        whole one must be the higher, as installers order build tags (PEP 427).
        """
        if self.whole:
            return WHOLE_BUILD
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
        CapabilityError: names the targets, the recipe's list, what to ask for instead, and how to
            add to the list.
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
        next_step=f"{_instead(wanted, stated)} If this release does have code for what is missing, "
        f"add it to the recipe's capabilities and lock again: pinwheel lock --combo {combo} "
        f"--toolkit {toolkit}.",
    )


def _instead(wanted: Sequence[Capability], stated: Sequence[Capability]) -> str:
    """The list to ask for: the nearest that is declared for each, or all there is."""
    declared = {*stated, *(c.code for c in stated)}
    near = {
        found
        for c in wanted
        # Without PTX it is less; the plain target is another one, for the same GPU.
        for found in [next((n for n in (c, c.code, _plain(c)) if n in declared), None)]
        if found is not None
    }
    if near:
        return f'Ask for --archs "{format_capabilities(sorted(near))}" instead.'
    return f'Ask for what it declares: --archs "{format_capabilities(stated)}", or a part of it.'


def _plain(capability: Capability) -> Capability:
    return Capability(capability.major, capability.minor)


def _wanted(
    text: str, matrix: Matrix, loaded: LoadedRecipe, stated: Sequence[Capability], toolkit: str
) -> tuple[Capability, ...]:
    """The list of ``--archs``, held against toolkit and recipe.

    Raises:
        CapabilityError: it cannot be read, or one of the two lacks a target.
    """
    try:
        wanted = matrix.parse_capabilities(text)
    except CapabilityError as error:
        raise CapabilityError(
            f"--archs: {error.what}",
            evidence=error.evidence,
            next_step='Write compute capabilities of the recipe: --archs "'
            f'{format_capabilities(stated)}", or a part of it.',
        ) from error
    try:
        require_targets(matrix, matrix.toolkit(toolkit).line, wanted)
    except CapabilityError as error:
        able = [name for name in loaded.recipe.toolkits.offered if _can(matrix, name, wanted)]
        other = (
            f" Or take a toolkit that can: --toolkit {' or '.join(able)}."
            if able
            else " No toolkit that the recipe offers can."
        )
        raise CapabilityError(
            f"--archs: {error.what}",
            evidence=error.evidence,
            next_step=_instead(wanted, stated) + other,
        ) from error
    require_declared(loaded, stated, wanted, toolkit)
    return wanted


def _can(matrix: Matrix, toolkit: str, wanted: Sequence[Capability]) -> bool:
    targets = matrix.parse_capabilities(matrix.line(matrix.toolkit(toolkit).line).targets)
    return all(c.code in targets for c in wanted)


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
    wanted = stated
    if request.archs is None:
        require_targets(matrix, line, wanted)
    else:
        wanted = _wanted(request.archs, matrix, loaded, stated, toolkit)
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

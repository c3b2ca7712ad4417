"""A recipe against the matrix: pins, toolkits, drivers, capabilities, Python.

Every finding names both sides and what each rests on. Nothing is read from disk here.
"""

from __future__ import annotations

from collections.abc import Callable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from pinwheel.errors import CapabilityError, UnknownComboError
from pinwheel.matrix.capability import Capability
from pinwheel.matrix.check import on_pin, require_targets
from pinwheel.matrix.combo import ComboId
from pinwheel.matrix.findings import MATRIX_FILE, Finding, side
from pinwheel.matrix.models import Matrix, ReleaseRow, TorchBuild, nvcc_of
from pinwheel.recipe.models import Recipe

Report = Callable[[str, str, tuple[str, ...], str], None]


def check_recipe(matrix: Matrix, recipe: Recipe) -> list[Finding]:
    """Every contradiction between a recipe and the matrix, or within the recipe.

    Rules (``Finding.rule``): ``combo-unknown``, ``source-differs``, ``off-pin``, ``on-pin``,
    ``toolkit-unknown``, ``toolkit-default``, ``toolkit-major``, ``driver-missing``,
    ``driver-differs``, ``capabilities``, ``python``, ``torch-requirement``.
    """
    findings: list[Finding] = []

    def report(rule: str, what: str, sides: tuple[str, ...], next_step: str) -> None:
        findings.append(Finding(rule, recipe.combo, what, sides, next_step))

    def mine(key: str, says: str) -> str:
        return f"recipe {key}: {says}"

    try:
        combo = matrix.combo(recipe.combo)
    except UnknownComboError as error:
        report(
            "combo-unknown",
            "the matrix does not offer this combo",
            (mine("combo", recipe.combo), f"{MATRIX_FILE} combos: {'; '.join(error.evidence)}"),
            "Add it to arch_matrix.toml [combos], or correct the recipe's combo.",
        )
        return findings

    build = matrix.torch.get(matrix.combos[recipe.combo].torch)
    release = matrix.releases.get(combo.package, {}).get(combo.release)
    if (recipe.source.package, recipe.source.version) != (combo.package, combo.release):
        report(
            "source-differs",
            "its source is not the release its combo names",
            (
                mine("source", f"{recipe.source.package} {recipe.source.version}"),
                f"combo id: {combo.package} {combo.release}",
            ),
            "Make the two equal.",
        )
    # Rows that are missing are check_matrix's findings; without them there is nothing to compare.
    if build is not None and release is not None:
        _check_pin(recipe, combo, build, release, report)
    if build is not None:
        _check_torch_requirements(recipe, build, report)
        _check_toolkits(matrix, recipe, build, report)
    _check_python(recipe, combo, build, release, report)
    _check_capabilities(matrix, recipe, report)
    return findings


def _torch_side(build: TorchBuild) -> str:
    return side(f'torch."{build.version}"', f"{build.version}, CUDA {build.cuda}", build.source)


def _upstream_side(combo: ComboId, release: ReleaseRow) -> str:
    pin = f"torch {release.torch or 'any'}" + (f" (CUDA {release.cuda})" if release.cuda else "")
    return side(f'releases.{combo.package}."{combo.release}"', pin, release.source)


def _check_pin(
    recipe: Recipe, combo: ComboId, build: TorchBuild, release: ReleaseRow, report: Report
) -> None:
    sides = (
        f'combo "{combo}": torch {build.version} (CUDA {build.cuda}) [{MATRIX_FILE} combos]',
        _upstream_side(combo, release),
    )
    stated = f"recipe: native = {str(recipe.native).lower()}"
    if on_pin(build, release):
        if not recipe.native:
            report(
                "on-pin",
                "it says native = false, but its torch build is the one upstream pins",
                (stated, *sides),
                "Write native = true and drop reason, or choose another torch build.",
            )
        return
    if recipe.native:
        report(
            "off-pin",
            f"it says native = true, but upstream pins torch {release.torch}",
            (stated, *sides),
            "Write native = false with a reason and a patch series, or use upstream's pin.",
        )
        return
    lacking = [
        name
        for name, there in (("reason", recipe.reason.strip()), ("patches", recipe.patches.strip()))
        if not there
    ]
    if lacking:
        report(
            "off-pin",
            f"it leaves upstream's torch {release.torch} without {' and '.join(lacking)}",
            (f"{stated}, no {', no '.join(lacking)}", *sides),
            "State why leaving the pin is allowed and name the patch series that makes it so.",
        )


def _check_torch_requirements(recipe: Recipe, build: TorchBuild, report: Report) -> None:
    """Every torch requirement the recipe writes must be the combo's build, in public form."""
    written = [("build.requires", text) for text in recipe.build.requires]
    written += [("run.companions", text) for text in recipe.run.companions]
    written += [("requirements.new", rewrite.new) for rewrite in recipe.requirements]
    for key, text in written:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) != "torch":
            continue
        if str(requirement.specifier) != f"=={build.version}":
            report(
                "torch-requirement",
                f"it requires {text!r}, which is not its torch build",
                (f"recipe {key}: {text}", _torch_side(build)),
                f"Write torch=={build.version}.",
            )


def _check_toolkits(matrix: Matrix, recipe: Recipe, build: TorchBuild, report: Report) -> None:
    offered = recipe.toolkits.offered
    if recipe.toolkits.default not in offered:
        report(
            "toolkit-default",
            f"its default toolkit {recipe.toolkits.default} is not among those offered",
            (
                f"recipe toolkits.default: {recipe.toolkits.default}",
                f"recipe toolkits.offered: {', '.join(offered) or 'none'}",
            ),
            "Offer the default, or choose another default.",
        )
    for name in sorted(set(recipe.driver) - set(offered)):
        report(
            "driver-missing",
            f"it states drivers for {name}, which it does not offer",
            (f"recipe driver: {name}", f"recipe toolkits.offered: {', '.join(offered)}"),
            "Drop the driver table, or offer the toolkit.",
        )
    for name in offered:
        toolkit = matrix.toolkits.get(name)
        if toolkit is None or toolkit.line not in matrix.cuda:
            report(
                "toolkit-unknown",
                f"the matrix has no toolkit {name}",
                (
                    f"recipe toolkits.offered: {name}",
                    f"{MATRIX_FILE} toolkits: {', '.join(matrix.toolkits) or 'none'}",
                ),
                "Name one of these, or add it to the matrix with its source.",
            )
            continue
        line = matrix.cuda[toolkit.line]
        toolkit_side = side(f'toolkits."{name}"', f"CUDA {toolkit.line}", toolkit.source)
        if toolkit.line.split(".")[0] != build.cuda.split(".")[0]:
            # Minor-version compatibility holds within a major only.
            report(
                "toolkit-major",
                f"toolkit {name} is of another CUDA major than its torch build",
                (toolkit_side, _torch_side(build)),
                f"Offer a toolkit of CUDA {build.cuda.split('.')[0]}.x.",
            )
        stated = recipe.driver.get(name)
        if stated is None:
            report(
                "driver-missing",
                f"it states no drivers for toolkit {name}",
                (f"recipe driver: {', '.join(recipe.driver) or 'none'}", toolkit_side),
                f'Add [driver."{name}"] with native and minimum.',
            )
            continue
        line_side = f'cuda."{toolkit.line}"'
        for key, says, matrix_says in (
            ("native", stated.native, line.native_driver_for(nvcc_of(name))),
            ("minimum", stated.minimum, line.minor_driver),
        ):
            if says != matrix_says:
                report(
                    "driver-differs",
                    f"its {key} driver for {name} is {says}, the matrix says "
                    f"{matrix_says or 'nothing'}",
                    (
                        f'recipe driver."{name}".{key}: {says}',
                        side(line_side, matrix_says or "unknown", line.driver_source),
                    ),
                    f"Write the driver of the CUDA {toolkit.line} release that brings nvcc "
                    f"{nvcc_of(name)}, the toolkit that compiles.",
                )


def _check_python(
    recipe: Recipe,
    combo: ComboId,
    build: TorchBuild | None,
    release: ReleaseRow | None,
    report: Report,
) -> None:
    if build is not None and recipe.python not in build.pythons:
        report(
            "python",
            f"its torch build has no wheel for Python {recipe.python}",
            (
                f"recipe python: {recipe.python}",
                side(f'torch."{build.version}"', ", ".join(build.pythons), build.source),
            ),
            "Choose one of the torch build's Pythons.",
        )
    if release is not None and release.python is not None:
        try:
            fits = SpecifierSet(release.python).contains(recipe.python)
        except ValueError:
            fits = False
        if not fits:
            report(
                "python",
                f"{combo.package} {combo.release} does not run on Python {recipe.python}",
                (
                    f"recipe python: {recipe.python}",
                    side(
                        f'releases.{combo.package}."{combo.release}"',
                        release.python,
                        release.source,
                    ),
                ),
                "Choose a Python both allow.",
            )


def _check_capabilities(matrix: Matrix, recipe: Recipe, report: Report) -> None:
    capabilities: tuple[Capability, ...] = ()
    try:
        capabilities = matrix.parse_capabilities(recipe.capabilities)
    except CapabilityError as error:
        report(
            "capabilities",
            error.what,
            (f"recipe capabilities: {' '.join(recipe.capabilities)}", *error.evidence),
            error.next_step,
        )
        return
    declared = {f"{c.major}.{c.minor}" for c in capabilities}
    for row in recipe.kernels_for:
        if row.capability not in declared:
            report(
                "capabilities",
                f"kernels-for names {row.capability}, which the recipe does not declare",
                (f"recipe capabilities: {' '.join(recipe.capabilities)}", row.library),
                "Write a declared capability, plain and without +PTX, or take the table away.",
            )
    for name in recipe.toolkits.offered:
        toolkit = matrix.toolkits.get(name)
        if toolkit is None or toolkit.line not in matrix.cuda:
            continue
        try:
            require_targets(matrix, toolkit.line, capabilities)
        except CapabilityError as error:
            report(
                "capabilities",
                f"with toolkit {name}, {error.what}",
                (f"recipe capabilities: {' '.join(recipe.capabilities)}", *error.evidence),
                error.next_step,
            )

"""Finds the recipe of a combo and the patches of its series."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pinwheel.errors import RecipeError
from pinwheel.matrix.combo import ComboId, find_combo
from pinwheel.matrix.toml_lines import line_of
from pinwheel.recipe.models import Recipe
from pinwheel.recipe.tomlfile import canonical_sha256, read_model
from pinwheel.settings import Settings

RECIPE_FILE = "recipe.toml"
_PATCH = re.compile(r"(?P<number>[0-9]{4})-[A-Za-z0-9][A-Za-z0-9._-]*\.patch")
_TOOLKIT = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe with where it was found.

    Attributes:
        recipe: what it says.
        combo: its id.
        directory: the directory that also holds its locks.
        path: the recipe file itself.
        project: the directory that patch paths in a lock start from.
        digest: sha256 of the recipe's meaning; comments and order of keys do not count.
        patches: its patch files, in the order they apply.
    """

    recipe: Recipe
    combo: ComboId
    directory: Path
    path: Path
    project: Path
    digest: str
    patches: tuple[Path, ...]

    def patch_names(self) -> tuple[str, ...]:
        """Paths of the patches relative to the project, as a lock names them."""
        return tuple(p.relative_to(self.project).as_posix() for p in self.patches)


def available_recipes(settings: Settings) -> Mapping[str, Path]:
    """Recipe files by combo id; of several directories the first that has a combo wins."""
    found: dict[str, Path] = {}
    for directory in settings.recipes:
        for path in sorted(directory.glob(f"*/{RECIPE_FILE}")):
            found.setdefault(path.parent.name, path)
    return found


def load_recipe(settings: Settings, combo: ComboId | str) -> LoadedRecipe:
    """The recipe of ``combo`` with its patches.

    Raises:
        UnknownComboError: there is no such recipe; offers the nearest.
        RecipeError: the recipe is malformed, names another combo than its directory, or its
            patch series is missing or has gaps.
    """
    recipes = available_recipes(settings)
    # Only names of existing directories are ever turned into a path, never what was typed.
    identity = find_combo(str(combo), recipes)
    path = recipes[str(identity)]
    recipe = read_model(
        path, Recipe, RecipeError, next_step="Correct the recipe; docs/recipes.md lists the keys."
    )
    if recipe.combo != path.parent.name:
        raise _wrong(path, f"combo is {recipe.combo!r}, but the directory is {path.parent.name!r}")
    if (recipe.source.package, recipe.source.version) != (identity.package, identity.release):
        raise _wrong(
            path,
            f"source is {recipe.source.package} {recipe.source.version}, "
            f"but the combo is of {identity.package} {identity.release}",
        )
    if recipe.toolkits.default not in recipe.toolkits.offered:
        raise _wrong(path, f"toolkits.default {recipe.toolkits.default!r} is not offered")
    for name in recipe.toolkits.offered:
        if not _TOOLKIT.fullmatch(name):
            raise _wrong(path, f"toolkits.offered: {name!r} is no toolkit name")
    return LoadedRecipe(
        recipe=recipe,
        combo=identity,
        directory=path.parent,
        path=path,
        project=settings.project,
        digest=recipe_digest(recipe),
        patches=_series(path, recipe, settings.project),
    )


def recipe_digest(recipe: Recipe) -> str:
    """SHA-256 of what a recipe means. Values equal to a default do not count, so a new optional
    key leaves the locks of recipes that do not use it alone."""
    return canonical_sha256(recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def chosen_toolkit(loaded: LoadedRecipe, toolkit: str | None) -> str:
    """``toolkit``, or the recipe's default for None.

    Raises:
        RecipeError: the recipe does not offer it.
    """
    offered = loaded.recipe.toolkits
    name = offered.default if toolkit is None else toolkit
    if name not in offered.offered:
        raise RecipeError(
            f"recipe {loaded.recipe.combo} offers no toolkit {name!r}",
            evidence=[f"{loaded.path}: toolkits.offered: {', '.join(offered.offered)}"],
            next_step="Choose one that is offered, or add it to the recipe.",
        )
    return name


def lock_path(loaded: LoadedRecipe, toolkit: str) -> Path:
    """Where the lock of a recipe for ``toolkit`` is kept."""
    return loaded.directory / f"lock.{toolkit}.toml"


def _series(path: Path, recipe: Recipe, project: Path) -> tuple[Path, ...]:
    if not recipe.patches:
        return ()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", recipe.patches):
        raise _wrong(path, f"patches: {recipe.patches!r} is no directory name")
    package = f"{recipe.source.package}-{recipe.source.version}"
    directory = project / "patches" / package / recipe.patches
    if not directory.is_dir():
        raise _wrong(path, f"patches: there is no directory {directory}")
    files = sorted(p for p in directory.iterdir() if not p.name.startswith("."))
    for expected, file in enumerate(files, 1):
        found = _PATCH.fullmatch(file.name)
        if found is None or not file.is_file():
            raise _wrong(path, f"patches: {file} is not named NNNN-what-it-does.patch")
        if int(found["number"]) != expected:
            raise _wrong(path, f"patches: {file} should be number {expected:04d}")
    if not files:
        raise _wrong(path, f"patches: {directory} holds no patch")
    return tuple(files)


def _wrong(path: Path, what: str) -> RecipeError:
    key = what.split(":")[0].split(" ")[0]
    line = line_of(path.read_text("utf-8"), key.split("."))
    return RecipeError(
        f"{path}:{line}: {what}",
        next_step="Correct the recipe; docs/recipes.md lists the keys.",
    )

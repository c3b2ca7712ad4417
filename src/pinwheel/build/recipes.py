"""Says that the directory of recipes is the wrong one, where looking into it finds none at all."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from pinwheel.errors import RecipeError, SettingsError
from pinwheel.matrix.combo import ComboId
from pinwheel.recipe.load import RECIPE_FILE, available_recipes
from pinwheel.settings import FILE, Settings

_NAME_IT = (
    "Name the directory that holds <combo>/recipe.toml with --recipes, PINWHEEL_RECIPES or "
    f"[paths] recipes in {FILE}; with none of them it is `recipes` beside arch_matrix.toml."
)


def require_recipes(settings: Settings) -> None:
    """Refuse settings whose recipe directories hold no recipe; a combo is not at fault then.

    Raises:
        SettingsError: names every directory looked into, and what is wrong with it.
    """
    if available_recipes(settings):
        return
    names = ", ".join(str(path) for path in settings.recipes)
    raise SettingsError(
        f"there are no recipes in {names}", evidence=_looked(settings), next_step=_NAME_IT
    )


def require_recipe(settings: Settings, combo: ComboId) -> None:
    """Refuse a combo that the matrix offers and no recipe answers to.

    Raises:
        SettingsError: no directory holds any recipe.
        RecipeError: there are recipes, but none for this combo; names where one would be.
    """
    require_recipes(settings)
    recipes = available_recipes(settings)
    if str(combo) not in recipes:
        raise RecipeError(
            f"no recipe answers to {combo}",
            evidence=[*_looked(settings, str(combo)), f"recipes there: {', '.join(recipes)}"],
            next_step=f"{_NAME_IT} Where it has to be written first: docs/recipes.md.",
        )


def _looked(settings: Settings, combo: str = "*") -> Iterator[str]:
    for path in settings.recipes:
        try:
            there = stat.S_ISDIR(path.stat().st_mode)
            yield f"{path}: no {combo}/{RECIPE_FILE}" if there else f"{path}: no directory"
        except OSError as error:
            yield f"{path}: {error.strerror}"

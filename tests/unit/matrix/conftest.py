from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import tomlkit
from hypothesis import HealthCheck, settings
from matrix_kit import FLAGSHIP, PROJECT, SMALL

from pinwheel.matrix.models import Matrix, load_matrix, parse_matrix
from pinwheel.recipe.models import Recipe

# A loaded machine (a compile runs beside the tests) is no reason to fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    """The project's own matrix."""
    return load_matrix(PROJECT / "arch_matrix.toml")


@pytest.fixture(scope="session")
def _recipe_data() -> dict[str, Any]:
    return tomllib.loads((PROJECT / "recipes" / FLAGSHIP / "recipe.toml").read_text())


@pytest.fixture
def make_recipe(_recipe_data: dict[str, Any]) -> Callable[..., Recipe]:
    """The flagship's recipe with some top-level keys replaced."""

    def make(**changes: Any) -> Recipe:
        return Recipe.model_validate({**copy.deepcopy(_recipe_data), **changes})

    return make


@pytest.fixture
def change() -> Callable[..., Matrix]:
    """A small consistent matrix with one value set (or, with ``None``, removed) at a path."""

    def make(*path: str, value: Any = None) -> Matrix:
        data: Any = tomlkit.parse(SMALL)
        node = data
        for key in path[:-1]:
            node = node[key]
        if value is None:
            del node[path[-1]]
        else:
            node[path[-1]] = value
        return parse_matrix(tomlkit.dumps(data), "small.toml")

    return make

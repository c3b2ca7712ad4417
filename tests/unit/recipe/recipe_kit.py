"""What the recipe tests share: a small project with a matrix, a recipe, a patch and a lock."""

from __future__ import annotations

import shutil
from pathlib import Path

from pinwheel.recipe.lock import Input, Lock, Role, SourceKind
from pinwheel.settings import Settings

PROJECT = Path(__file__).parents[3]
FLAGSHIP = "cu121-torch2.3-vllm0.6.3"
TOOLKIT = "debian-12.4.131"
SERIES = Path("patches/vllm-0.6.3/torch-2.3")


def make_project(place: Path) -> Path:
    """A copy of the project's matrix, flagship recipe and patches at ``place``."""
    place.mkdir(parents=True)
    shutil.copy(PROJECT / "arch_matrix.toml", place)
    for part in (Path("recipes") / FLAGSHIP, SERIES):
        shutil.copytree(PROJECT / part, place / part)
    return place


def make_settings(project: Path, **changes: object) -> Settings:
    """Settings of a project that touch nothing outside it."""
    values: dict[str, object] = {
        "cache": project / "cache",
        "recipes": (project / "recipes",),
        "project": project,
        "dist": project / "dist",
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


def an_input(name: str, **changes: object) -> Input:
    """An index wheel."""
    values: dict[str, object] = {
        "roles": (Role.RUN,),
        "source": SourceKind.INDEX,
        "name": name,
        "version": "1.0",
        "path": f"{name}-1.0-py3-none-any.whl",
        "size": 10,
        "sha256": "ab" * 32,
    }
    return Input(**{**values, **changes})  # type: ignore[arg-type]


def a_lock(*inputs: Input, **changes: object) -> Lock:
    """A lock of the flagship."""
    values: dict[str, object] = {
        "lock_version": 1,
        "combo": FLAGSHIP,
        "toolkit": TOOLKIT,
        "recipe_sha256": "1" * 64,
        "matrix_sha256": "2" * 64,
        "data_sha256": "3" * 64,
        "debian_snapshot": "20260102T030405Z",
        "source_date_epoch": 1728941239,
        "inputs": inputs,
    }
    return Lock(**{**values, **changes})  # type: ignore[arg-type]

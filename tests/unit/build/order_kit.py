"""A copy of the project that a test may spoil, and ``pinwheel`` in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pinwheel.cli.main import main
from pinwheel.matrix.models import load_matrix
from pinwheel.recipe.data import data_digest
from pinwheel.recipe.load import load_recipe
from pinwheel.recipe.lock import Role
from pinwheel.recipe.lockfile import lock_path, read_lock, write_lock
from pinwheel.recipe.stale import matrix_slice_digest, patch_inputs
from pinwheel.settings import load_settings

SOURCE = Path(__file__).parents[3]
COMBO = "cu121-torch2.3-vllm0.6.3"
TOOLKIT = "debian-12.4.131"


@dataclass
class Answer:
    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.out)
        return data


class Project:
    """A copy of the project's matrix, recipe, lock and patches that a test may spoil."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str] | None) -> None:
        self.path = path
        self.recipe = path / "recipes" / COMBO / "recipe.toml"
        self.lock = self.recipe.with_name(f"lock.{TOOLKIT}.toml")
        self.patches = sorted((path / "patches").rglob("*.patch"))
        self._capsys = capsys

    def build(self, *arguments: str, dry: bool = True) -> Answer:
        """``pinwheel build``, in this process."""
        return self.run("build", "--combo", COMBO, *arguments, *(["--dry-run"] if dry else []))

    def run(self, *command: str) -> Answer:
        """``pinwheel``, in this process."""
        assert self._capsys is not None
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(command))
        said = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Answer(ended.value.code, said.out, said.err)

    def change(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def freshen(self) -> None:
        """Make the lock follow from what is there, as `pinwheel lock` would, without network."""
        settings = load_settings(self.path, {})
        matrix = load_matrix(self.path / "arch_matrix.toml")
        loaded = load_recipe(settings, COMBO)
        lock = read_lock(lock_path(loaded, TOOLKIT))
        inputs = [i for i in lock.inputs if Role.PATCH not in i.roles]
        inputs += patch_inputs(loaded)
        fresh = lock.model_copy(
            update={
                "recipe_sha256": loaded.digest,
                "matrix_sha256": matrix_slice_digest(matrix, loaded, TOOLKIT),
                "data_sha256": data_digest(TOOLKIT),
                "inputs": tuple(
                    sorted(inputs, key=lambda i: (i.source, i.name, i.version, i.path))
                ),
            }
        )
        write_lock(fresh, self.lock)

"""The working directory of one build: source tree, patches, logs; survives a kill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pinwheel.files import atomic_write, make_directory, remove_tree, writing
from pinwheel.inputs.archive import unpack_sdist, unpack_wheel
from pinwheel.inputs.patch_file import read_series
from pinwheel.inputs.patches import apply_series
from pinwheel.recipe.lock import Input, Role
from pinwheel.recipe.models import Recipe

# Below pinwheel/build: what is shown at /opt/pinwheel.
INSIDE = ("inside/drive.py", "inside/launch.py", "inside/probe.py", "inside/toolchain.cmake")
PACK = "zipping.py"


@dataclass(frozen=True, slots=True)
class Work:
    """Directories of one build, all below ``path``; which build it is, is in its name."""

    path: Path

    @property
    def source(self) -> Path:
        """The patched source tree; object files grow in it."""
        return self.path / "src"

    @property
    def logs(self) -> Path:
        """Build log, events and one log per source."""
        return self.path / "logs"

    @property
    def out(self) -> Path:
        """Where the back end puts the raw wheel."""
        return self.path / "out"

    @property
    def dependencies(self) -> Path:
        """Unpacked source-level dependencies, a directory each."""
        return self.path / "deps"

    @property
    def record(self) -> Path:
        """Figures of the run that made the wheel."""
        return self.path / "figures.json"

    @property
    def inside(self) -> Path:
        """Programs and CMake files shown at ``/opt/pinwheel``."""
        return self.path / "inside"


def inside_files(recipe: Recipe) -> dict[str, str]:
    """The files shown at ``/opt/pinwheel``: our programs, and the recipe's CMake variables."""
    folder = resources.files("pinwheel.build")
    files = {
        name.rpartition("/")[2]: (folder / name).read_text(encoding="utf-8")
        for name in (*INSIDE, PACK)
    }
    files["recipe.cmake"] = "".join(
        f'set({key} {_quoted(value)} CACHE STRING "" FORCE)\n'
        for key, value in sorted(recipe.build.cmake.items())
    )
    return files


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def work_key(facts: Mapping[str, object]) -> str:
    """Name of a build: everything that decides its bytes, as 16 hexadecimal digits."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare(
    work: Work,
    recipe: Recipe,
    inputs: Sequence[Input],
    paths: Mapping[str, Path],
    epoch: int,
    project: Path,
) -> bool:
    """Unpack and patch the source, unless an earlier run already did; returns whether it had.

    Args:
        work: where.
        recipe: whose dependencies and CMake variables to lay out.
        inputs: the lock's inputs.
        paths: their files in the store, by sha256.
        epoch: time of every source file, seconds since 1970.
        project: where patch files are, for their names in messages.

    Raises:
        UnpackError, PatchError: the source or a patch is not what the lock says.
    """
    make_directory(work.logs / "sources")
    remove_tree(work.inside)
    for name, text in inside_files(recipe).items():
        atomic_write(work.inside / name, text.encode())
    ready = work.path / "ready"
    if ready.exists():
        return True
    for directory in (work.source, work.dependencies):
        remove_tree(directory)
    (sdist,) = (i for i in inputs if Role.SOURCE in i.roles)
    unpack_sdist(paths[sdist.sha256], work.source, epoch=epoch)
    series = [project / i.path for i in inputs if Role.PATCH in i.roles]
    apply_series(work.source, read_series(series), mtime=epoch)
    make_directory(work.dependencies)
    for name, dependency in recipe.dependencies.items():
        (wheel,) = (
            i for i in inputs if Role.DEPENDENCY in i.roles and i.name == dependency.package
        )
        unpack_wheel(
            paths[wheel.sha256],
            work.dependencies / name,
            select=dict(dependency.files) or None,
            epoch=epoch,
        )
    with writing(ready):
        ready.touch()
    return False

from __future__ import annotations

import hashlib
import io
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from test_proof import RECIPE

from pinwheel.build.work import Work, inside_files, prepare, work_key
from pinwheel.errors import PatchError, UnpackError
from pinwheel.files import sha256_file
from pinwheel.recipe.lock import Input, Role, SourceKind
from pinwheel.recipe.models import Recipe

EPOCH = 1_728_941_239
PATCH = """\
Subject: Say two
Why: one is not enough
Upstream: not sent
Checked-by: this test

--- a/pack/value.py
+++ b/pack/value.py
@@ -1 +1 @@
-VALUE = 1
+VALUE = 2
"""
DEPENDENCY = {
    "package": "cutlass",
    "version": "1",
    "upstream": "CMakeLists.txt",
    "files": {"lib/include": "include"},
}


class Given:
    """The inputs of a small build."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.project = path / "project"
        (self.project / "patches").mkdir(parents=True)
        self.recipe = Recipe.model_validate({**RECIPE, "dependencies": {"cutlass": DEPENDENCY}})
        sdist = path / "pack-1.tar.gz"
        with tarfile.open(sdist, "w:gz") as archive:
            for name, data in (("pack/value.py", b"VALUE = 1\n"), ("setup.py", b"")):
                info = tarfile.TarInfo(f"pack-1/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        wheel = path / "cutlass-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as packed:
            packed.writestr("lib/include/cutlass.h", "// here\n")
            packed.writestr("lib/other.txt", "no\n")
        patch = self.project / "patches/0001-say-two.patch"
        patch.write_text(PATCH)
        self.paths: dict[str, Path] = {}
        self.inputs = [
            self._input(wheel, Role.DEPENDENCY, "cutlass"),
            self._input(sdist, Role.SOURCE, "pack"),
            self._input(patch, Role.PATCH, patch.name, f"patches/{patch.name}"),
        ]

    def _input(self, file: Path, role: Role, name: str, path: str = "") -> Input:
        sha256 = sha256_file(file)
        self.paths[sha256] = file
        return Input(
            roles=(role,),
            source=SourceKind.PROJECT if path else SourceKind.INDEX,
            name=name,
            version="1",
            path=path or file.name,
            size=file.stat().st_size,
            sha256=sha256,
        )

    def prepare(self, work: Work) -> bool:
        return prepare(work, self.recipe, self.inputs, self.paths, EPOCH, self.project)


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path)


def digest(work: Work) -> str:
    found = hashlib.sha256()
    for root in (work.source, work.dependencies):
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            found.update(f"{path.relative_to(work.path)} {path.stat().st_mtime}".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def test_a_work_directory_is_patched_source_dependencies_and_programs(
    given: Given, tmp_path: Path
) -> None:
    work = Work(tmp_path / "work")
    assert given.prepare(work) is False
    assert (work.source / "pack/value.py").read_text() == "VALUE = 2\n"
    assert (work.source / "pack/value.py").stat().st_mtime == EPOCH
    assert (work.dependencies / "cutlass/include/cutlass.h").exists()
    assert not list(work.dependencies.rglob("other.txt"))
    assert (work.logs / "sources").is_dir()
    assert {p.name for p in work.inside.iterdir()} == {
        *("drive.py", "launch.py", "probe.py", "toolchain.cmake", "recipe.cmake", "zipping.py"),
    }


def test_a_build_is_taken_up_and_its_objects_are_kept(given: Given, tmp_path: Path) -> None:
    work = Work(tmp_path / "work")
    given.prepare(work)
    (work.source / "build").mkdir()
    (work.source / "build/a.o").touch()
    (work.inside / "launch.py").write_text("an older pinwheel's")
    assert given.prepare(work) is True
    assert (work.source / "build/a.o").exists()
    assert "an older" not in (work.inside / "launch.py").read_text()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_work import Given, Work
from pinwheel.build import work
def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(work, sys.argv[3], die)
given = Given(Path(sys.argv[1]) / "given")
given.prepare(Work(Path(sys.argv[1]) / "work"))
"""


@pytest.mark.parametrize("at", ["apply_series", "unpack_wheel"])
def test_killed_while_preparing_and_done_again(given: Given, tmp_path: Path, at: str) -> None:
    (tmp_path / "given").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent), at],
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    work, clean = Work(tmp_path / "work"), Work(tmp_path / "clean")
    assert (work.source / "setup.py").exists()
    (work.source / "left.txt").touch()
    assert given.prepare(work) is False
    assert given.prepare(clean) is False
    assert digest(work) == digest(clean)


def test_a_patch_that_does_not_apply_leaves_nothing_ready(given: Given, tmp_path: Path) -> None:
    patch = given.project / "patches/0001-say-two.patch"
    patch.write_text(PATCH.replace("VALUE = 1", "VALUE = 7"))
    work = Work(tmp_path / "work")
    with pytest.raises(PatchError, match="0001-say-two"):
        given.prepare(work)
    assert not (work.path / "ready").exists()
    patch.write_text(PATCH)
    assert given.prepare(work) is False


def test_a_damaged_source_leaves_nothing_ready(given: Given, tmp_path: Path) -> None:
    sdist = tmp_path / "pack-1.tar.gz"
    sdist.write_bytes(sdist.read_bytes()[:-20])
    work = Work(tmp_path / "work")
    with pytest.raises(UnpackError):
        given.prepare(work)
    assert not (work.path / "ready").exists()


def test_cmake_variables_are_quoted(given: Given) -> None:
    cmake = {"B": 'a "b" ${C} \\ d;e', "A": "ON"}
    build = given.recipe.build.model_copy(update={"cmake": cmake})
    text = inside_files(given.recipe.model_copy(update={"build": build}))["recipe.cmake"]
    assert text == (
        'set(A "ON" CACHE STRING "" FORCE)\n'
        'set(B "a \\"b\\" \\${C} \\\\ d;e" CACHE STRING "" FORCE)\n'
    )


def test_the_key_names_what_decides_the_bytes() -> None:
    one = work_key({"lock": "a", "capabilities": ["8.0"]})
    assert one == work_key({"capabilities": ["8.0"], "lock": "a"})
    assert one != work_key({"lock": "b", "capabilities": ["8.0"]})
    assert one != work_key({"lock": "a", "capabilities": ["8.0", "9.0"]})
    assert len(one) == 16

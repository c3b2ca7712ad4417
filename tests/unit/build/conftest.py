from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from order_kit import SOURCE, Project


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy whose lock is fresh, made once."""
    path = tmp_path_factory.mktemp("fresh") / "project"
    path.mkdir()
    shutil.copy(SOURCE / "arch_matrix.toml", path)
    for name in ("recipes", "patches"):
        shutil.copytree(SOURCE / name, path / name)
    Project(path, None).freshen()
    return path


@pytest.fixture
def project(
    fresh: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Project:
    path = tmp_path / "project"
    shutil.copytree(fresh, path)
    monkeypatch.setenv("PINWHEEL_PROJECT", str(path))
    monkeypatch.setenv("PINWHEEL_CACHE", str(tmp_path / "cache"))
    for name in ("PINWHEEL_DIST", "PINWHEEL_RECIPES", "PINWHEEL_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("INDEX", "DEBIAN"):  # never asked
        monkeypatch.setenv(f"PINWHEEL_MIRRORS_{name}", "http://mirror.invalid/place")
    return Project(path, capsys)


@pytest.fixture
def nothing_written(project: Project, tmp_path: Path) -> Callable[[], bool]:
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    return lambda: {p for p in tmp_path.rglob("*") if p.is_file()} == before

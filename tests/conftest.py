"""Shared by all tests: the test project, its package index, and who may run what."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ROOT / "tests" / "packages"


def _load(path: Path, name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def pytest_configure() -> None:
    """Let signals mean what they mean, for us and for what tests start.

    A job in the background of a script begins with SIGINT ignored, one under nohup with SIGHUP, and
    children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def load_script() -> Callable[[Path, str], ModuleType]:
    """Imports a file that is no module of a package, under a name."""
    return _load


@pytest.fixture(scope="session")
def probe_combo() -> str:
    """The combo of the test project."""
    return "cu130-torch2.11-pinprobe0.1.0"


@pytest.fixture(scope="session")
def make_index() -> ModuleType:
    """The script that packs pinprobe and serves it."""
    return _load(PACKAGES / "make_index.py", "make_index")


@pytest.fixture(scope="session")
def probe_index(make_index: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a package index (simple API) on this machine that serves pinprobe's sdist only."""
    directory = tmp_path_factory.mktemp("index")
    make_index.make_index(directory)
    with make_index.serve(directory) as url:
        yield f"{url}/simple"


@pytest.fixture
def probe_project(tmp_path: Path) -> Path:
    """A copy of the test project: its matrix, recipes and patches, free to be written to."""
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(PACKAGES / "arch_matrix.toml", project)
    for name in ("recipes", "patches"):
        shutil.copytree(PACKAGES / name, project / name)
    return project


@pytest.fixture
def probe_environment(
    probe_project: Path, probe_index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Configure pinwheel for the test project: local index first, then the configured one.

    The store is left where the machine has it, so that 3 GB are not fetched for every test;
    everything else a build writes goes below ``tmp_path``. Gives the project's directory.
    """
    from pinwheel.settings import load_settings

    configured = load_settings(probe_project).index
    monkeypatch.setenv("PINWHEEL_PROJECT", str(probe_project))
    monkeypatch.setenv("PINWHEEL_MIRRORS_INDEX", " ".join((probe_index, *configured)))
    monkeypatch.setenv("PINWHEEL_DIST", str(tmp_path / "dist"))
    return probe_project

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from recipe_kit import make_project, make_settings

from pinwheel.settings import Settings

# A loaded machine (a compile runs beside the tests) is no reason to fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


@pytest.fixture
def local(project: Path) -> Settings:
    return make_settings(project)

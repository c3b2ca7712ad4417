"""What the e2e tests share: the flagship wheel, built once."""

from __future__ import annotations

from typing import Any

import pytest
from flagship import ARCHS, COMBO, pinwheel


@pytest.fixture(scope="session")
def built() -> dict[str, Any]:
    return pinwheel("build", "--combo", COMBO, "--archs", ARCHS)

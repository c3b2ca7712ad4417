from __future__ import annotations

import sys

import pytest
from root_kit import ARCHIVES, tiny_root

from pinwheel.buildroot.sandbox import Sandbox

sys.path.insert(0, str(ARCHIVES))


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """A sandbox over the tiny root, entered through this host's bubblewrap."""
    return Sandbox(tiny_root(tmp_path_factory.mktemp("tiny") / "root"), ("bwrap",))

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The readers' tests have the kit that puts libraries and fatbins together byte by byte.
sys.path.insert(0, str(Path(__file__).parents[1] / "inspect"))


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    from verify_kit import Gate

    return Gate(tmp_path, monkeypatch)

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinwheel.build import bench
from pinwheel.buildroot.lastuse import lock_of
from pinwheel.console import Console
from pinwheel.errors import BusyError
from pinwheel.files import file_lock
from pinwheel.matrix.capability import Capability

PLAIN, PTX = Capability(9, 0), Capability(9, 0, ptx=True)


@pytest.fixture
def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A toolkit, and what was asked of each proof of it."""
    asked: list[Any] = []
    toolkit: Any = SimpleNamespace(path=tmp_path / "wheels-13.0.88-0", name="t", version="13.0.88")

    def prove(**options: Any) -> None:
        assert not list(options["work"].iterdir())
        (options["work"] / "prove.o").touch()
        with pytest.raises(BusyError), file_lock(lock_of(toolkit.path), wait=False):
            pass
        asked.append(options["capabilities"])

    monkeypatch.setattr(bench, "prove", prove)
    sandbox: Any = SimpleNamespace(root=tmp_path / "5e941710ae58")

    def run(*capabilities: Capability) -> list[Any]:
        bench._prove(toolkit, sandbox, capabilities, Console(quiet=True))
        return asked

    return SimpleNamespace(run=run, toolkit=toolkit)


def test_a_toolkit_is_proven_once_for_each_list_of_targets(proven: Any) -> None:
    assert proven.run(PLAIN) == [(PLAIN,)]
    assert proven.run(PLAIN) == [(PLAIN,)]
    # Machine code for 9.0 proves no PTX for it.
    assert proven.run(PTX) == [(PLAIN,), (PTX,)]


def test_a_proof_that_was_killed_leaves_nothing_to_the_next(proven: Any) -> None:
    left = proven.toolkit.path.with_name(f"{proven.toolkit.path.name}.proof")
    left.mkdir()
    (left / "prove.cubin").touch()
    proven.run(PLAIN)
    assert not left.exists()

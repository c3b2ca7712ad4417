from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner
from matrix_kit import FLAGSHIP, PROJECT

from pinwheel.cli.matrix import _AXES, command
from pinwheel.errors import ContradictionError, MatrixError
from pinwheel.matrix.view import AXES


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(PROJECT / "arch_matrix.toml", tmp_path)
    shutil.copytree(PROJECT / "recipes", tmp_path / "recipes")
    shutil.copytree(PROJECT / "patches", tmp_path / "patches")
    monkeypatch.setenv("PINWHEEL_PROJECT", str(tmp_path))
    monkeypatch.delenv("PINWHEEL_RECIPES", raising=False)
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    assert result.exit_code == 0
    return result.stdout


def test_plain_tables_off_a_terminal(project: Path) -> None:
    text = run()
    assert "\x1b" not in text
    assert f"\n{FLAGSHIP}\tvllm\t0.6.3\t2.3.0+cu121\toff: upstream pins 2.4.0\n" in text
    assert "0.5.4 to 0.6.3.post1" in text
    for table in text.split("\n\n"):
        title, *lines = table.splitlines()
        assert title.startswith("# ")
        assert len({line.count("\t") for line in lines}) == 1


def test_the_driver_that_an_update_asks_for_is_shown(project: Path) -> None:
    """nvcc 12.4.131 is that of 12.4.1, which asks for a newer driver than 12.4."""
    lines = [line.split("\t") for line in run("cuda").splitlines()]
    row = dict(zip(lines[1], next(line for line in lines if line[0] == "12.4"), strict=True))
    assert row["native driver"] == "550.54.14"
    assert row["of updates"] == "550.54.15 from 12.4.1"
    assert row["newest nvcc"] == "12.4.131"
    toolkits = [line.split("\t") for line in run("toolkits").splitlines()]
    assert toolkits[1][2] == "native driver"
    assert [line[2] for line in toolkits if line[0] == "debian-12.4.131"] == ["550.54.15"]


def test_axes(project: Path) -> None:
    assert _AXES == AXES
    assert run("cuda").startswith("# CUDA lines\nCUDA\tnative driver\t")
    assert "Combos" not in run("cuda", "torch")


def test_json(project: Path) -> None:
    data = json.loads(run("--json"))
    assert set(data) == {"schema", *AXES}
    assert data["schema"] == 1
    assert data["combos"][FLAGSHIP] == {
        "cuda": "12.1",
        "torch": "2.3.0+cu121",
        "package": "vllm",
        "release": "0.6.3",
        "upstream-torch": "2.4.0",
        "on-pin": False,
        "source": data["combos"][FLAGSHIP]["source"],
    }
    assert data["cuda"]["12.4"]["newest-gcc"] == 13
    assert "native-driver" not in data["cuda"]["11.7"]
    assert set(json.loads(run("--json", "toolkits"))) == {"schema", "toolkits"}


def test_check(project: Path) -> None:
    assert run("--check") == "matrix and recipes agree (combos: 1, recipes: 1)\n"
    assert json.loads(run("--check", "--json"))["findings"] == []


def test_check_of_some_axes_is_refused(project: Path) -> None:
    with pytest.raises(UsageError, match=r"leave out cuda torch"):
        run("cuda", "torch", "--check")


def test_check_lists_every_contradiction(project: Path) -> None:
    recipe = project / "recipes" / FLAGSHIP / "recipe.toml"
    text = recipe.read_text()
    recipe.write_text(
        text.replace("native = false", "native = true").replace('"550.54.15"', '"530.30.02"')
    )
    matrix = project / "arch_matrix.toml"
    matrix.write_text(
        matrix.read_text().replace('cuda = "13.0"\npython', 'cuda = "12.8"\npython', 1)
    )
    with pytest.raises(ContradictionError) as caught:
        run("--check")
    said = "\n".join(caught.value.evidence)
    for rule in ("(off-pin)", "(driver-differs)", "(torch-cuda)"):
        assert rule in said


def test_combo_without_recipe(project: Path) -> None:
    shutil.rmtree(project / "recipes" / FLAGSHIP)
    with pytest.raises(ContradictionError, match="no recipe answers"):
        run("--check")


def test_malformed_matrix(project: Path) -> None:
    (project / "arch_matrix.toml").write_text("matrix-version = 1\nnonsense = 1\n")
    with pytest.raises(MatrixError, match=r"arch_matrix\.toml:"):
        run("--check")

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from inputs_kit import Site, make_input, some_bytes

from pinwheel.cli.fetch import _ROLES, command
from pinwheel.errors import (
    HashMismatchError,
    LockError,
    MissingInputsError,
    RecipeError,
    UnknownComboError,
)
from pinwheel.recipe.lock import Input, Lock, Role, SourceKind
from pinwheel.recipe.lockfile import write_lock

COMBO = "cu130-torch2.11-thing1.0"
RECIPE = f"""
recipe-version = 1
combo = "{COMBO}"
native = true
python = "3.11"
capabilities = ["8.0"]
extensions = {{}}
driver = {{}}
[source]
package = "thing"
version = "1.0"
[toolkits]
default = "wheels-13.0"
offered = ["wheels-13.0", "other"]
[build]
requires = ["setuptools"]
[run]
as-of = 2025-01-01T00:00:00Z
companions = []
[proof]
module = "thing"
"""


@pytest.fixture
def inputs(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> list[Input]:
    """A project with one recipe and its lock; the files are on the site."""
    deb, wheel = some_bytes(70_000, 1), some_bytes(90_000, 2)
    items = [
        make_input(deb, "pool/a.deb", name="a"),
        make_input(
            wheel,
            "thing-1.0-py3-none-any.whl",
            source=SourceKind.INDEX,
            roles=(Role.BUILD, Role.RUN),
        ),
    ]
    site.files["/debian/pool/a.deb"] = deb
    site.project("thing", {items[1].path: wheel})
    directory = tmp_path / "recipes" / COMBO
    directory.mkdir(parents=True)
    (directory / "recipe.toml").write_text(RECIPE)
    (tmp_path / "arch_matrix.toml").write_text("")
    lock = Lock.model_validate(
        {
            "lock-version": 1,
            "combo": COMBO,
            "toolkit": "wheels-13.0",
            "recipe-sha256": "0" * 64,
            "matrix-sha256": "0" * 64,
            "data-sha256": "0" * 64,
            "source-date-epoch": 1735689600,
            "input": [i.model_dump() for i in items],
        }
    )
    write_lock(lock, directory / "lock.wheels-13.0.toml")
    for name, value in {
        "PINWHEEL_PROJECT": str(tmp_path),
        "PINWHEEL_CACHE": str(tmp_path / "cache"),
        "PINWHEEL_MIRRORS_INDEX": f"{site.url}/simple",
        "PINWHEEL_MIRRORS_DEBIAN": f"{site.url}/debian",
    }.items():
        monkeypatch.setenv(name, value)
    return items


def run(*args: str) -> str:
    result = CliRunner().invoke(command, ["--combo", COMBO, *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_dry_run_role_and_all(inputs: list[Input], tmp_path: Path) -> None:
    header, *rows, last = run("--dry-run").splitlines()
    assert header.split("\t") == ["name", "version", "source", "path", "size", "sha256"]
    assert [row.split("\t")[3] for row in rows] == [i.path for i in inputs]
    assert last == "2 files, 160.0 kB: 0 in the store (0 B), 2 to download (160.0 kB)"
    assert run("--dry-run", "-q") == f"{last}\n"
    listed = json.loads(run("--dry-run", "--json"))
    assert [i["sha256"] for i in listed["missing"]] == [i.sha256 for i in inputs]
    report = json.loads(run("--role", "run", "--json"))
    assert [f["path"] for f in report["fetched"]] == [inputs[1].path]
    assert run("--dry-run").splitlines()[-1] == (
        "2 files, 160.0 kB: 1 in the store (90.0 kB), 1 to download (70.0 kB)"
    )
    report = json.loads(run("--json"))
    assert (report["present"], len(report["fetched"])) == (1, 1)
    assert json.loads(run("--dry-run", "--json"))["missing"] == []
    assert run("--dry-run") == "2 files, 160.0 kB, nothing to download\n"
    assert run() == ""

    stored = Path(report["store"]) / "sha256" / inputs[0].sha256[:2] / inputs[0].sha256
    stored.chmod(0o644)
    stored.write_bytes(bytes(inputs[0].size))
    assert len(json.loads(run("--json"))["fetched"]) == 0
    assert len(json.loads(run("--json", "--verify", "-q"))["fetched"]) == 1


def wanted(*arguments: str) -> list[str]:
    listed = json.loads(run("--dry-run", "--json", *arguments))
    return [item["path"] for item in listed["missing"]]


def test_inputs_of_some_roles_and_without_others(inputs: list[Input]) -> None:
    deb, wheel = (i.path for i in inputs)  # the wheel is to build and to run with
    assert wanted("--role", "build") == wanted("--role", "run") == [wheel]
    assert wanted("--role", "run", "--role", "root") == [deb, wheel]
    assert wanted("--role", "reference") == []
    # It is left out only when nothing else wants it.
    assert wanted("--without", "run") == [deb, wheel]
    assert wanted("--without", "run", "--without", "build") == [deb]
    assert wanted("--role", "run", "--without", "run") == []


def test_every_role_is_named_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(_ROLES) == {role.value for role in Role}
    said = CliRunner().invoke(command, ["--help"], prog_name="pinwheel fetch").stdout
    for role, what in _ROLES.items():
        assert f"  {role:<10}  {what}\n" in said


def test_a_reader_that_leaves_early_ends_it_as_it_ends_other_tools(
    inputs: list[Input], tmp_path: Path
) -> None:
    """`pinwheel fetch --dry-run | head -1`: 0 when all was written before, else 141."""
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "pinwheel.cli.main", "fetch", "--combo", COMBO, "--dry-run"],
        cwd=tmp_path,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_truncated_file_is_exit_21_offline_and_mended_online(inputs: list[Input]) -> None:
    store = Path(json.loads(run("--json"))["store"])
    stored = store / "sha256" / inputs[0].sha256[:2] / inputs[0].sha256
    stored.chmod(0o644)
    stored.write_bytes(b"cut")
    result = CliRunner().invoke(command, ["--combo", COMBO, "--offline"])
    assert isinstance(result.exception, HashMismatchError)
    assert result.exception.exit_code == 21
    assert [p.read_bytes() for p in (store / "rejected").iterdir()] == [b"cut"]
    assert not stored.exists()
    assert len(json.loads(run("--json"))["fetched"]) == 1
    assert stored.stat().st_size == inputs[0].size


def test_offline_names_the_command_to_run(inputs: list[Input]) -> None:
    with pytest.raises(MissingInputsError) as caught:
        run("--offline")
    assert f"pinwheel fetch --combo {COMBO} --toolkit wheels-13.0" in caught.value.next_step
    assert len(caught.value.evidence) == len(inputs) + 1


@pytest.mark.usefixtures("inputs")
def test_wrong_arguments() -> None:
    with pytest.raises(RecipeError, match="offers no toolkit"):
        run("--toolkit", "none")
    with pytest.raises(LockError):
        run("--toolkit", "other")
    with pytest.raises(UnknownComboError):
        CliRunner().invoke(command, ["--combo", "cu130-torch2.11-thing1.1"], catch_exceptions=False)

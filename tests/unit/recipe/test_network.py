"""Against the configured index and mirror: resolving for real, on little data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uv
from click.testing import CliRunner
from recipe_kit import FLAGSHIP, PROJECT, TOOLKIT

from pinwheel.errors import HashMismatchError, ResolveError
from pinwheel.http import Client
from pinwheel.recipe import openpgp
from pinwheel.recipe.data import keyring_bytes, root_data, toolkit_data
from pinwheel.recipe.debian_archive import read_suite
from pinwheel.recipe.export import file_url, pylock_text
from pinwheel.recipe.lock import Role
from pinwheel.recipe.lockfile import read_lock
from pinwheel.recipe.python import Target, resolve_wheels
from pinwheel.recipe.resolve import read_sdist
from pinwheel.settings import Settings, load_settings

pytestmark = pytest.mark.network

TARGET = Target("3.11", "2.36")


@pytest.fixture
def configured(tmp_path: Path) -> Settings:
    return replace(load_settings(PROJECT), cache=tmp_path / "cache")


def test_index_as_of_a_date(configured: Settings) -> None:
    day = datetime(2024, 10, 15, tzinfo=UTC)
    found = resolve_wheels(configured, TARGET, ["jinja2", "idna==3.11"], as_of=day, what="run")
    assert [(f.name, f.version) for f in found] == [
        ("idna", "3.11"),  # of 2025: what is pinned exactly is exempt
        ("jinja2", "3.1.4"),
        ("markupsafe", "3.0.1"),
    ]
    assert all(f.size and len(f.sha256) == 64 for f in found)


def test_a_package_without_wheels_is_no_solution(configured: Settings) -> None:
    with pytest.raises(ResolveError, match="cannot be resolved") as caught:
        resolve_wheels(configured, TARGET, ["pyairports"], as_of=None, what="run")
    assert any("pyairports" in line for line in caught.value.evidence)


def test_sdist_of_the_flagship(configured: Settings) -> None:
    with Client() as client:
        sdist = read_sdist(client, configured, "vllm", "0.6.3")
    assert sdist.epoch == 1728941239  # uploaded 2024-10-14T21:27:19Z
    assert "torch==2.4.0" in sdist.requires


def test_debian_suite_is_signed_and_has_the_toolkit(configured: Settings) -> None:
    with Client() as client:
        head = toolkit_data(TOOLKIT).toolkit
        suite = root_data().root.model_copy(
            update={"suite": head.suite, "components": ("non-free",)}
        )
        snapshot = read_suite(client, configured.debian, suite)
        assert "nvidia-cuda-toolkit" in snapshot.packages["non-free"]
        signed = client.get(f"{configured.debian[0]}/dists/{head.suite}/InRelease").content
    keyring = keyring_bytes(head.keyring)
    assert openpgp.verified_text(signed, keyring, name="InRelease").startswith("Origin: Debian")
    changed = signed.replace(b"Origin: Debian", b"Origin: Debiam")
    with pytest.raises(ResolveError, match="no valid signature"):
        openpgp.verified_text(changed, keyring, name="InRelease")


def test_what_the_release_does_not_sign_is_refused(configured: Settings, tmp_path: Path) -> None:
    root = root_data().root
    place = tmp_path / "dists" / root.suite
    index = place / "main/binary-amd64/Packages.xz"
    index.parent.mkdir(parents=True)
    index.write_bytes(b"other bytes")
    other = toolkit_data(TOOLKIT).toolkit.suite
    with Client() as client:
        for suite in (root.suite, other):
            page = client.get(f"{configured.debian[0]}/dists/{suite}/InRelease")
            (place / "InRelease").write_bytes(page.content)
            # The right release over a wrong index; then another suite, signed just as well.
            wanted = HashMismatchError if suite == root.suite else ResolveError
            with pytest.raises(wanted, match=index.name if suite == root.suite else other):
                read_suite(client, [tmp_path.as_uri()], root)


def test_pip_and_uv_read_the_export(configured: Settings, tmp_path: Path) -> None:
    lock = read_lock(PROJECT / "recipes" / FLAGSHIP / f"lock.{TOOLKIT}.toml")
    small = [i for i in lock.with_role(Role.RUN) if i.name in ("idna", "jinja2", "markupsafe")]
    with Client() as client:
        urls = {i.path: file_url(client, configured, i) for i in small}
    path = tmp_path / "pylock.run.toml"
    path.write_text(pylock_text(small, urls, "3.11"))
    venv = tmp_path / "venv"
    tool = uv.find_uv_bin()
    for args in (
        [tool, "venv", "--quiet", "--python", sys.executable, str(venv)],
        [tool, "pip", "install", "--quiet", "--python", str(venv / "bin/python"), "pip>=26.1"],
        [
            tool,
            "pip",
            "install",
            "--dry-run",
            "--python",
            str(venv / "bin/python"),
            "-r",
            str(path),
        ],
        [str(venv / "bin/python"), "-m", "pip", "install", "--dry-run", "-r", str(path)],
    ):
        result = subprocess.run(args, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    assert "idna-3.10" in result.stdout
    wrong = path.read_text().replace(small[0].sha256, "0" * 64)
    path.write_text(wrong)
    result = subprocess.run([*args], capture_output=True, text=True)
    assert result.returncode != 0
    assert "hash" in (result.stdout + result.stderr).lower()


@pytest.mark.slow
def test_locking_again_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pinwheel.cli.lock import command

    monkeypatch.chdir(PROJECT)
    args = ["--combo", FLAGSHIP, "--dry-run", "--json", "--cache", str(tmp_path)]
    first = CliRunner().invoke(command, args, catch_exceptions=False)
    assert '"state": "unchanged"' in first.output

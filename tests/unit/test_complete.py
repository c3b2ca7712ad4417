"""Completion as a shell asks for it: the real command, and bash's own function around it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
COMBO = "cu121-torch2.3-vllm0.6.3"
# Too slow to load while somebody types.
HEAVY = ("httpx", "rich", "pydantic", "tomlkit", "elftools", "debian", "auditwheel", "packaging")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    shutil.copy(PROJECT / "arch_matrix.toml", path)
    for name in (COMBO, "cu124-torch2.4-vllm0.6.4"):
        (path / "recipes" / name).mkdir(parents=True)
    recipe = (PROJECT / "recipes" / COMBO / "recipe.toml").read_text()
    (path / "recipes" / COMBO / "recipe.toml").write_text(recipe)
    other = '[toolkits]\ndefault = "wheels-12"\noffered = ["wheels-12", "debian-12"]\n'
    (path / "recipes" / "cu124-torch2.4-vllm0.6.4" / "recipe.toml").write_text(other)
    (path / "recipes" / "no-recipe").mkdir()
    wheels = path / "dist" / COMBO
    wheels.mkdir(parents=True)
    (wheels / "vllm-0.6.3+cu121.torch2.3-cp38-abi3-linux_x86_64.whl").touch()
    (wheels / "SHA256SUMS").touch()
    return path


def ask(project: Path, line: str, *options: str) -> subprocess.CompletedProcess[str]:
    """What is offered for the last word of ``line``; an empty one after a space."""
    words = line.split(" ")
    return subprocess.run(
        [sys.executable, *options, "-m", "pinwheel.cli.main"],
        cwd=project,
        env={
            **os.environ,
            "PINWHEEL_PROJECT": str(project),
            "_PINWHEEL_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def offered(project: Path, line: str) -> list[str]:
    said = ask(project, line)
    assert said.stderr == ""
    return said.stdout.split()


@pytest.mark.parametrize("command", ["build", "lock", "fetch", "verify"])
def test_combos_are_those_with_a_recipe(project: Path, command: str) -> None:
    line = f"pinwheel {command} --combo "
    assert offered(project, line) == [f"plain,{COMBO}", "plain,cu124-torch2.4-vllm0.6.4"]


def test_combos_that_begin_so(project: Path) -> None:
    assert offered(project, "pinwheel build --combo cu124") == ["plain,cu124-torch2.4-vllm0.6.4"]
    assert offered(project, "pinwheel build --combo rocm") == []


def test_combos_of_the_recipes_that_were_named(project: Path) -> None:
    place = project / "mine" / "cu130-torch2.9-vllm0.11"
    place.mkdir(parents=True)
    (place / "recipe.toml").touch()
    line = "pinwheel build --recipes mine --combo "
    assert offered(project, line) == ["plain,cu130-torch2.9-vllm0.11"]


def test_toolkits_are_the_combos(project: Path) -> None:
    line = "pinwheel build --combo cu124-torch2.4-vllm0.6.4 --toolkit "
    assert offered(project, line) == ["plain,debian-12", "plain,wheels-12"]
    assert offered(project, line + "w") == ["plain,wheels-12"]
    assert "plain,debian-12.4.131" in offered(project, "pinwheel lock --toolkit ")


@pytest.mark.parametrize("line", ["verify ", "abi ", "compare ", "compare a.whl ", "verify dist/"])
def test_wheels_are_those_that_were_built(project: Path, line: str) -> None:
    built = f"dist/{COMBO}/vllm-0.6.3+cu121.torch2.3-cp38-abi3-linux_x86_64.whl"
    assert offered(project, f"pinwheel {line}") == [f"plain,{built}"]


def test_wheels_beside_what_was_typed(project: Path) -> None:
    other = project / "other"
    other.mkdir()
    (other / "a-1-py3-none-any.whl").touch()
    (other / "b-1-py3-none-any.whl").touch()
    (other / "a.txt").touch()
    assert offered(project, "pinwheel verify other/a") == ["plain,other/a-1-py3-none-any.whl"]
    assert offered(project, f"pinwheel abi {other}/b") == [f"plain,{other}/b-1-py3-none-any.whl"]


def test_without_wheels_the_shell_offers_files(project: Path) -> None:
    assert offered(project, "pinwheel verify rec") == ["file,rec"]


@pytest.mark.parametrize("line", ["build --combo ", "build --toolkit ", "verify "])
def test_a_broken_configuration_is_no_message(project: Path, line: str) -> None:
    (project / "pinwheel.toml").write_text("not toml")
    assert not [item for item in offered(project, f"pinwheel {line}") if item.startswith("plain")]


def test_a_broken_recipe_offers_no_toolkit(project: Path) -> None:
    (project / "recipes" / COMBO / "recipe.toml").write_text("toolkits = 1")
    assert offered(project, f"pinwheel build --combo {COMBO} --toolkit ") == []


@pytest.mark.parametrize("line", ["build --combo ", f"build --combo {COMBO} --toolkit ", "verify "])
def test_nothing_slow_is_loaded(project: Path, line: str) -> None:
    said = ask(project, f"pinwheel {line}", "-X", "importtime")
    assert "plain," in said.stdout
    names = {name.partition(".")[0] for name in re.findall(r"\| +(\S+)$", said.stderr, re.M)}
    assert "click" in names
    assert not names.intersection(HEAVY)


def test_in_bash(project: Path, tmp_path: Path) -> None:
    """The line of docs/configuration.md, then what bash does when Tab is pressed."""
    if shutil.which("bash") is None:
        pytest.skip("no bash on this host")
    line = 'eval "$(_PINWHEEL_COMPLETE=bash_source pinwheel)"'
    assert line in (PROJECT / "docs/configuration.md").read_text()
    program = tmp_path / "bin" / "pinwheel"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pinwheel.cli.main "$@"\n')
    program.chmod(0o755)
    script = f"""{line}
complete -p pinwheel
COMP_WORDS=(pinwheel build --combo cu12); COMP_CWORD=3
_pinwheel_completion pinwheel; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    said = subprocess.run(
        ["bash", "-c", script],
        cwd=project,
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    first, *rest = said.stdout.splitlines()
    assert first.startswith("complete "), said.stderr
    assert rest == [COMBO, "cu124-torch2.4-vllm0.6.4"]

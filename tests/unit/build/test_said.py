"""Wording that the subcommands share: what is missing, what -q leaves, what --help names."""

from __future__ import annotations

import re

import pytest
from order_kit import COMBO, TOOLKIT, Project

NEEDS_COMBO = ("build", "lock", "fetch")


@pytest.mark.parametrize("command", NEEDS_COMBO)
def test_without_a_combo_the_combos_are_listed(project: Project, command: str) -> None:
    answer = project.run(command)
    assert answer.code == 2
    assert answer.err.count("--combo'") == 1
    assert f"There are: {COMBO}. Next: pinwheel {command} --combo {COMBO}\n" in answer.err
    assert COMBO in project.run(command, "--json").json()["error"]


@pytest.mark.parametrize("command", NEEDS_COMBO)
@pytest.mark.parametrize("toolkit", ["", "  "])
def test_an_empty_toolkit_is_not_the_default(project: Project, command: str, toolkit: str) -> None:
    answer = project.run(command, "--combo", COMBO, "--toolkit", toolkit)
    assert answer.code == 2
    assert "'--toolkit': it is empty" in answer.err


def test_a_quiet_check_keeps_its_verdict_and_drops_its_table(project: Project) -> None:
    loud = project.run("lock", "--combo", COMBO, "--check")
    quiet = project.run("lock", "--combo", COMBO, "--check", "-q")
    assert loud.code == quiet.code == 0
    assert re.fullmatch(rf"{re.escape(str(project.lock))}: fresh, \d+ files, [^\n]+\n", quiet.out)
    assert quiet.err == ""
    title, header, *_, last = loud.out.splitlines()
    assert (title, header) == (f"# {COMBO}, {TOOLKIT}", "role\tfiles\tsize")
    assert f"{last}\n" == quiet.out


def test_a_quiet_fetch_dry_run_keeps_its_verdict(project: Project) -> None:
    loud = project.run("fetch", "--combo", COMBO, "--dry-run")
    quiet = project.run("fetch", "--combo", COMBO, "--dry-run", "-q")
    assert re.fullmatch(r"\d+ files, .* to download \(.*\)\n", quiet.out)
    assert loud.out.splitlines()[-1] == quiet.out.rstrip()
    assert len(loud.out.splitlines()) > 100


@pytest.mark.parametrize("command", [*NEEDS_COMBO, "clean", "matrix"])
def test_help_has_examples_and_exit_codes(project: Project, command: str) -> None:
    said = project.run(command, "--help").out
    examples = said.partition("Examples:\n")[2].partition("Exit codes:")
    lines = [line.split("  ")[0] for line in map(str.strip, examples[0].splitlines()) if line]
    assert len(lines) >= 3
    assert all(line.startswith(f"pinwheel {command}") for line in lines if line)
    assert re.match(r" 0 ", examples[2])
    assert "docs/exit-codes.md" in examples[2]
    assert said.replace("\n", "").isprintable()
    assert max(map(len, said.splitlines())) <= 100

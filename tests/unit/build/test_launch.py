from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from wheelkit import needs_gcc

LAUNCH = Path(__file__).parents[3] / "src/pinwheel/build/inside/launch.py"

pytestmark = needs_gcc


class Tree:
    """A source tree and the place where launchers write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = path / "src"
        (self.source / "csrc").mkdir(parents=True)
        self.logs = path / "logs/sources"

    def write(self, name: str, text: str) -> Path:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def launch(self, *command: str, cache: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-IS", str(LAUNCH), *command],
            cwd=self.source,
            env={
                "PATH": "/usr/bin:/bin",
                "PINWHEEL_EVENTS": str(self.path / "events.jsonl"),
                "PINWHEEL_SOURCE_LOGS": str(self.logs),
                "PINWHEEL_SOURCE_ROOT": str(self.source),
                "PINWHEEL_CACHE_PROGRAM": cache,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def events(self) -> list[dict[str, Any]]:
        lines = (self.path / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_source_is_compiled_and_told_of(tree: Tree) -> None:
    source = tree.write("csrc/a.c", "#warning look here\nint a(void) { return 1; }\n")
    step = "CMakeFiles/_C.dir/csrc/a.c.o"
    (tree.source / step).parent.mkdir(parents=True)
    done = tree.launch("gcc", "-O0", "-o", step, "-c", str(source))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tree.source / step).read_bytes().startswith(b"\x7fELF")
    started, ended = tree.events()
    log = str(tree.logs / "_C.dir__csrc__a.c.o.log")
    common = {"source": "csrc/a.c", "step": step, "log": log}
    assert started == {"event": "start", "time": started["time"], **common}
    assert {**common, "event": "end", "code": 0}.items() <= ended.items()
    assert ended["time"] >= started["time"]
    assert ended["seconds"] >= 0
    text = Path(log).read_text()
    assert text.startswith(f"command: gcc -O0 -o {step} -c {source}\n\n")
    assert "look here" in text


def test_a_failing_source_shows_its_log_and_keeps_its_status(tree: Tree) -> None:
    source = tree.write("csrc/b.c", "int b(void) { return nothing; }\n")
    done = tree.launch("gcc", "-c", str(source), "-o", "b.o")
    assert done.returncode == 1
    assert "nothing" in done.stdout
    assert done.stdout.startswith("command: gcc")
    assert tree.events()[-1]["code"] == 1


@pytest.mark.parametrize(("sent", "seen", "status"), [("KILL", -9, 137), ("SEGV", -11, 139)])
def test_a_compiler_ended_by_a_signal(tree: Tree, sent: str, seen: int, status: int) -> None:
    compiler = script(tree.path / "cc", f"kill -{sent} $$")
    done = tree.launch(compiler, "-c", "csrc/c.cu", "-o", "c.o")
    assert done.returncode == status
    assert tree.events()[-1]["code"] == seen


def test_nvcc_says_what_killed_its_compiler(tree: Tree) -> None:
    said = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"
    compiler = script(tree.path / "nvcc", f'echo "{said}" >&2; exit 9')
    done = tree.launch(compiler, "-x", "cu", "-c", f"{tree.source}/csrc/d.cu", "-o", "d.o")
    assert done.returncode == 9
    assert said in done.stdout
    assert tree.events()[-1]["source"] == "csrc/d.cu"


def test_the_cache_program_runs_the_compiler(tree: Tree) -> None:
    source = tree.write("csrc/e.c", "int e;\n")
    cache = script(tree.path / "cache", f'echo "$@" > {tree.path}/asked; exec "$@"')
    assert tree.launch("gcc", "-c", str(source), "-o", "e.o", cache=cache).returncode == 0
    assert (tree.path / "asked").read_text() == f"gcc -c {source} -o e.o\n"
    # The log names what a person would run by hand.
    assert (tree.logs / "e.o.log").read_text().startswith("command: gcc -c")


def test_a_command_without_a_source_is_just_run(tree: Tree) -> None:
    done = tree.launch("gcc", "--version", cache="/nonexistent")
    assert done.returncode == 0
    assert "gcc" in done.stdout
    assert not (tree.path / "events.jsonl").exists()


def test_one_source_for_two_libraries_is_two_steps(tree: Tree) -> None:
    source = tree.write("csrc/f.c", "int f;\n")
    for library in ("_C", "_moe_C"):
        step = f"CMakeFiles/{library}.dir/csrc/f.c.o"
        (tree.source / step).parent.mkdir(parents=True)
        assert tree.launch("gcc", "-c", str(source), "-o", step).returncode == 0
    assert len({e["log"] for e in tree.events()}) == 2
    assert len(list(tree.logs.iterdir())) == 2


@pytest.mark.parametrize("name", ["with space.c", "quote'd.c", "caf\u00e9.cpp", "-dash.c"])
def test_any_name_is_a_name(tree: Tree, name: str) -> None:
    source = tree.write(f"csrc/{name}", "int g;\n")
    assert tree.launch("gcc", "-c", str(source), "-o", "g.o").returncode == 0
    assert tree.events()[-1]["source"] == f"csrc/{name}"


def test_launchers_at_the_same_time_do_not_mix_their_lines(tree: Tree) -> None:
    compiler = script(tree.path / "cc", "exit 0")

    def one(number: int) -> int:
        name = f"{'long/' * 100}{number}.cu"
        return tree.launch(compiler, "-c", name, "-o", f"{number}.o").returncode

    with ThreadPoolExecutor(6) as pool:
        assert {*pool.map(one, range(18))} == {0}
    events = tree.events()  # every line is JSON
    assert len(events) == 36
    assert {e["step"] for e in events if e["event"] == "end"} == {f"{n}.o" for n in range(18)}

from __future__ import annotations

import json
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.build.costs import Costs
from pinwheel.build.progress import Events, Follower, compile_steps, costs_of, is_probe
from pinwheel.console import Console

NINJA = """\
build CMakeFiles/_C.dir/csrc/a.cu.o: CUDA_COMPILER___C_unscanned_Release /build/src/csrc/a.cu
build CMakeFiles/_C.dir/csrc/b.cpp.o: CXX_COMPILER___C_unscanned_Release /build/src/csrc/b.cpp
build CMakeFiles/m.dir/c.c.o: C_COMPILER__m_unscanned_Release /build/src/c.c
build _C.abi3.so: CXX_MODULE_LIBRARY_LINKER___C_Release CMakeFiles/_C.dir/csrc/a.cu.o
build all: phony _C
"""
A, B, C = (
    "CMakeFiles/_C.dir/csrc/a.cu.o",
    "CMakeFiles/_C.dir/csrc/b.cpp.o",
    "CMakeFiles/m.dir/c.c.o",
)
SOURCES = {A: "csrc/a.cu", B: "csrc/b.cpp", C: "c.c"}


def start(step: str, time: float = 1.0, source: str = "") -> str:
    source = source or SOURCES[step]
    event = {"event": "start", "time": time, "step": step, "source": source, "log": f"/logs/{step}"}
    return json.dumps(event) + "\n"


def end(step: str, code: int = 0, seconds: float = 60.0, source: str = "") -> str:
    event = json.loads(start(step, source=source))
    return json.dumps({**event, "event": "end", "code": code, "seconds": seconds}) + "\n"


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path / "events.jsonl")


def write(events: Events, text: str) -> None:
    with events.path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_no_file_yet_is_nothing_yet(events: Events) -> None:
    assert events.poll() == []


def test_each_end_is_told_once(events: Events) -> None:
    write(events, start(A) + start(B, 0.5))
    assert events.poll() == []
    assert [r.step for r in events.running()] == [B, A]  # the longest first
    write(events, end(A))
    assert [(r.step, r.code, r.seconds) for r in events.poll()] == [(A, 0, 60.0)]
    assert events.poll() == []
    assert [r.step for r in events.running()] == [B]


def test_a_half_written_line_waits(events: Events) -> None:
    line = end(A)
    write(events, start(A) + line[:20])
    assert events.poll() == []
    write(events, line[20:])
    assert [r.step for r in events.poll()] == [A]


@pytest.mark.parametrize(
    "line",
    [
        "\n",
        "not json\n",
        "[1]\n",
        "null\n",
        "3\n",
        '{"event": "end"}\n',
        '{"event": "end", "step": "never started", "seconds": 1, "code": 0}\n',
        '{"event": "start", "step": "x", "source": "y", "log": "z", "time": null}\n',
        end(A).replace("60.0", '"long"'),
        end(A).replace('"code": 0', '"code": 1e999'),
        end(A).replace('"code": 0', '"code": NaN'),
    ],
)
def test_a_damaged_line_is_passed_over(events: Events, line: str) -> None:
    write(events, start(A) + line + start(B) + end(B))
    assert [r.step for r in events.poll()] == [B]


@given(st.lists(st.binary(max_size=40), max_size=8))
@settings(deadline=None, max_examples=50)
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("e") / "events.jsonl"
    events = Events(path)
    path.write_bytes(b"\n".join(lines) + b"\n" + (start(A) + end(A)).encode())
    assert [r.step for r in events.poll()][-1:] == [A]


def test_what_failed_and_what_did_not(events: Events) -> None:
    probe = "CMakeFiles/cmTC_1.dir/src.c.o"
    write(
        events,
        start(probe, source="build/temp/CMakeFiles/CMakeScratch/src.c")
        + end(probe, 1, source="build/temp/CMakeFiles/CMakeScratch/src.c")
        + start(A)
        + start(B)
        + start(C)
        + end(B, -9)
        + end(C)
        + end(A, 2),
    )
    events.poll()
    assert [r.step for r in events.failed()] == [A, B]
    assert costs_of(events.runs) == {C: 60.0}


def test_a_resumed_build_starts_with_what_was_finished(events: Events) -> None:
    write(events, start(A) + end(A) + start(B) + end(B, 1) + start(C))
    events.poll()
    events.forget_unfinished()
    assert list(events.runs) == [A]
    assert events.failed() == []  # what failed yesterday is not today's failure
    write(events, start(C, 9.0) + end(C, 1))
    events.poll()
    assert [r.step for r in events.failed()] == [C]


def test_steps_are_read_from_ninjas_file() -> None:
    assert compile_steps(NINJA) == [A, B, C]
    assert compile_steps("") == []


@pytest.mark.parametrize(
    ("source", "probe"),
    [
        ("csrc/a.cu", False),
        ("a.cpp", False),
        ("../opt/env/share/cmake/Modules/CMakeCXXCompilerABI.cpp", True),
        ("build/temp/CMakeFiles/3.29/CompilerIdCUDA/CMakeCUDACompilerId.cu", True),
    ],
)
def test_cmakes_questions_are_no_sources(source: str, probe: bool) -> None:
    assert is_probe(source) is probe


class Build:
    """A working directory whose launchers and CMake are this test."""

    def __init__(self, path: Path) -> None:
        self.logs = path / "logs"
        self.logs.mkdir()
        self.ninja = path / "src/build/temp.linux/build.ninja"
        self.said = StringIO()
        self.stack = ExitStack()

    def follow(self, **options: Any) -> Follower:
        console = Console(err=self.said, interval=0)
        return Follower(self.logs, console, self.stack, **{"costs": Costs(), "jobs": 2, **options})

    def configure(self) -> None:
        self.ninja.parent.mkdir(parents=True)
        self.ninja.write_text(NINJA)

    def write(self, text: str) -> None:
        with (self.logs / "events.jsonl").open("a") as file:
            file.write(text)

    def lines(self) -> list[str]:
        said = self.said.getvalue().splitlines()
        self.said.seek(0)
        self.said.truncate()
        return said


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def test_progress_in_plain_lines(build: Build) -> None:
    with build.stack:
        follower = build.follow()
        follower.tick()
        assert build.lines() == []  # CMake has written nothing yet
        build.configure()
        build.write(start(A) + start(B))
        follower.tick()
        assert any("0 of 3 sources" in x and "a.cu, b.cpp" in x for x in build.lines())
        build.write(end(A, seconds=75.2) + start(C) + end(B, 1, seconds=2))
        follower.tick()
        said = build.lines()
        assert "compiled csrc/a.cu in 1 min 15 s" in said
        assert "FAILED (exit 1) csrc/b.cpp in 2 s" in said
        assert any("2 of 3 sources" in x for x in said)
        assert not any("\x1b" in x for x in said)


def test_a_resumed_build_goes_on_counting(build: Build) -> None:
    build.configure()
    build.write(start(A) + end(A) + start(B))
    with build.stack:
        follower = build.follow()
        follower.tick()
        assert any("1 of 3 sources" in x for x in build.lines())
        build.write(start(B) + end(B))
        follower.tick()
        assert any("2 of 3 sources" in x for x in build.lines())


def test_the_last_builds_times_make_the_estimate(build: Build) -> None:
    build.configure()
    with build.stack:
        costs = Costs(seconds={A: 600.0, B: 60.0, "other": 60.0})
        follower = build.follow(costs=costs, clock=lambda: 121.0)
        build.write(start(A, 1.0) + start(B) + end(B))
        follower.tick()
        # a.cu has 480 of its 600 s left; c.c was never timed
        first, *_, line = [x for x in build.lines() if not x.startswith("compiled")]
        assert first == "estimate: by what each source took before; " + (
            "sources that were never timed are not counted"
        )
        # One estimate and one pair of parentheses: none is made of the count besides.
        assert line == "compiling: 1 of 3 sources, 33%, at least 8 min left (a.cu)"


def test_a_first_build_says_that_it_only_guesses(build: Build) -> None:
    build.configure()
    with build.stack:
        follower = build.follow(clock=lambda: 301.0)
        build.write(start(A, 1.0))
        follower.tick()
        assert not any("min" in x for x in build.lines())
        build.write(start(B, 1.0) + end(B, seconds=100.0))
        follower.tick()
        # a.cu is at 300 s, b.cpp took 100: 200 s each, and c.c is all that is known to be left
        said = build.lines()
        assert any(x.endswith(", perhaps 3 min left (a.cu)") for x in said)
        assert [x for x in said if x.startswith("estimate: by this build's pace alone")]
        follower.tick()
        assert not any("estimate" in x for x in build.lines())  # said once


def test_after_a_build_that_was_killed_nothing_is_guessed(build: Build) -> None:
    build.configure()
    build.write(start(B) + end(B, seconds=60.0) + start(A))
    with build.stack:
        build.follow().tick()
        said = build.lines()
    assert said[0] == "estimate: none: no source that is left was timed in an earlier build"
    assert any("1 of 3 sources" in x for x in said)
    assert not any(" left" in x for x in said[1:])

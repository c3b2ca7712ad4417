from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwheel import console as console_module
from pinwheel.console import BYTES, Console, counted, emit_json, human_seconds, progress_line


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(console_module.time, "monotonic", made)
    return made


def streams(**options: object) -> tuple[Console, StringIO, StringIO]:
    out, err = StringIO(), StringIO()
    return Console(out=out, err=err, **options), out, err  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("done", "total", "unit", "elapsed", "expected"),
    [
        (0, 10, "sources", 0, "x: 0 of 10 sources, 0%"),
        (5, 10, "sources", 50, "x: 5 of 10 sources, 50%, about 50 s left"),
        (10, 10, "sources", 100, "x: 10 of 10 sources, 100%"),
        (11, 10, "sources", 100, "x: 10 of 10 sources, 100%"),
        (1.5e9, 3e9, BYTES, 100, "x: 1.5 GB of 3.0 GB, 50%, 15.0 MB/s, about 1 min 40 s left"),
        (999, 0, BYTES, 0, "x: 999 B"),
        (1_000_000, 0, BYTES, 10, "x: 1.0 MB, 100.0 kB/s"),
        (0, 0, "steps", 75, "x: 1 min 15 s"),
        (3, 0, "steps", 75, "x: 3 steps"),
    ],
)
def test_progress_line(done: float, total: float, unit: str, elapsed: float, expected: str) -> None:
    assert progress_line("x", done, total, unit, elapsed) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7500, "2 h 05 min")],
)
def test_human_seconds(seconds: float, expected: str) -> None:
    assert human_seconds(seconds) == expected


def test_results_on_stdout_the_rest_on_stderr() -> None:
    console, out, err = streams()
    console.say("working")
    console.warn("careful")
    console.detail("hidden")
    console.result("answer")
    console.emit_json({"b": 1, "a": "ü"})
    assert err.getvalue() == "working\nwarning: careful\n"
    assert out.getvalue() == 'answer\n{\n  "a": "ü",\n  "b": 1\n}\n'


def test_a_table_off_a_terminal_is_lines_of_cells_between_tabs() -> None:
    console, out, _ = streams()
    rows = [["a[bold]", 1, ""], ["x" * 300, 22, "c\td\ne"]]
    console.table("Title", ["name", "size", "why"], rows, right=["size"])
    assert out.getvalue().splitlines() == [
        "# Title",
        "name\tsize\twhy",
        "a[bold]\t1\t",
        f"{'x' * 300}\t22\tc\\td\\ne",
    ]
    console, out, _ = streams()
    console.table("", ["only"], [])
    assert out.getvalue() == "only\n"


cells = st.text(max_size=12)


@given(st.lists(st.tuples(cells, cells, cells), max_size=4), cells)
def test_any_table_has_as_many_lines_and_cells_as_it_says(
    rows: list[tuple[str, str, str]], title: str
) -> None:
    console, out, _ = streams()
    console.table(title, ("a", "b", "c"), rows)
    lines = out.getvalue().split("\n")
    assert len(lines) == bool(title) + 1 + len(rows) + 1
    assert all(line.count("\t") == 2 for line in lines[bool(title) : -1])
    assert all(c.isprintable() or c in "\t\n" for c in out.getvalue())


def test_quiet_and_verbose() -> None:
    console, out, err = streams(quiet=True)
    console.say("working")
    with console.progress(10, "sources", "compiling") as progress:
        progress.advance(10)
    console.warn("careful")
    console.result("answer")
    assert (out.getvalue(), err.getvalue()) == ("answer\n", "warning: careful\n")
    console, _, err = streams(verbose=1)
    console.detail("shown")
    assert err.getvalue() == "shown\n"


def test_plain_lines_at_intervals(clock: Clock) -> None:
    console, out, err = streams(interval=5)
    with console.progress(100, "sources", "compiling") as progress:
        for second in range(1, 21):
            clock.now = second
            progress.describe(f"s{second}.cu")
            progress.advance(2)
        clock.now = 26
        progress.tick()
    lines = err.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0] == "compiling: 8 of 100 sources, 8%, about 58 s left (s5.cu)"
    assert lines[-1].startswith("compiling: 40 of 100 sources, 40%")
    assert "\x1b" not in err.getvalue()
    assert "\r" not in err.getvalue()
    assert out.getvalue() == ""


def test_an_estimate_of_who_knows_better_replaces_that_of_the_rate(clock: Clock) -> None:
    console, _, err = streams(interval=5)
    with console.progress(10, "sources", "compiling") as progress:
        clock.now = 10
        progress.describe("a.cu, b.cu", "about 8 min left")
        progress.advance(1)
        clock.now = 15
        progress.advance(1)
    assert err.getvalue().splitlines() == [
        "compiling: 0 of 10 sources, 0%, about 8 min left (a.cu, b.cu)",
        "compiling: 2 of 10 sources, 20%, about 8 min left (a.cu, b.cu)",
        "compiling: 2 of 10 sources, 20%, about 1 min 00 s left",
    ]


def test_the_last_line_is_said_once(clock: Clock) -> None:
    console, _, err = streams(interval=5)
    with console.progress(0, "steps", "proof") as progress:
        clock.now = 5
        progress.tick()
    assert err.getvalue() == "proof: 5 s\n"


def test_skipped_work_does_not_count_as_speed(clock: Clock) -> None:
    console, _, err = streams(interval=5)
    with console.progress(1000, BYTES, "fetching") as progress:
        progress.skip(800)
        clock.now = 10
        progress.advance(100)
    assert err.getvalue().splitlines()[0] == (
        "fetching: 900 B of 1.0 kB, 90%, 10 B/s, about 10 s left"
    )


def test_void_work_is_taken_back(clock: Clock) -> None:
    console, _, err = streams(interval=5)
    with console.progress(100, BYTES, "fetching") as progress:
        progress.skip(50)
        progress.advance(-50)
        clock.now = 10
        progress.advance(20)
    assert err.getvalue().splitlines()[0].startswith("fetching: 20 B of 100 B, 20%")


def test_failed_work_has_no_line_of_success() -> None:
    console, _, err = streams()
    with pytest.raises(ValueError, match="x"), console.progress(10, "sources", "compiling"):
        raise ValueError("x")
    assert err.getvalue() == ""


def test_a_step_that_counts_nothing_shows_its_time(clock: Clock) -> None:
    console, _, err = streams(interval=5)
    with console.progress(0, "steps", "proof") as progress:
        for second in range(4):
            clock.now = second
            progress.tick()
    assert err.getvalue() == ""  # over before it was worth a line
    with console.progress(0, "steps", "proof") as progress:
        for second in range(4, 16):
            clock.now = second
            progress.tick()
    assert err.getvalue() == "proof: 5 s\nproof: 10 s\nproof: 12 s\n"


@pytest.mark.parametrize(("count", "text"), [(0, "0 inputs"), (1, "1 input"), (12, "12 inputs")])
def test_counted(count: int, text: str) -> None:
    assert counted(count, "input") == text


SCRIPT = """
import time
from pinwheel.console import Console
console = Console()
with console.progress(3, "sources", "compiling") as progress:
    progress.skip(1)
    for n in range(2):
        progress.describe(f"[a{n}].cu")
        progress.advance()
        time.sleep(0.15)
    console.say("a line in between")
with console.progress(0, "steps", "proof"):
    time.sleep(0.15)
console.warn("careful")
"""


NARROW = """
import time
from pinwheel.console import Console
console = Console()
name = "nvidia_cublas_cu12-12.1.3.1-py3-none-manylinux1_x86_64_and_a_good_deal_longer.whl"
with console.progress(35, "sources", "compiling") as progress:
    progress.skip(5)
    progress.describe(f"attention_kernels.cu, {name}", "about 1 h 20 min left")
    time.sleep(0.25)
with console.progress(5_300_000_000, "bytes", "fetching 276 inputs") as progress:
    progress.describe(name)
    for _ in range(4):
        progress.advance(138_000_000)
        time.sleep(0.15)
"""
TABLE = """
from pinwheel.console import Console
Console().table("Title", ("name", "size"), [("a[bold]", 1)], right=("size",))
"""


def on_terminal(script: str = SCRIPT, **env: str) -> str:
    """What a real terminal gets to see."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **env},
    )
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 65536):
            seen += chunk
    except OSError:  # Linux reports the closed other end as an error
        pass
    os.close(leader)
    assert process.wait() == 0
    return seen.decode()


def test_live_bar_on_a_terminal() -> None:
    seen = on_terminal()
    assert re.search(r"compiling .* 3/3 sources 100% 0:00:00 .* \[a1\]\.cu", seen)
    assert "proof" in seen
    assert "steps" not in seen
    assert "a line in between" in seen
    assert "\x1b[33m" in seen


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_long_file_name_is_what_a_narrow_terminal_cuts(width: int) -> None:
    seen = on_terminal(NARROW, COLUMNS=str(width), NO_COLOR="1")
    frames = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part) for part in re.split(r"[\r\n]+", seen)]
    compiling = [frame for frame in frames if "5/35 sources 14%" in frame]
    assert compiling
    assert all(re.search(r"0:00:0\d about 1 h 20 min left atte.*…", f) for f in compiling)
    fetching = [f for f in frames if re.search(r"\d+\.\dMB/5\.3GB \d+% \d+\.\d [MG]B/s about ", f)]
    assert any(re.search(r" left nvid.*…", frame) for frame in fetching)
    assert max(map(len, frames)) <= width


def test_a_table_on_a_terminal_has_a_frame() -> None:
    seen = on_terminal(TABLE)
    assert re.search("│ a\\[bold\\] │ +1 │", seen)
    assert "\x1b[3m" in seen
    assert "\x1b" not in on_terminal(TABLE, NO_COLOR="1")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color(env: dict[str, str]) -> None:
    seen = on_terminal(**env)
    assert "\x1b[33m" not in seen
    assert "careful" in seen
    if "TERM" in env:
        assert "\x1b" not in seen


def test_emit_json_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json([1, {"z": None}])
    assert json.loads(capsys.readouterr().out) == [1, {"z": None}]


def test_nothing_drives_the_terminal() -> None:
    console, out, err = streams(verbose=1)
    console.say("a\x1b[2J\nb\tc")
    console.detail("\x9b31m")
    console.warn("\x07")
    console.result("\x1b]0;title\x07")
    console.table("", ("x",), [("\x1b[31mred",)])
    with console.progress(1, "files", "x") as progress:
        progress.describe("\x1b[A")
    said = out.getvalue() + err.getvalue()
    assert not [c for c in said if not c.isprintable() and c not in "\n\t"]
    assert "a\\x1b[2J\nb\tc\n" in said


def test_json_is_safe_and_whole_on_any_stream() -> None:
    out = StringIO()
    data = {"x": "\x1b\x7f\x9b\u202e\udcff\u00e9"}
    emit_json(data, out)
    assert json.loads(out.getvalue()) == data
    assert out.getvalue().replace("\n", "").isprintable()
    narrow = TextIOWrapper(BytesIO(), encoding="ascii")
    emit_json(data, narrow)
    assert json.loads(narrow.buffer.getvalue()) == data  # type: ignore[attr-defined]

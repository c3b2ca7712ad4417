from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pinwheel import interrupts
from pinwheel.process import TAIL_BYTES, run

PYTHON = sys.executable


def test_a_program_ends_and_tells() -> None:
    result = run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert result.returncode == 3
    assert result.output.split() == ["out", "err"]
    assert result.seconds >= 0
    assert result.cpu_seconds >= 0


def test_a_signal_is_a_negative_status() -> None:
    assert run(["sh", "-c", "kill -9 $$"]).returncode == -signal.SIGKILL


def test_the_environment_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_X", "1")
    assert run(["/usr/bin/env"], env={"A": "b"}).output == "A=b\n"
    assert "LD_PRELOAD_X=1" in run(["/usr/bin/env"]).output


def test_working_directory_umask_and_standard_input(tmp_path: Path) -> None:
    script = "pwd; umask; cat"
    result = run(["sh", "-c", script], cwd=tmp_path, umask=0o027, stdin=b"in\n")
    assert result.output.split() == [str(tmp_path), "0027", "in"]
    assert run(["cat"]).output == ""  # nothing to read, and no waiting for a terminal


def test_large_standard_input_and_output_do_not_block() -> None:
    data = b"x" * (1 << 20)
    ticks: list[int] = []
    script = (
        "import sys,time; time.sleep(1.2); d=sys.stdin.buffer.read(); print(len(d), 'y'*(1<<18))"
    )
    result = run([PYTHON, "-c", script], stdin=data, tick=lambda: ticks.append(1))
    assert result.output.startswith(f"{1 << 20} y")
    assert len(ticks) >= 2


def test_no_shell_comes_between(tmp_path: Path) -> None:
    assert run(["printf", "%s", "$(touch x); a b"], cwd=tmp_path).output == "$(touch x); a b"
    assert not list(tmp_path.iterdir())


def test_a_log_grows_and_its_end_is_the_output(tmp_path: Path) -> None:
    log = tmp_path / "new/build.log"
    run(["echo", "before"], log=log)
    result = run([PYTHON, "-c", "print('x' * 50_000); print('the end')"], log=log)
    assert result.output.endswith("the end\n")
    assert len(result.output) == TAIL_BYTES
    assert log.read_text().startswith("before\nxxx")
    assert run(["true"], log=log).output == ""  # what others wrote is not ours


def test_bytes_that_are_no_text_are_shown_somehow() -> None:
    assert run(["printf", r"\377ok"]).output == "\ufffdok"


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        run(["/nonexistent/program"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interrupt_ends_the_program_and_its_children(tmp_path: Path, stubborn: bool) -> None:
    trap = "trap '' TERM; " if stubborn else ""
    script = f"{trap}sleep 600 & echo $$ $! > {tmp_path}/pids; wait; wait"

    def interrupt() -> None:
        if (tmp_path / "pids").exists():
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", script], tick=interrupt)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
    assert time.monotonic() - started < 30


def test_what_a_program_leaves_behind_when_it_ends_is_ended_too(tmp_path: Path) -> None:
    """The leader obeys SIGTERM; what it started in its group does not."""
    child = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 1; done"

    def interrupt() -> None:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", 'sh -c "$1" & wait', "sh", child], tick=interrupt)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def test_a_signal_in_the_moment_of_starting_ends_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def signalled(*args: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(real(*args, **options))  # type: ignore[call-overload]
        signal.raise_signal(signal.SIGTERM)  # before the caller has been told of it
        return started[0]

    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(interrupts, "_last", -interrupts.ENDING)
    monkeypatch.setattr(subprocess, "Popen", signalled)
    interrupts.listen()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(["sleep", "600"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_the_terminals_interrupt_reaches_us_and_not_the_program(tmp_path: Path) -> None:
    """It is in a process group of its own: we decide in which order things end."""
    code = (
        "import os, sys; from pinwheel.process import run; "
        "print(os.getpgrp(), run(['sh', '-c', 'ps -o pgid= -p $$']).output)"
    )
    said = subprocess.run(
        [PYTHON, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    if len(said) != 2:
        pytest.skip("no ps on this host")
    assert said[0] != said[1]
    assert os.getpgrp() != int(said[1])

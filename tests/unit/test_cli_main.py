from __future__ import annotations

import contextlib
import itertools
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pinwheel import interrupts
from pinwheel.cli import main as module
from pinwheel.cli.main import COMMANDS, cli, main, printable, show_error
from pinwheel.errors import RecipeError, UnknownComboError

PROJECT = Path(__file__).parents[2]
PINWHEEL = [sys.executable, "-m", "pinwheel.cli.main"]
# Too slow to load for a help text, or needed by some commands only.
HEAVY = ("httpx", "rich", "pydantic", "tomlkit", "elftools", "debian", "auditwheel", "packaging")


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """``main`` changes them for its process, which here is pytest's."""
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    shutil.copy(PROJECT / "arch_matrix.toml", path)
    for name in ("recipes", "patches"):
        shutil.copytree(PROJECT / name, path / name)
    return path


def pinwheel(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PINWHEEL, *arguments],
        cwd=cwd,
        env={**os.environ, "PINWHEEL_CACHE": str((cwd or Path()) / "cache"), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def here(arguments: list[str]) -> int:
    """The exit code of ``main`` in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_help_loads_no_library() -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pinwheel.cli.main", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", said.stderr)
    names = {name.partition(".")[0] for _, name in rows}
    assert not names.intersection(HEAVY)
    ours = {name for _, name in rows if name.startswith("pinwheel.")}
    own = {"pinwheel.cli", "pinwheel.cli.main", "pinwheel.errors", "pinwheel.interrupts"}
    assert ours <= own
    for name, summary in COMMANDS.items():
        assert name in said.stdout
        assert summary.split()[0] in said.stdout


def test_every_command_is_there_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*COMMANDS} == {
        path.stem
        for path in (PROJECT / "src/pinwheel/cli").glob("*.py")
        if path.stem not in ("__init__", "main", "complete")
    }
    for name in COMMANDS:
        assert here([name, "--help"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"Usage: pinwheel {name}")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert here(["--version"]) == 0
    assert re.fullmatch(r"pinwheel \d+\.\S+\n", capsys.readouterr().out)


def test_without_arguments_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert here([]) == 2
    said = capsys.readouterr()
    assert "Start here:" in said.out + said.err


@pytest.mark.parametrize(
    ("typed", "near"), [("biuld", "build"), ("locks", "lock"), ("Matrix", "matrix"), ("x", "")]
)
def test_a_word_that_is_no_command(
    typed: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here([typed]) == 2
    said = capsys.readouterr().err
    assert f"No such command '{typed}'" in said
    assert (f"Did you mean {near}?" in said) is bool(near)


def test_wrong_options_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert here(["build"]) == 2
    assert "--combo" in capsys.readouterr().err
    assert here(["build", "--combo", "x", "--jobs", "0"]) == 2
    assert "--jobs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["build", "--json"], ["matrix", "nothing", "--json"], ["--json"]]
)
def test_wrong_usage_is_json_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert here(arguments) == 2
    error = json.loads(capsys.readouterr().out)
    assert (error["rule"], error["exit_code"], error["evidence"]) == ("usage", 2, [])
    assert error["error"]
    assert error["next"]


def test_an_unknown_combo_offers_the_nearest(project: Path) -> None:
    said = pinwheel("build", "--combo", "cu121-torch2.3-vllm0.6.4", "--json", cwd=project)
    assert said.returncode == UnknownComboError.exit_code == 11
    assert "cu121-torch2.3-vllm0.6.3" in said.stderr
    error = json.loads(said.stdout)
    assert error["rule"] == "unknown-combo"
    assert error["exit_code"] == 11
    assert said.stderr.startswith("error: 'cu121-torch2.3-vllm0.6.4'")
    assert "\nnext: " in said.stderr
    assert "\x1b" not in said.stderr
    assert not (project / "cache").exists()
    assert not (project / "dist").exists()


def test_evidence_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    error = RecipeError(
        "bad \x1b[2J\nname",
        evidence=["\x07bell", "tab\there", "\u202eright to left", "\udcffbyte", "caf\u00e9"],
        next_step="Look\r",
    )
    show_error(error, as_json=False)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        r"error: bad \x1b[2J\nname",
        "  rule: recipe-malformed (exit code 12)",
        r"  \x07bell",
        "  tab\there",
        r"  \u202eright to left",
        r"  \udcffbyte",
        "  caf\u00e9",
        "next: Look",
    ]
    assert printable("a\u2028b\x9b") == r"a\u2028b\x9b"


def on_terminal(code: str, **env: str) -> str:
    """What a person sees of ``code`` on a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=slave,
        stderr=slave,
        env={**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", **env},
    )
    os.close(slave)
    seen = b""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(master, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    process.wait(timeout=30)
    os.close(master)
    return seen.decode()


SHOW = """
from pinwheel.cli.main import show_error
from pinwheel.errors import RecipeError
show_error(RecipeError("bad", next_step="Look."), as_json=False)
"""


def test_colour_is_for_terminals_that_want_it() -> None:
    assert "\x1b[" in on_terminal(SHOW)
    plain = on_terminal(SHOW, NO_COLOR="1")
    assert "\x1b" not in plain
    assert "error: bad" in plain


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("matrix")
    def command() -> None:
        raise ZeroDivisionError("by \x1b zero")

    monkeypatch.setattr(cli, "get_command", lambda *_: command)


@pytest.mark.usefixtures("broken")
def test_a_bug_has_a_file_and_no_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("PINWHEEL_TRACEBACK", raising=False)
    assert here(["matrix"]) == 70
    said = capsys.readouterr().err
    assert said.startswith(r"bug: ZeroDivisionError: by \x1b zero")
    assert "Traceback (most" not in said
    (file,) = tmp_path.iterdir()
    assert str(file) in said
    assert "ZeroDivisionError" in file.read_text()


@pytest.mark.usefixtures("broken")
def test_a_bug_is_json_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cli, "get_command", lambda *_: _broken_with_json)
    assert here(["matrix", "--json"]) == 70
    assert json.loads(capsys.readouterr().out)["rule"] == "internal"


@click.command("matrix")
@click.option("--json", is_flag=True)
def _broken_with_json(**_: bool) -> None:
    raise ZeroDivisionError


@pytest.mark.usefixtures("broken")
def test_a_bug_shows_its_traceback_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINWHEEL_TRACEBACK", "1")
    assert here(["matrix"]) == 70
    assert "Traceback (most" in capsys.readouterr().err


@pytest.mark.usefixtures("broken")
def test_a_bug_without_a_place_for_its_file_shows_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    monkeypatch.delenv("PINWHEEL_TRACEBACK", raising=False)
    assert here(["matrix"]) == 70
    assert "Traceback (most" in capsys.readouterr().err


def test_a_commands_own_status_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("matrix")
    @click.pass_context
    def command(context: click.Context) -> None:
        context.exit(1)

    monkeypatch.setattr(cli, "get_command", lambda *_: command)
    assert here(["matrix"]) == 1


@pytest.mark.parametrize("raised", [KeyboardInterrupt, click.Abort])
def test_an_interrupt_says_how_to_go_on(
    raised: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command("matrix")
    def command() -> None:
        raise raised

    monkeypatch.setattr(cli, "get_command", lambda *_: command)
    assert here(["matrix"]) == 130
    assert "run the same command again" in capsys.readouterr().err


SLOW = """
import signal, sys
# As a shell's foreground gives it; what runs in the background inherits it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
import pinwheel.cli.matrix as matrix
from pinwheel.cli.main import main
from pinwheel.process import run
import click
@click.command("matrix")
def command():
    print("started", flush=True)
    run(sys.argv[1:])
matrix.command = command
main(["matrix"])
"""


def started(*command: str) -> subprocess.Popen[str]:
    """pinwheel, running ``command`` in the way it runs a compiler."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def running(word: str) -> bool:
    """Whether a process has ``word`` among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes().split(b"\0")[:-1]:
                return True
    return False


def wait_for(word: str) -> None:
    end = time.monotonic() + 60
    while not running(word):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_was_started(number: signal.Signals) -> None:
    seconds = f"98765.{os.getpid()}"
    process = started("sleep", seconds)
    time.sleep(0.3)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    assert not running(seconds)


def test_more_signals_leave_nothing_behind() -> None:
    seconds = f"98766.{os.getpid()}"
    process = started("sh", "-c", f"trap '' TERM; sleep {seconds}; sleep {seconds}")
    wait_for(seconds)
    numbers = itertools.cycle((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    while process.poll() is None:
        process.send_signal(next(numbers))
        time.sleep(0.1)
    assert process.returncode == 130
    assert not running(seconds)
    _, said = process.communicate()
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], module.READER_GONE),
        (["matrix", "--json"], module.READER_GONE),
        (["build", "--combo", "nope", "--json"], 11),
    ],
)
def test_output_that_nobody_reads(project: Path, arguments: list[str], code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [*PINWHEEL, *arguments],
        cwd=project,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert process.returncode == code
    assert "Traceback" not in process.stderr
    assert "Exception ignored" not in process.stderr


def test_progress_that_nobody_reads_is_no_success(project: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [*PINWHEEL, "build", "--combo", "nope"],
        cwd=project,
        stderr=write,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert process.returncode == 11


@pytest.mark.parametrize("arguments", [["--help"], ["matrix", "--json"], ["matrix", "combos"]])
def test_output_to_a_full_disk_is_no_success(project: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [*PINWHEEL, *arguments],
            cwd=project,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert process.returncode == 23
    assert process.stderr.startswith("error: there is no space left")
    assert "Exception ignored" not in process.stderr


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [
        ("<&- >&-", "matrix --json", 0),
        ("2>&-", "build --combo nope", 11),
        ("<&- >&- 2>&-", "matrix combos", 0),
    ],
)
def test_closed_streams(project: Path, closed: str, arguments: str, code: int) -> None:
    line = f'exec "$0" -m pinwheel.cli.main {arguments} {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable],
        cwd=project,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, b"")
    assert b"Traceback" not in done.stderr

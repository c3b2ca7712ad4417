"""./nox with the real noxfile: signals, exit codes, the list of sessions, a forgotten ``--``.

The environment of the pinwheel sessions is a stand-in that runs the pinwheel under test.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwheel.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"  # of ./nox; these tests' own may have no nox
# SIGINT as a shell's foreground gives it; what runs in the background inherits it ignored.
DEFAULT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
SLOW = """
import sys
import click
import pinwheel.cli.matrix as matrix
from pinwheel.cli.main import main
from pinwheel.process import run
@click.command("matrix", context_settings={"ignore_unknown_options": True})
@click.argument("script")
def command(script):
    print("started", flush=True)
    run(["sh", "-c", script])
matrix.command = command
main()
"""
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="./nox was never run in this checkout")


@pytest.fixture(scope="module")
def start(load_script: Callable[[Path, str], ModuleType]) -> ModuleType:
    return load_script(ROOT / "scripts" / "start_nox.py", "start_nox_under_test")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What ./nox reads, with an environment whose pinwheel is the one under test."""
    copy = tmp_path / "checkout"
    for name in ("noxfile.py", "pyproject.toml", "scripts/start_nox.py", "requirements/run.txt"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    shared = copy / ".nox" / "pinwheel"
    (shared / "bin").mkdir(parents=True)
    (shared / "bin" / "python").symlink_to(sys.executable)
    install(copy, f'exec {sys.executable} -m pinwheel.cli.main "$@"')
    pins = (copy / "requirements/run.txt").read_bytes() + (copy / "pyproject.toml").read_bytes()
    (shared / "pinwheel-installed").write_text(f"{hashlib.sha256(pins).hexdigest()} {shared}")
    return copy


def install(checkout: Path, script: str) -> None:
    program = checkout / ".nox/pinwheel/bin/pinwheel"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def arguments(checkout: Path, *args: str) -> list[str]:
    return [str(PYTHON), "-I", str(checkout / "scripts/start_nox.py"), *args]


def environment(checkout: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NOX", "PINWHEEL_NOX"))}
    return kept | {"PINWHEEL_PROJECT": str(ROOT), "PINWHEEL_CACHE": str(checkout / "cache")}


def nox(checkout: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(checkout, *args),
        cwd=checkout.parent,
        env=environment(checkout),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# --- exit codes and output -----------------------------------------------------------------------


def test_alone_it_lists_the_sessions_the_readmes_commands_first(checkout: Path) -> None:
    said = nox(checkout)
    assert said.returncode == 0, said.stderr
    first = re.findall(r"^```sh\n(\./nox .*)\n```$", (ROOT / "README.md").read_text(), re.M)[:2]
    places = [said.stdout.index(command) for command in first]
    assert len(places) == 2
    assert places == sorted(places)
    assert places[1] < said.stdout.index("\n- build ")
    assert "Running session" not in said.stderr


def test_every_command_has_a_session(checkout: Path, start: ModuleType) -> None:
    listed = set(re.findall(r"^[-*] (\w+)", nox(checkout, "--list").stdout, re.M))
    assert start.sessions() == listed
    assert listed.issuperset(COMMANDS)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["matrix", "--", "combos"], 0),
        (["build", "--", "--combo", "cu1-torch2.3-vllm0.6.3"], 11),
        (["build", "--", "--jobs", "0"], 2),
        (["verify", "--", "no.whl"], 60),
        (["matrix", "build", "--", "--combo", "x"], 2),
    ],
)
def test_the_exit_code_is_pinwheels(checkout: Path, args: list[str], code: int) -> None:
    said = nox(checkout, "-s", *args)
    assert said.returncode == code, said.stderr


def test_a_program_killed_is_128_and_the_signal(checkout: Path) -> None:
    install(checkout, "kill -9 $$")
    assert nox(checkout, "-s", "matrix").returncode == 137


def test_json_is_alone_on_stdout(checkout: Path) -> None:
    assert json.loads(nox(checkout, "-s", "matrix", "--", "--json").stdout)["combos"]
    failed = nox(checkout, "-s", "build", "--", "--combo", "nope", "--json")
    assert json.loads(failed.stdout)["exit_code"] == failed.returncode == 11


def test_other_tools_keep_one(checkout: Path) -> None:
    (checkout / "other.py").write_text(
        "import nox\n@nox.session(venv_backend='none')\n"
        "def lint(session):\n    session.run('sh', '-c', 'exit 7', external=True)\n"
    )
    assert nox(checkout, "-f", str(checkout / "other.py"), "-s", "lint").returncode == 1


def test_an_environment_in_use_is_not_changed(checkout: Path) -> None:
    (checkout / ".nox/pinwheel/pinwheel-installed").write_text("of other pins")
    with (checkout / ".nox/pinwheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as a build that runs does
        process = begin(checkout, "-s", "matrix")
        assert process.stderr is not None
        while "waiting for another ./nox" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 143
    assert (checkout / ".nox/pinwheel/bin/pinwheel").exists()


# --- signals -------------------------------------------------------------------------------------


def begin(checkout: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DEFAULT, *arguments(checkout, *args)],
        cwd=checkout.parent,
        env=environment(checkout),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # no terminal of its own
    )


def slow(checkout: Path, script: str) -> tuple[str, ...]:
    """Arguments for a build of sorts: pinwheel runs ``script`` in the way it runs compilers."""
    file = checkout / "slow.py"
    file.write_text(SLOW)
    install(checkout, f'exec {sys.executable} {file} "$@"')
    return ("-s", "matrix", "--", script)


def running(tag: str) -> list[int]:
    """Processes with ``tag`` among their arguments, but for shells that only mention it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if tag.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def wait_until(true: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_nox_ends_pinwheel_and_what_it_runs(
    checkout: Path, number: signal.Signals
) -> None:
    tag = f"98761.{os.getpid()}"
    process = begin(checkout, *slow(checkout, f"sleep {tag}"))
    wait_until(lambda: running(tag))
    process.send_signal(number)
    out, said = process.communicate(timeout=120)
    assert not running(tag)
    assert process.returncode == 128 + number
    assert out == "started\n"
    assert "interrupted; run the same command again" in said
    assert "Traceback" not in said


def test_an_impatient_person_leaves_nothing_behind(checkout: Path) -> None:
    tag = f"98762.{os.getpid()}"
    process = begin(checkout, *slow(checkout, f"trap '' TERM; sleep {tag}; sleep {tag}"))
    wait_until(lambda: running(tag))
    began = time.monotonic()
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert not running(tag)
    assert process.returncode == 143
    assert time.monotonic() - began > 4  # it was stubborn
    process.communicate()


def test_a_signal_that_is_ignored_stays_ignored(checkout: Path) -> None:
    tag = f"98763.{os.getpid()}"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as from nohup
    try:
        process = begin(checkout, *slow(checkout, f"sleep {tag}"))
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until(lambda: running(tag))
    process.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert running(tag)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 143
    assert not running(tag)


def test_control_c_on_a_terminal(checkout: Path) -> None:
    tag = f"98764.{os.getpid()}"
    args = arguments(checkout, *slow(checkout, f"sleep {tag}"))
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(checkout)
        command = [sys.executable, "-c", DEFAULT, *args]
        os.execve(command[0], command, environment(checkout))
    wait_until(lambda: running(tag))
    os.write(terminal, b"\x03")
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while data := os.read(terminal, 4096):
            seen += data
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    assert not running(tag)
    assert b"interrupted; run the same command again" in seen
    assert b"Traceback" not in seen


def test_a_tool_that_knows_only_sigint_gets_that(checkout: Path) -> None:
    """pytest, say: SIGTERM would end it without its teardown, and orphan what it runs."""
    done = checkout / "done"
    (checkout / "tool.py").write_text(
        "import sys, time\ntry:\n    print('started', flush=True)\n    time.sleep(600)\n"
        f"finally:\n    time.sleep(1)\n    open({str(done)!r}, 'w')\n"
    )
    text = (checkout / "noxfile.py").read_text()
    tools = "\n@nox.session(venv_backend='none')\ndef tool(session: nox.Session) -> None:\n"
    tools += "    run(session, *session.posargs)\n"
    (checkout / "noxfile.py").write_text(text + tools)
    process = begin(checkout, "-s", "tool", "--", sys.executable, str(checkout / "tool.py"))
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 143
    assert done.exists()


# --- a forgotten "--" ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("-s build --combo X --archs 8.0", "./nox -s build -- --combo X --archs 8.0"),
        ("-sbuild --combo X", "./nox -s build -- --combo X"),
        ("--session=build --combo X", "./nox -s build -- --combo X"),
        ("build --combo X", "./nox -s build -- --combo X"),
        ("-r -s build --combo X", "./nox -r -s build -- --combo X"),
        ("--combo -s build", "./nox -s build -- --combo"),
        ("-s build --combo X -- --jobs 2", "./nox -s build -- --combo X --jobs 2"),
        ("-s fetch build --combo X", "./nox -s fetch build -- --combo X"),
        ("-s verify 'a b.whl'", "./nox -s verify -- 'a b.whl'"),
        ("-s compare build matrix", None),
        ("-s nothing", None),
        ("--combo X", None),
    ],
)
def test_the_line_that_was_meant(start: ModuleType, typed: str, meant: str | None) -> None:
    assert start.corrected(shlex.split(typed), "unrecognized arguments: --combo") == meant


SESSION_FLAGS = ("-s", "-e", "--session", "--sessions", "--")


@given(words=st.lists(st.text().filter(lambda word: word not in SESSION_FLAGS)))
def test_no_word_is_lost(start: ModuleType, words: list[str]) -> None:
    line = start.corrected(["-s", "build", "--combo", *words], "")
    assert shlex.split(line) == ["./nox", "-s", "build", "--", "--combo", *words]


@pytest.mark.parametrize(
    ("typed", "code", "meant"),
    [
        ("-s build --combo X", 2, "./nox -s build -- --combo X"),
        ("-s matrix --json", 3, "./nox -s matrix -- --json"),
        ("-s verify a.whl", 3, "./nox -s verify -- a.whl"),
        ("--nonsense", 2, "./nox -s SESSION -- OPTIONS"),
    ],
)
def test_a_forgotten_dash_dash_has_a_hint(
    checkout: Path, typed: str, code: int, meant: str
) -> None:
    said = nox(checkout, *typed.split())
    assert said.returncode == code
    assert f'  - What a session takes stands behind "--": {meant}\n' in said.stderr
    assert "usage:" not in said.stderr
    assert not said.stdout

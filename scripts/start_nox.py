"""Runs nox for ./nox: passes signals on, keeps pinwheel's exit code, and knows a forgotten ``--``.

``./nox`` becomes this process (exec), in the environment that it prepared; its process id stays
the one that a CI job or a service manager knows. nox alone leaves what it started running when it
is sent SIGTERM, and ends with 1 whatever failed.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

NOXFILE = Path(__file__).parent.parent / "noxfile.py"
#: Both are read and written by the noxfile too, which runs in this process.
SIGNAL = "PINWHEEL_NOX_SIGNAL"  # the signal that ends us
FAILED = "PINWHEEL_NOX_FAILED"  # exit code of the first pinwheel command that failed
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDING = 60  # seconds until what does not end is killed
NOT_FOUND = 3  # nox: no such session
BEHIND = 'What a session takes stands behind "--":'
HELP = ("./nox -l lists the sessions, ./nox --help the options of nox itself.",)


def main(args: list[str]) -> NoReturn:
    """Run nox to its end and end with the exit code that tells most."""
    for name in (SIGNAL, FAILED):
        os.environ.pop(name, None)  # of a ./nox that started this one
    for number in ENDINGS:
        # Ignored ones stay so: nohup, and a job in the background of a script.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, arrived)

    def misused(_: argparse.ArgumentParser, message: str) -> NoReturn:
        hint(message, args)
        sys.exit(2)

    # Where nox would print all of its options and not say what is missing.
    argparse.ArgumentParser.error = misused  # type: ignore[assignment]
    code = run_nox(args)
    if SIGNAL in os.environ:
        end_children()
        for number in ENDINGS:  # at exit Python gives them back their meaning, and one could kill
            signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + int(os.environ[SIGNAL]))
    if code == 1 and FAILED in os.environ:
        sys.exit(int(os.environ[FAILED]))
    if code == NOT_FOUND:
        hint("nox ran no session.", args)
    sys.exit(code)


def run_nox(args: list[str]) -> str | int | None:
    """``python -m nox`` in this process; its exit code."""
    if not args and not os.environ.get("NOXSESSION"):
        args = ["--list"]
    # -f: also when started from elsewhere; a caller's own -f comes later and wins.
    sys.argv = ["nox", "-f", str(NOXFILE), *args]
    try:
        runpy.run_module("nox", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


# --- signals -------------------------------------------------------------------------------------


def arrived(number: int, _frame: FrameType | None) -> None:
    """End like after Ctrl-C, once: while things end, a second signal would leave them behind."""
    if SIGNAL in os.environ:
        return
    os.environ[SIGNAL] = str(int(number))
    # nox waits for what it runs, and only then sends SIGTERM. Ctrl-C has reached it already.
    if number != signal.SIGINT or not from_terminal():
        for child in children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGINT)
    raise KeyboardInterrupt


def from_terminal() -> bool:
    """Whether Ctrl-C would reach us: our group is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def children() -> Iterator[int]:
    """Process ids of what this process started and has not seen the end of (proc(5): stat)."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names alone, quickly
        if entry.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = Path("/proc", entry, "stat").read_text("utf-8", "replace")
                state, parent = fields.rpartition(")")[2].split()[:2]
                if int(parent) == os.getpid() and state != "Z":
                    yield int(entry)


def end_children() -> None:
    """Let nothing be left: the signal may have come in the moment something was started."""
    deadline = time.monotonic() + ENDING
    sent: set[int] = set()
    while left := list(children()):
        late = time.monotonic() > deadline
        for child in left:
            if late or child not in sent:
                sent.add(child)
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)


# --- a forgotten "--" ----------------------------------------------------------------------------


def hint(message: str, args: list[str]) -> None:
    """Say on stderr what is wrong and which command line was meant."""
    line = corrected(args, message)
    steps = [f"{BEHIND} {line}"] if line else [f"{BEHIND} ./nox -s SESSION -- OPTIONS", *HELP]
    sys.stderr.write("".join([f"./nox: {message}\n", *(f"  - {step}\n" for step in steps)]))


def corrected(args: list[str], message: str) -> str | None:
    """The command line that has everything for its session behind ``--``; None: there is none."""
    known = sessions()
    head, tail = (
        (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
    )
    before: list[str] = []
    chosen: list[str] = []
    behind: list[str] = []
    for word in head:
        name = re.sub(r"^(--sessions?=|-[se](?=\w))", "", word)
        if name in known and not behind:
            chosen.append(name)
        elif word not in ("-s", "-e", "--session", "--sessions"):
            (behind if chosen else before).append(word)
    if any(word in message.split() for word in before):
        before, behind = [], before + behind
    if not chosen or not behind:
        return None
    return shlex.join(["./nox", *before, "-s", *chosen, "--", *behind, *tail])


def sessions() -> set[str]:
    """Names of the noxfile's sessions, read off its text: it may not load at all."""
    try:
        text = NOXFILE.read_text("utf-8")
    except OSError:
        return set()
    return set(re.findall(r"^@nox\.session\b.*\ndef (\w+)\(", text, re.M))


if __name__ == "__main__":
    main(sys.argv[1:])

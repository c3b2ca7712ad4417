"""The one door to other programs: explicit environment, log file, typed result."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pinwheel.interrupts import held

TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Result:
    """How a program ended.

    Attributes:
        returncode: exit status; negative is minus the signal number.
        output: stdout and stderr together, at most the last 16 KiB when a log file was given.
        seconds: wall time.
        cpu_seconds: user plus system time of the program and the children it waited for.
    """

    returncode: int
    output: str
    seconds: float
    cpu_seconds: float


def run(
    args: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    tick: Callable[[], None] | None = None,
    stdin: bytes | None = None,
    umask: int = -1,
) -> Result:
    """Run a program to its end and return what it said; a non-zero exit is not an exception.

    Args:
        args: program and arguments; never a shell line.
        env: the whole environment; None inherits ours.
        cwd: working directory.
        log: file that receives stdout and stderr as they come (appended).
        tick: called about twice a second while the program runs, to show progress.
        stdin: bytes for standard input; nothing is readable there otherwise.
        umask: file mode mask of the program; -1 leaves it ours.

    Raises:
        OSError: the program cannot be started.
        KeyboardInterrupt: passed on after the program and its group were ended.
    """
    started = time.monotonic()
    before = os.times()
    target: int = subprocess.PIPE
    sink = None
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        sink = log.open("ab")
        target = sink.fileno()
    offset = sink.tell() if sink is not None else 0
    captured = b""
    process: subprocess.Popen[bytes] | None = None
    try:
        with ExitStack() as stack:
            source: int | IO[bytes] = subprocess.DEVNULL
            if stdin is not None:
                # A file, not a pipe: after a timeout communicate() writes no more input.
                source = stack.enter_context(tempfile.TemporaryFile())
                source.write(stdin)
                source.seek(0)
            with held():  # or it would run, and nobody know of it
                process = subprocess.Popen(
                    [os.fspath(a) for a in args],
                    env=None if env is None else dict(env),
                    cwd=cwd,
                    stdin=source,
                    stdout=target,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    umask=umask,
                )
        while True:
            try:
                data, _ = process.communicate(timeout=0.5)
                captured = data or b""
                break
            except subprocess.TimeoutExpired:
                if tick is not None:
                    tick()
    except BaseException:
        if process is not None:
            with held():
                _end_group(process)
        raise
    finally:
        if sink is not None:
            sink.close()
    if tick is not None:
        tick()
    if log is not None:
        with log.open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(offset, size - TAIL_BYTES))
            captured = handle.read()
    after = os.times()
    cpu = (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )
    return Result(
        process.returncode,
        captured.decode("utf-8", "replace"),
        time.monotonic() - started,
        cpu,
    )


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a program together with everything it started in its process group."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            # The second time also where the program has ended, for what it has left behind.
            os.killpg(process.pid, sig)
        except ProcessLookupError:
            break
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)

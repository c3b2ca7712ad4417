"""Compiler launcher: one log and two events per source, then the compiler cache or the compiler.

CMake puts this before every compile command (``CMAKE_<LANG>_COMPILER_LAUNCHER``). It writes one
JSON line when a source starts and one when it ends to ``/logs/events.jsonl``; the outside follows
that file to show progress and to explain a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

EVENTS = os.environ.get("PINWHEEL_EVENTS", "/logs/events.jsonl")
LOGS = os.environ.get("PINWHEEL_SOURCE_LOGS", "/logs/sources")
SOURCE_ROOT = os.environ.get("PINWHEEL_SOURCE_ROOT", "/build/src")
CACHE = os.environ.get("PINWHEEL_CACHE_PROGRAM", "")
SUFFIXES = (".cu", ".cpp", ".cc", ".cxx", ".c")


def source_of(argv: list[str]) -> str:
    """The source file of a compile command, relative to the source tree; empty if there is none."""
    named = after(argv, "-c")
    if named.endswith(SUFFIXES):
        return os.path.relpath(named, SOURCE_ROOT)
    for arg in argv[1:]:
        if arg.endswith(SUFFIXES) and not arg.startswith("-"):
            return os.path.relpath(arg, SOURCE_ROOT)
    return ""


def after(argv: list[str], flag: str) -> str:
    """The argument that follows ``flag``; empty if there is none."""
    for position, arg in enumerate(argv[:-1]):
        if arg == flag:
            return argv[position + 1]
    return ""


def emit(event: dict[str, object]) -> None:
    """Append one event; a single short write, so parallel launchers do not interleave."""
    line = json.dumps(event, sort_keys=True) + "\n"
    handle = os.open(EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def main(argv: list[str]) -> int:
    """Run one compile command; its exit status is ours (128 + signal when it was killed)."""
    source = source_of(argv)
    if not source:  # a link or a probe of the compiler
        os.execvp(argv[0], argv)
    # The object names the step: one source may be compiled for two libraries.
    step = after(argv, "-o") or source
    name = step.replace("CMakeFiles/", "").replace("../", "").strip("/").replace("/", "__")
    log = f"{LOGS}/{name}.log"
    os.makedirs(LOGS, exist_ok=True)
    command = [CACHE, *argv] if CACHE else argv
    common = {"log": log, "source": source, "step": step}
    emit({"event": "start", "time": time.time(), **common})
    started = time.monotonic()
    with open(log, "wb") as handle:
        handle.write(("command: " + subprocess.list2cmdline(argv) + "\n\n").encode())
        handle.flush()
        code = subprocess.call(command, stdout=handle, stderr=subprocess.STDOUT)
    emit(
        {
            "event": "end",
            "time": time.time(),
            "seconds": round(time.monotonic() - started, 3),
            "code": code,
            **common,
        }
    )
    if code != 0:
        with open(log, "rb") as handle:
            sys.stdout.buffer.write(handle.read()[-8192:])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

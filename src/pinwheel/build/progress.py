"""Follows a running build from outside: which source, how far, how long still."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinwheel.build.costs import Costs, Estimate, estimate
from pinwheel.console import Console, Progress, human_seconds


@dataclass(slots=True)
class SourceRun:
    """One compile of one source, as its launcher reported it; ``seconds`` is None while it runs."""

    step: str
    source: str
    log: str
    started: float
    seconds: float | None = None
    code: int | None = None


@dataclass(slots=True)
class Events:
    """The events file, read as it grows; a half-written last line waits for the next look."""

    path: Path
    runs: dict[str, SourceRun] = field(default_factory=dict)
    _offset: int = 0

    def poll(self) -> list[SourceRun]:
        """Runs that ended since the last look."""
        try:
            with self.path.open("rb") as handle:
                handle.seek(self._offset)
                data = handle.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        ended = []
        for line in data[:whole].splitlines():
            run = self._take(line)
            if run is not None:
                ended.append(run)
        return ended

    def _take(self, line: bytes) -> SourceRun | None:
        try:
            event: dict[str, Any] = json.loads(line)
            step, kind = str(event["step"]), event["event"]
            if kind == "start":
                self.runs[step] = SourceRun(
                    step, str(event["source"]), str(event["log"]), float(event["time"])
                )
                return None
            run = self.runs[step]
            run.seconds, run.code = float(event["seconds"]), int(event["code"])
        except (ValueError, KeyError, TypeError, OverflowError):
            return None  # a damaged line tells nothing; the build itself is not concerned
        return run

    def running(self) -> list[SourceRun]:
        """Sources being compiled now, the longest running first."""
        return sorted((r for r in self.runs.values() if r.seconds is None), key=lambda r: r.started)

    def forget_unfinished(self) -> None:
        """Drop what an earlier build left open or failed at: this one has not tried it yet."""
        self.runs = {s: r for s, r in self.runs.items() if r.code == 0}

    def failed(self) -> list[SourceRun]:
        """Sources that did not compile, first come first; CMake's questions are none."""
        return [r for r in self.runs.values() if r.code not in (None, 0) and not is_probe(r.source)]


class Follower:
    """Shows a build's progress; ``tick`` is called about twice a second.

    Args:
        logs: where the launchers write.
        console: where progress goes.
        stack: closes the progress bar.
        costs: of an earlier build, for an estimate that knows the long sources.
        jobs: compilers at once.
        clock: seconds since 1970, as the launchers' events have them.

    Attributes:
        events: what the launchers told so far.
        steps: every step of the compile, once CMake has written them down.
    """

    def __init__(
        self,
        logs: Path,
        console: Console,
        stack: ExitStack,
        *,
        costs: Costs,
        jobs: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.events = Events(logs / "events.jsonl")
        self._source = logs.parent / "src"
        self._console = console
        self._stack = stack
        self._jobs = jobs
        self._clock = clock
        self._progress: Progress | None = None
        self._shown: tuple[str, str] | None = None
        self._basis = ""
        self.steps: list[str] = []
        # What an interrupted build finished is not done again.
        self.events.poll()
        self._before = {s for s, r in self.events.runs.items() if r.code == 0}
        self.events.forget_unfinished()
        # Of a build that was killed only its events tell what it timed.
        self._costs = costs if costs.seconds else Costs(seconds=costs_of(self.events.runs))

    def tick(self) -> None:
        """Look at the events and the build file once."""
        ended = [r for r in self.events.poll() if not is_probe(r.source)]
        if self._progress is None:
            self.steps = read_steps(self._source)
            if not self.steps:
                return
            self._progress = self._stack.enter_context(
                self._console.progress(len(self.steps), "sources", "compiling")
            )
            self._progress.skip(len(self._before.intersection(self.steps)))
        for run in ended:
            if run.step not in self._before:
                # No rate is made of it: one source takes twenty times as long as another.
                self._progress.skip(1)
            verb = "compiled" if run.code == 0 else f"FAILED (exit {run.code})"
            if not self._console.terminal:
                self._console.say(f"{verb} {run.source} in {human_seconds(run.seconds or 0)}")
        running = self.events.running()
        known = self._estimate()
        if known.basis and known.basis != self._basis:
            self._console.say(f"estimate: {known.basis}")
            self._basis = known.basis
        now = (", ".join(Path(r.source).name for r in running[:3]), known.left)
        if now != self._shown:
            self._progress.describe(*now)
            self._shown = now
        self._progress.tick()

    def _estimate(self) -> Estimate:
        done = self._before | {s for s, r in self.events.runs.items() if r.code == 0}
        running = {r.step: r.started for r in self.events.running() if r.step in self.steps}
        now = self._clock()
        return estimate(
            self._costs,
            waiting=[s for s in self.steps if s not in done and s not in running],
            running={step: max(0.0, now - started) for step, started in running.items()},
            finished=costs_of(self.events.runs),
            jobs=self._jobs,
        )


def read_steps(source: Path) -> list[str]:
    """The compile steps of ninja's own file in a source tree; none before CMake has written it."""
    for path in source.glob("build/temp*/build.ninja"):
        try:
            return compile_steps(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return []


_COMPILE = re.compile(r"^build ([^\n:]+): (?:CUDA|CXX|C)_COMPILER__", re.MULTILINE)


def compile_steps(ninja: str) -> list[str]:
    """The objects that a CMake-made ninja file compiles."""
    return [match.strip() for match in _COMPILE.findall(ninja)]


def is_probe(source: str) -> bool:
    """Whether a compile is CMake asking about the compiler, not part of the package."""
    return "CMakeFiles/" in source or source.startswith(("../", "build/"))


def costs_of(runs: dict[str, SourceRun]) -> dict[str, float]:
    """Seconds per step that was compiled to its end."""
    return {
        r.step: r.seconds
        for r in runs.values()
        if r.seconds is not None and r.code == 0 and not is_probe(r.source)
    }

"""What each source cost in earlier builds, and what a running build therefore has left."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from pinwheel.errors import PinwheelError
from pinwheel.files import atomic_write

_ABSURD = 1e8  # seconds, three years


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds per step of earlier builds of the combo, finished or stopped.

    Attributes:
        seconds: by step; empty when nothing was built before.
        capabilities: how many that build compiled for, where it is not as many as this one: then
            only the proportions of its times hold. None: as many.
        sources: how many sources such a build compiles; None when nobody noted it.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    capabilities: int | None = None
    sources: int | None = None

    @property
    def whole(self) -> bool:
        """Whether every source of such a build was timed; a build that was stopped leaves some."""
        return self.sources is not None and 0 < self.sources <= len(self.seconds)


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long something may still take.

    Attributes:
        left: in words, such as ``about 8 min left``; empty when unknown.
        basis: what that rests on, or why nothing is known; empty when there is nothing to say yet.
        seconds: the same as a number; None when unknown.
    """

    left: str = ""
    basis: str = ""
    seconds: float | None = None


def costs_path(directory: Path, combo: str, capabilities: int) -> Path:
    """The file for builds of a combo for so many capabilities."""
    return directory / f"{combo}-{capabilities}.json"


def read_costs(path: Path) -> Costs:
    """The costs in a :func:`costs_path`, or those of another number of capabilities.

    Costs of a build that was finished come before those of one that was only stopped, then those
    of the nearest number.
    """
    mine = _number(path, like=path) or 0
    numbers = {mine} | {
        number
        for other in path.parent.glob("*.json")
        if (number := _number(other, like=path)) is not None
    }
    combo = path.stem.rpartition("-")[0]
    found = [
        replace(costs, capabilities=None if number == mine else number)
        for number in sorted(numbers, key=lambda n: (abs(n - mine), n))
        if (costs := _read(path if number == mine else costs_path(path.parent, combo, number)))
    ]
    return next((costs for costs in found if costs.whole), found[0] if found else Costs())


def _number(path: Path, *, like: Path) -> int | None:
    """The number of capabilities in a file's name; None where it is of another combo."""
    combo, _, number = path.stem.rpartition("-")
    same = combo == like.stem.rpartition("-")[0]
    return int(number) if same and re.fullmatch(r"[0-9]{1,4}", number) else None


def record_costs(path: Path, taken: Mapping[str, float], steps: Collection[str] = ()) -> None:
    """Add what a build's sources took, however it ended; errors cost an estimate and no more.

    A step that took less than half its known time came from the compile cache, as far as anyone
    can tell from here, and says nothing about compiling.

    Args:
        path: a :func:`costs_path`.
        taken: seconds by step.
        steps: every step such a build has, where that is known; costs of others are dropped.
    """
    known = _read(path) or Costs()
    new = {s: t for s, t in taken.items() if t >= known.seconds.get(s, 0.0) / 2}
    if new:
        all_of_them = {**known.seconds, **new}
        seconds = {s: t for s, t in all_of_them.items() if not steps or s in steps}
        data = {"sources": len(steps) or known.sources, "seconds": seconds}
        with suppress(PinwheelError):
            text = json.dumps(data, indent=0, sort_keys=True)
            atomic_write(path, f"{text}\n".encode())


def _read(path: Path) -> Costs | None:
    """What a file holds; None where that is nothing, or damaged: it is an estimate only."""
    try:
        data = json.loads(path.read_text())
        times = {str(k): float(v) for k, v in data.get("seconds", data).items()}
        seconds = {k: v for k, v in times.items() if 0 <= v < _ABSURD}
        sources = data["sources"] if isinstance(data.get("sources"), int) else None
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return Costs(seconds=seconds, sources=sources) if seconds else None


def estimate(
    costs: Costs,
    *,
    waiting: Collection[str],
    running: Mapping[str, float],
    finished: Mapping[str, float],
    jobs: int,
) -> Estimate:
    """How long the build may still take, and what that rests on.

    The longest source sets a floor: no number of compilers makes it shorter. Of sources that were
    never timed nothing is guessed while others were: a build that was stopped has timed the short
    ones, and the long ones are what is left.

    Args:
        costs: of an earlier build.
        waiting: steps not begun.
        running: steps in work and the seconds they have been.
        finished: steps done, and the seconds they took.
        jobs: compilers at once.
    """
    if not waiting and not running:
        return Estimate()
    if not costs.seconds:
        return _by_pace(waiting, running, finished, jobs)
    timed = [step for step in (*waiting, *running) if step in costs.seconds]
    if not timed:
        return Estimate(basis="none: no source that is left was timed in an earlier build")
    scale, basis = 1.0, "by what each source took before"
    if costs.capabilities is not None:
        known = [step for step in finished if step in costs.seconds]
        before = sum(costs.seconds[step] for step in known)
        if before >= 1:
            scale = sum(finished[step] for step in known) / before
        plural = "y" if costs.capabilities == 1 else "ies"
        basis = f"by a build for {costs.capabilities} capabilit{plural}"
        basis += ", scaled by what is finished" if before >= 1 else ", so rather more or less"
    left = [max(0.0, costs.seconds[s] * scale - running.get(s, 0.0)) for s in timed]
    seconds = _on(jobs, left)
    if len(timed) == len(waiting) + len(running):
        return Estimate(f"about {minutes(seconds)} left", basis, seconds)
    basis += "; sources that were never timed are not counted"
    return Estimate(f"at least {minutes(seconds)} left", basis, seconds)


def _by_pace(
    waiting: Collection[str],
    running: Mapping[str, float],
    finished: Mapping[str, float],
    jobs: int,
) -> Estimate:
    """A first build has only its own pace."""
    if not finished:
        return Estimate()
    # Sources in work have taken at least this long: a long one raises the mean as it runs.
    usual = fmean([*finished.values(), *running.values()])
    left = [usual] * len(waiting) + [max(0.0, usual - spent) for spent in running.values()]
    seconds = _on(jobs, left)
    basis = "by this build's pace alone: nothing was built before, and one long source changes it"
    return Estimate(f"perhaps {minutes(seconds)} left", basis, seconds)


def _on(jobs: int, left: list[float]) -> float:
    return max(sum(left) / max(1, jobs), max(left, default=0.0))


def minutes(seconds: float) -> str:
    """Rounded to minutes, or the text would change twice a second."""
    whole = max(1, round(seconds / 60))
    return f"{whole} min" if whole < 100 else f"{whole // 60} h {whole % 60:02d} min"

"""What each source cost in earlier builds, and what a running build therefore has left."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from pinwheel.errors import PinwheelError
from pinwheel.files import atomic_write

_ABSURD = 1e8  # seconds, three years


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds per step of an earlier build of the combo.

    Attributes:
        seconds: by step; empty when nothing was built before.
        capabilities: how many that build compiled for, where it is not as many as this one: then
            only the proportions of its times hold. None: as many.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    capabilities: int | None = None


def costs_path(directory: Path, combo: str, capabilities: int) -> Path:
    """The file for builds of a combo for so many capabilities."""
    return directory / f"{combo}-{capabilities}.json"


def read_costs(path: Path) -> Costs:
    """The costs in a :func:`costs_path`, or those of the nearest number of capabilities."""
    if seconds := _read(path):
        return Costs(seconds=seconds)
    others = {
        number: other
        for other in path.parent.glob("*.json")
        if (number := _number(other, like=path)) is not None
    }
    mine = _number(path, like=path) or 0
    for number in sorted(others, key=lambda n: (abs(n - mine), n)):
        if seconds := _read(others[number]):
            return Costs(seconds=seconds, capabilities=number)
    return Costs()


def _number(path: Path, *, like: Path) -> int | None:
    """The number of capabilities in a file's name; None where it is of another combo."""
    combo, _, number = path.stem.rpartition("-")
    same = combo == like.stem.rpartition("-")[0]
    return int(number) if same and re.fullmatch(r"[0-9]{1,4}", number) else None


def record_costs(path: Path, taken: Mapping[str, float]) -> None:
    """Add what a build's sources took, however it ended; errors cost an estimate and no more.

    A step that took less than half its known time came from the compile cache, as far as anyone
    can tell from here, and says nothing about compiling.
    """
    known = _read(path)
    new = {s: t for s, t in taken.items() if t >= known.get(s, 0.0) / 2}
    if new:
        with suppress(PinwheelError):
            text = json.dumps({**known, **new}, indent=0, sort_keys=True)
            atomic_write(path, f"{text}\n".encode())


def _read(path: Path) -> dict[str, float]:
    try:
        data = json.loads(path.read_text())
        times = {str(k): float(v) for k, v in data.items()}
        return {k: v for k, v in times.items() if 0 <= v < _ABSURD}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # an estimate only


def estimate(
    costs: Costs,
    *,
    waiting: Collection[str],
    running: Mapping[str, float],
    finished: Mapping[str, float],
    jobs: int,
) -> str:
    """How long the build may still take and what that rests on, in words; empty when unknown.

    The longest source sets a floor: no number of compilers makes it shorter.

    Args:
        costs: of an earlier build.
        waiting: steps not begun.
        running: steps in work and the seconds they have been.
        finished: steps done, and the seconds they took.
        jobs: compilers at once.
    """
    if costs.seconds:
        usual, scale, source = median(costs.seconds.values()), 1.0, "by the last build's times"
        if costs.capabilities is not None:
            known = [step for step in finished if step in costs.seconds]
            before = sum(costs.seconds[step] for step in known)
            if before >= 1:
                scale = sum(finished[step] for step in known) / before
            plural = "y" if costs.capabilities == 1 else "ies"
            source = f"by a build for {costs.capabilities} capabilit{plural}"
            source += "" if before >= 1 else ", so rather more or less"
        words = f"about {{}} {source}"
    elif finished:
        # Sources in work have taken at least this long: a long one raises the mean as it runs.
        usual, scale = fmean([*finished.values(), *running.values()]), 1.0
        words = "perhaps {}; a first build, so its longest sources are not known"
    else:
        return ""

    def cost(step: str) -> float:
        return costs.seconds.get(step, usual) * scale

    left = [cost(step) for step in waiting]
    left += [max(0.0, cost(step) - spent) for step, spent in running.items()]
    seconds = max(sum(left) / max(1, jobs), max(left, default=0.0))
    return words.format(_minutes(seconds))


def _minutes(seconds: float) -> str:
    """Rounded, or the text would change twice a second."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"

"""Asks verify of the wheel that was just proven; one that does not fit goes nowhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pinwheel.build.manifest import as_json
from pinwheel.build.order import Order
from pinwheel.build.placing import SIDECAR, place
from pinwheel.console import Console
from pinwheel.errors import GateError
from pinwheel.settings import Settings
from pinwheel.verify.loaded import KEY, kept
from pinwheel.verify.model import Profile, Report, Status
from pinwheel.verify.run import Request, verify_wheel

SHOWN = 40  # lines of evidence


def gate(
    wheel: Path, order: Order, loaded: Mapping[str, str], settings: Settings, console: Console
) -> Report:
    """Hold a finished wheel against every rule, as ``pinwheel verify`` does for anyone.

    What the loader took goes into the manifest beside a wheel that fits: nobody can ask it later.

    Args:
        wheel: the finished wheel, beside it the manifest that finishing wrote.
        order: what was asked for; recipe and lock are read again, as for a stranger.
        loaded: library -> the file that the loader took for it, from the proof.
        settings: of this build.
        console: for progress and warnings.

    Raises:
        GateError: a rule failed, or nothing could answer it.
        ArtifactError: the wheel cannot be read.
        NotWritableError, DiskFullError: the manifest beside it cannot be written.
    """
    report = verify_wheel(
        wheel,
        Request(
            combo=str(order.loaded.combo),
            toolkit=order.toolkit,
            profile=Profile.OURS,
            loaded={name: (path,) for name, path in loaded.items()},
        ),
        settings,
        console,
    )
    for outcome in report.broken(Status.WARNING):
        for problem in outcome.problems:
            console.warn(f"{outcome.rule}: {problem.what}")
    if not report.fits:
        raise GateError(
            f"{wheel.name} does not fit what it is for",
            evidence=_evidence(report)[:SHOWN],
            next_step="docs/rules.md says of each rule why it is there and how to mend it. "
            "No wheel was written.",
        )
    keep_loaded(wheel, report.sha256, loaded)
    return report


def keep_loaded(wheel: Path, sha256: str, loaded: Mapping[str, str]) -> None:
    """Write what the loader took into the manifest beside a wheel; SHA256SUMS follows.

    Raises:
        NotWritableError, DiskFullError: it cannot be written.
    """
    beside = wheel.with_name(f"{wheel.name}{SIDECAR}")
    if not beside.is_file():  # one that was not finished by us has none to keep it in
        return
    stated = json.loads(beside.read_bytes())
    stated[KEY] = kept(sha256, {name: (path,) for name, path in loaded.items()})
    place(wheel, wheel.parent, sha256, as_json(stated), replace=False)


def _evidence(report: Report) -> list[str]:
    lines = []
    for outcome in report.broken(Status.FAILED, Status.UNKNOWN):
        if not outcome.problems:
            lines.append(f"{outcome.rule}: {outcome.status.value}: {outcome.reason}")
        for problem in outcome.problems:
            lines.append(f"{outcome.rule}: {problem.what}")
            lines += [f"    {line}" for line in problem.evidence]
    return lines

"""What a build says of itself: the wheel, what is in it, and what making it took.

What differs from run to run (times, memory, cache hits) is in this report and nowhere else: the
wheel and the manifest beside it are the same whoever builds them, however long it took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinwheel.build.compile import Compiled
from pinwheel.build.proof import Proof
from pinwheel.console import human_seconds
from pinwheel.files import human_bytes
from pinwheel.verify.model import Report as Verified

_SLOWEST = 3  # sources named in the summary


@dataclass(slots=True)
class Stages:
    """Wall and CPU time of a run, by stage; CPU time is of this process and all it waited for."""

    seconds: dict[str, float] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)
    _cpu: float = field(default_factory=lambda: _cpu_seconds())

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens inside to ``name``."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def as_dict(self) -> dict[str, Any]:
        """As plain data: the whole run so far, and its stages in order."""
        return {
            "seconds": round(time.monotonic() - self._started, 1),
            "cpu-seconds": round(_cpu_seconds() - self._cpu, 1),
            "stages": {name: round(spent, 1) for name, spent in self.seconds.items()},
        }


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A wheel in ``dist/`` and how it came there.

    Attributes:
        wheel: where it is.
        sha256, size: of its bytes.
        version: of the artifact.
        capabilities: that it was built for.
        manifest: what lies beside it.
        unchanged: the same bytes were there already.
        run: :meth:`Stages.as_dict`; None when nothing was built.
        compiled, proof, verified: of this run; None when nothing was built.
        record: file that keeps the figures of the run that made the wheel, where there is one.
    """

    wheel: Path
    sha256: str
    size: int
    version: str
    capabilities: tuple[str, ...]
    manifest: Mapping[str, Any] = field(repr=False)
    unchanged: bool = False
    run: Mapping[str, Any] | None = None
    compiled: Compiled | None = None
    proof: Proof | None = None
    verified: Verified | None = None
    record: Path | None = None

    @property
    def cubins(self) -> dict[str, dict[str, int]]:
        """Library -> target (``sm_80``, ``ptx sm_90``) -> count; libraries with device code."""
        libraries = self.manifest.get("libraries", {})
        return {name: dict(lib["cubins"]) for name, lib in libraries.items() if lib.get("cubins")}

    @property
    def operators(self) -> dict[str, int]:
        """Library -> operators: those the proof saw, else those the recipe states."""
        named = self.proof.operators if self.proof else self.manifest.get("operators", {})
        return {name: len(operators) for name, operators in sorted(named.items())}

    @property
    def parity(self) -> dict[str, Any] | None:
        """Counts of the comparison with the official wheel, and what it was held against.

        None when there is none.
        """
        whole = self.manifest.get("parity")
        if not whole:
            return None
        kinds: dict[str, int] = {}
        for difference in whole["differences"]:
            key = f"{difference['kind']} {difference['change']}"
            kinds[key] = kinds.get(key, 0) + 1
        return {
            "official": whole["official"],
            **{key: whole[key] for key in ("official-sha256", "targets") if key in whole},
            "identical": sum(whole["same"].values()),
            "differences": len(whole["differences"]),
            "by-kind": kinds,
        }

    def figures(self) -> dict[str, Any]:
        """Everything but the manifest and what the proof saw in detail, as plain data."""
        return {
            "wheel": str(self.wheel),
            "name": self.wheel.name,
            "sha256": self.sha256,
            "size": self.size,
            "version": self.version,
            "capabilities": list(self.capabilities),
            "unchanged": self.unchanged,
            "run": self.run,
            "build": self.compiled and self.compiled.as_dict(),
            "cubins": self.cubins,
            "operators": self.operators,
            "parity": self.parity,
        }

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for ``--json``."""
        return {
            **self.figures(),
            "proof": self.proof and self.proof.as_dict(),
            "verify": self.verified and self.verified.as_dict(),
            "manifest": dict(self.manifest),
            "record": str(self.record) if self.record else None,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The main of it for a person: what, value."""
        rows = [
            ("wheel", str(self.wheel)),
            ("version", self.version),
            ("capabilities", ", ".join(self.capabilities)),
            ("size", f"{human_bytes(self.size)} ({self.size} bytes)"),
            ("sha256", self.sha256),
        ]
        for name, cubins in sorted(self.cubins.items()):
            counts = ", ".join(f"{k}: {v}" for k, v in cubins.items())
            rows.append((f"cubins in {name}", counts))
        for name, count in self.operators.items():
            if count:
                rows.append((f"operators of {name}", str(count)))
        if parity := self.parity:
            told = ", ".join(f"{count} {kind}" for kind, count in parity["by-kind"].items())
            rows.append(
                (
                    "parity",
                    f"{parity['identical']} files as in {parity['official']}; "
                    f"{parity['differences']} differences, each explained"
                    + (f" ({told})" if told else ""),
                )
            )
        if self.compiled is not None:
            rows += self._build_rows(self.compiled)
        if self.proof is not None:
            rows.append(
                (
                    "proof",
                    f"imports, {sum(self.operators.values())} operators register, one libtorch",
                )
            )
        if self.verified is not None:
            rows.append(("verify", self.verified.verdict()))
        if self.run is not None:
            stages = ", ".join(f"{n} {human_seconds(s)}" for n, s in self.run["stages"].items())
            rows.append(
                (
                    "run",
                    f"{human_seconds(self.run['seconds'])}, "
                    f"{human_seconds(self.run['cpu-seconds'])} of CPU time: {stages}",
                )
            )
        if self.record is not None:
            rows.append(("figures", str(self.record)))
        return rows

    @staticmethod
    def _build_rows(compiled: Compiled) -> list[tuple[str, str]]:
        rows = [
            ("build", compiled.summary()),
            ("compilers", f"{compiled.jobs.jobs} at once, {compiled.jobs.reason}"),
        ]
        slowest = compiled.times[:_SLOWEST]
        if slowest:
            told = ", ".join(f"{Path(t.source).name} {human_seconds(t.seconds)}" for t in slowest)
            rows.append(("longest sources", told))
        return rows

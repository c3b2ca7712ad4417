"""Compiles a package inside the build root and explains what went wrong when it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinwheel.build.costs import read_costs, record_costs
from pinwheel.build.diagnose import Cause, diagnose
from pinwheel.build.jobs import JobPlan, Machine, this_machine
from pinwheel.build.progress import Follower, SourceRun, costs_of, is_probe
from pinwheel.build.work import Work
from pinwheel.buildroot.sandbox import Bind, Sandbox
from pinwheel.console import Console, human_seconds
from pinwheel.errors import CompileError, OutOfMemoryError, PinwheelError
from pinwheel.files import disk_full, human_bytes, make_directory, remove_tree

SCCACHE = "/opt/tools/sccache"
LOG_LINES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilePlan:
    """Everything a compile needs to know.

    Attributes:
        work: its directories.
        sandbox: the root it happens in.
        toolkit: CUDA_HOME on the host.
        environment: the build environment on the host, shown at ``/opt/env``.
        site: site-packages within it.
        tools: directory with sccache.
        cache: compile cache that outlives the build.
        capabilities: as ``TORCH_CUDA_ARCH_LIST`` wants them, ``8.0;9.0``.
        jobs: compilers at once.
        env: the recipe's own variables.
        options: for the back end's wheel command.
        dependencies: names of unpacked source-level dependencies.
        release: version of the source, as the recipe says; there is no .git to ask.
        epoch: SOURCE_DATE_EPOCH.
        costs: file with seconds per step, see :mod:`pinwheel.build.costs`; read and written.
    """

    work: Work
    sandbox: Sandbox
    toolkit: Path
    environment: Path
    site: str
    tools: Path
    cache: Path
    capabilities: str
    jobs: JobPlan
    env: Mapping[str, str]
    options: tuple[str, ...]
    dependencies: tuple[str, ...]
    release: str
    epoch: int
    costs: Path


@dataclass(frozen=True, slots=True)
class SourceTime:
    """Seconds from start to end of one source's compile, the compile cache asked first.

    ``earlier`` is true where a run that was stopped had finished it.
    """

    source: str
    step: str
    seconds: float
    earlier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A raw wheel and what making it took.

    Attributes:
        wheel: the raw wheel.
        seconds: wall time of this run; a resumed build does not count what was done before.
        cpu_seconds: user and system time of every process inside.
        peak_bytes: largest sum of resident memory seen inside, looked at once a second.
        largest_bytes: largest resident memory of any one process inside.
        hits, misses: compile cache, per compiler step.
        jobs: compilers at once, and why so many.
        times: each source, also those of a run before this one.
    """

    wheel: Path
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    largest_bytes: int
    hits: int
    misses: int
    jobs: JobPlan
    times: tuple[SourceTime, ...] = field(repr=False)

    @property
    def sources(self) -> int:
        """Sources compiled in this run."""
        return sum(not t.earlier for t in self.times)

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for ``--json``; sources the longest first."""
        return {
            "seconds": self.seconds,
            "cpu-seconds": self.cpu_seconds,
            "peak-bytes": self.peak_bytes,
            "largest-process-bytes": self.largest_bytes,
            "cache-hits": self.hits,
            "cache-misses": self.misses,
            "jobs": self.jobs.jobs,
            "jobs-reason": self.jobs.reason,
            "sources": self.sources,
            "per-source": [
                {"source": t.source, "step": t.step, "seconds": t.seconds, "earlier": t.earlier}
                for t in self.times
            ],
        }

    def summary(self) -> str:
        """One line for a person."""
        return (
            f"{self.sources} sources in {human_seconds(self.seconds)}, "
            f"{human_seconds(self.cpu_seconds)} of CPU time, peak memory "
            f"{human_bytes(self.peak_bytes)}, largest process "
            f"{human_bytes(self.largest_bytes)}; compile cache: {self.hits} hits, "
            f"{self.misses} misses"
        )


def compile_wheel(plan: CompilePlan, console: Console) -> Compiled:
    """Run the build to its raw wheel; what an earlier, killed run finished is kept.

    Raises:
        CompileError: a source or the configuration failed: its command, log and cause.
        OutOfMemoryError: a compiler was killed for memory; names the job count that fits.
        DiskFullError: no space left.
    """
    remove_tree(plan.work.out)
    make_directory(plan.work.out)
    make_directory(plan.cache)
    build_log = plan.work.logs / "build.log"
    build_log.unlink(missing_ok=True)
    orders = {"options": list(plan.options), "cache_program": SCCACHE, "environment": {}}
    console.say(f"{plan.jobs.jobs} compilers at once, {plan.jobs.reason}")
    with ExitStack() as stack:
        follower = Follower(
            plan.work.logs, console, stack, costs=read_costs(plan.costs), jobs=plan.jobs.jobs
        )
        before = dict(follower.events.runs)
        try:
            result = plan.sandbox.run(
                ["/opt/env/bin/python", "-I", "/opt/pinwheel/drive.py"],
                binds=binds_of(plan),
                env=environment_of(plan),
                chdir="/build/src",
                log=build_log,
                tick=follower.tick,
                stdin=json.dumps(orders).encode(),
            )
        finally:  # what is finished was worth knowing, also where the build was stopped
            record_costs(plan.costs, costs_of(follower.events.runs), follower.steps)
    if result.returncode != 0:
        raise _explain(plan, follower.events.failed(), build_log, result.returncode)
    wheels = sorted(plan.work.out.glob("*.whl"))
    if len(wheels) != 1:
        raise CompileError(
            "The back end ended well but left no single wheel.",
            evidence=[*(w.name for w in wheels), f"log: {build_log}"],
            next_step="Look into the log; the recipe's [build] options may be wrong.",
        )
    return _compiled(plan, wheels[0], source_times(follower.events.runs, before))


def source_times(
    runs: Mapping[str, SourceRun], before: Mapping[str, SourceRun]
) -> tuple[SourceTime, ...]:
    """Finished sources, the longest first; CMake's questions are none.

    Args:
        runs: by step.
        before: those of them that an earlier run of the same build had finished.
    """
    times = [
        SourceTime(run.source, step, run.seconds, before.get(step) is run)
        for step, run in runs.items()
        if run.code == 0 and run.seconds is not None and not is_probe(run.source)
    ]
    return tuple(sorted(times, key=lambda t: (-t.seconds, t.step)))


def binds_of(plan: CompilePlan) -> list[Bind]:
    """What the compile sees and where."""
    work = plan.work
    return [
        Bind(work.source, "/build/src", writable=True),
        Bind(work.logs, "/logs", writable=True),
        Bind(work.out, "/out", writable=True),
        Bind(plan.cache, "/cache", writable=True),
        Bind(plan.environment, "/opt/env"),
        Bind(plan.toolkit, "/opt/cuda"),
        Bind(plan.tools, "/opt/tools"),
        Bind(work.inside, "/opt/pinwheel"),
        *(Bind(work.dependencies / name, f"/opt/{name}") for name in plan.dependencies),
    ]


def environment_of(plan: CompilePlan) -> dict[str, str]:
    """The variables of the build; a recipe adds its own but cannot replace these."""
    # Later maps win, so the shortest prefix comes first.
    mapped = ("/opt/", "/opt/cuda/include/", f"/opt/env/{plan.site}/", "/build/src/")
    return {
        **plan.env,
        "CMAKE_TOOLCHAIN_FILE": "/opt/pinwheel/toolchain.cmake",
        "CUDA_HOME": "/opt/cuda",
        "MAX_JOBS": str(plan.jobs.jobs),
        "NVCC_THREADS": "1",
        "PATH": "/opt/env/bin:/opt/cuda/bin:/usr/bin:/bin",
        "PINWHEEL_PREFIX_MAP": " ".join(f"-ffile-prefix-map={p}=" for p in mapped),
        "SCCACHE_CACHE_SIZE": "100G",
        "SCCACHE_DIR": "/cache",
        "SCCACHE_IDLE_TIMEOUT": "0",
        "SCCACHE_SERVER_UDS": "/build/tmp/sccache.sock",
        "SETUPTOOLS_SCM_PRETEND_VERSION": plan.release,
        "SOURCE_DATE_EPOCH": str(plan.epoch),
        "TORCH_CUDA_ARCH_LIST": plan.capabilities,
    }


def _compiled(plan: CompilePlan, wheel: Path, times: tuple[SourceTime, ...]) -> Compiled:
    facts: dict[str, Any] = json.loads((plan.work.out / "result.json").read_text())
    stats = facts.get("cache", {}).get("stats", {})

    def count(name: str) -> int:
        counts = stats.get(name, {}).get("counts", {})
        return sum(int(v) for v in counts.values())

    return Compiled(
        wheel=wheel,
        seconds=float(facts["seconds"]),
        cpu_seconds=float(facts["cpu_seconds"]),
        peak_bytes=int(facts["peak_bytes"]),
        largest_bytes=int(facts["largest_process_bytes"]),
        hits=count("cache_hits"),
        misses=count("cache_misses"),
        jobs=plan.jobs,
        times=times,
    )


def _explain(
    plan: CompilePlan, failed: list[SourceRun], build_log: Path, code: int
) -> PinwheelError:
    """The error for a failed build: the first source that failed, or the configuration."""
    log = build_log
    what = "The build failed before or after compiling"
    command = ""
    if failed:
        run = failed[0]
        log = plan.work.logs / "sources" / Path(run.log).name
        what = f"{run.source} did not compile"
        code = run.code if run.code is not None else code
    text = _read(log)
    if failed:
        command, _, text = text.partition("\n\n")
    found = diagnose(text, code)
    evidence = [
        *([command] if command else []),
        f"cause: {found.evidence}",
        *(f"| {line}" for line in text.rstrip().splitlines()[-LOG_LINES:]),
        f"log: {log}",
        f"exit status {code}",
    ]
    if found.cause is Cause.DISK:
        return disk_full(plan.work.path, *evidence)
    if found.cause is Cause.MEMORY:
        fits, why = _fitting_jobs(plan, this_machine())
        return OutOfMemoryError(
            f"{what}: out of memory, with {plan.jobs.jobs} compilers at once ({plan.jobs.reason})",
            evidence=[*evidence, why],
            next_step=f"Run it again with --jobs {fits}: it goes on where it stopped."
            if fits < plan.jobs.jobs
            else "One compiler alone did not fit: this source needs more memory than there is.",
        )
    return CompileError(
        what,
        evidence=evidence,
        next_step="Correct the source, patch or recipe, then run the same command again: "
        "finished sources are kept.",
    )


def _fitting_jobs(plan: CompilePlan, machine: Machine) -> tuple[int, str]:
    """A job count for the next try, below the one that failed, and what it rests on."""
    largest = 0
    with suppress(OSError, ValueError, KeyError):
        result = json.loads((plan.work.out / "result.json").read_text())
        largest = int(result["largest_process_bytes"])
    # What was killed had not reached its peak, so one less is the most to hope for.
    most = max(1, plan.jobs.jobs - 1)
    if not largest:
        return most, "largest compiler: unknown"
    fits = max(1, min(most, machine.memory // largest))
    return fits, (
        f"largest compiler so far: {human_bytes(largest)}, "
        f"{human_bytes(machine.memory)} available now"
    )


def _read(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"(no log: {error.strerror})"

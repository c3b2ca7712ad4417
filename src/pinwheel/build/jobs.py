"""How many compilers run at once: by processors and by memory, with the reason in words."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """What a build may use here.

    Attributes:
        cores: processors this process may run on.
        memory: bytes that can be had without swapping.
        memory_from: where that number was read.
    """

    cores: int
    memory: int
    memory_from: str


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job count and why it is what it is."""

    jobs: int
    reason: str


def plan_jobs(machine: Machine, job_gib: float, wanted: int | None = None) -> JobPlan:
    """The job count for a machine.

    Args:
        machine: what there is.
        job_gib: GiB one compiler may take at its peak (the recipe's ``job-memory-gib``).
        wanted: a count asked for by hand; taken as it is, with a remark when memory is short.

    Returns:
        At least one job: a single compiler is tried even where memory looks short.
    """
    fitting = int(machine.memory / (job_gib * GIB))
    have = f"{machine.memory / GIB:.1f} GiB available ({machine.memory_from})"
    if wanted is not None:
        remark = ""
        if wanted > max(fitting, 1):
            remark = f"; memory suffices for {max(fitting, 1)} at {job_gib:g} GiB each, {have}"
        return JobPlan(wanted, f"asked for{remark}")
    if fitting < 1:
        return JobPlan(1, f"one, although it may take {job_gib:g} GiB: {have}")
    if fitting < machine.cores:
        return JobPlan(
            fitting,
            f"by memory: {have}, {job_gib:g} GiB a job; {machine.cores - fitting} of "
            f"{machine.cores} processors stay idle",
        )
    return JobPlan(machine.cores, f"by processors: {machine.cores}; {have}, {job_gib:g} GiB a job")


def this_machine(root: Path = Path("/")) -> Machine:
    """Read processors and memory of this host, and of the control groups (v2) it is held in."""
    cores = len(os.sched_getaffinity(0))
    memory, source = _available(root / "proc/meminfo"), "MemAvailable"
    for group in _groups(root):
        quota = _words(group / "cpu.max")
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]) > 0:
            cores = max(1, min(cores, int(quota[0]) // int(quota[1])))
        limit = _number(_words(group / "memory.max"))
        used = _number(_words(group / "memory.current"))
        if limit is not None and used is not None:
            left = limit - max(0, used - _inactive_file(group))
            if left < memory:
                memory, source = max(left, 0), "memory.max of the control group"
    return Machine(cores, memory, source)


def _groups(root: Path) -> list[Path]:
    """This process's control group and those above it: the tightest limit of any holds."""
    top = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            path = PurePosixPath(line.removeprefix("0::/"))
            if ".." in path.parts:  # above what this control group namespace shows
                break
            return [top / path, *(top / parent for parent in path.parents)]
    return [top]


def _inactive_file(group: Path) -> int:
    """Bytes of page cache the kernel gives back first; a group that has just unpacked gigabytes
    counts them as used (kubelet's working set leaves them out too)."""
    for line in _lines(group / "memory.stat"):
        key, _, value = line.partition(" ")
        if key == "inactive_file" and value.isdigit():
            return int(value)
    return 0


def _available(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0  # unknown memory is no memory: one job


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, ValueError):
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _number(words: list[str]) -> int | None:
    return int(words[0]) if words and words[0].isdigit() else None

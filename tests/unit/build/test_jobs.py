from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.build import jobs as module
from pinwheel.build.jobs import GIB, Machine, plan_jobs, this_machine


@pytest.mark.parametrize(
    ("memory", "cores", "job_gib", "jobs", "words"),
    [
        (64 * GIB, 16, 4.0, 16, "by processors: 16"),  # D7
        (16 * GIB, 16, 4.0, 4, "by memory: 16.0 GiB available"),  # D7
        (64 * 10**9, 16, 4.0, 14, "by memory: 59.6 GiB available"),
        (16 * 10**9, 16, 4.0, 3, "4 GiB a job; 13 of 16 processors stay idle"),
        (24 * GIB, 2, 4.0, 2, "by processors: 2"),
        (3 * GIB, 8, 4.0, 1, "one, although it may take 4 GiB"),
        (0, 8, 4.0, 1, "0.0 GiB available"),
    ],
)
def test_as_many_as_memory_and_processors_allow(
    memory: int, cores: int, job_gib: float, jobs: int, words: str
) -> None:
    plan = plan_jobs(Machine(cores, memory, "MemAvailable"), job_gib)
    assert plan.jobs == jobs
    assert words in plan.reason
    assert "MemAvailable" in plan.reason


def test_a_count_asked_for_is_taken_with_a_remark() -> None:
    machine = Machine(16, 16 * GIB, "MemAvailable")
    assert plan_jobs(machine, 4.0, 4).reason == "asked for"
    plan = plan_jobs(machine, 4.0, 32)
    assert plan.jobs == 32
    assert "memory suffices for 4 at 4 GiB each" in plan.reason


@given(
    st.integers(0, 1 << 44),
    st.integers(1, 512),
    st.floats(0.01, 64, allow_nan=False),
    st.one_of(st.none(), st.integers(1, 1024)),
)
@settings(deadline=None, max_examples=60)
def test_never_none_and_never_more_than_processors(
    memory: int, cores: int, job_gib: float, wanted: int | None
) -> None:
    plan = plan_jobs(Machine(cores, memory, "x"), job_gib, wanted)
    assert plan.jobs == wanted if wanted is not None else 1 <= plan.jobs <= cores
    assert plan.jobs == 1 or wanted or plan.jobs * job_gib * GIB <= memory
    assert plan.reason


class Host:
    """A /proc and /sys of files."""

    def __init__(self, root: Path, available: int) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: 99 kB\nMemAvailable:  {available // 1024} kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, name: str = "", **files: str) -> None:
        for key, text in files.items():
            self.write(f"sys/fs/cgroup/{name}/{key.replace('_', '.', 1)}", text)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(16)))
    return Host(tmp_path, 64 * GIB)


def test_a_host_without_control_groups(host: Host) -> None:
    assert this_machine(host.root) == Machine(16, 64 * GIB, "MemAvailable")


def test_limits_of_the_control_group(host: Host) -> None:
    host.group(cpu_max="400000 100000\n", memory_max=f"{8 * GIB}\n", memory_current=f"{2 * GIB}\n")
    assert this_machine(host.root) == Machine(4, 6 * GIB, "memory.max of the control group")


def test_page_cache_that_can_be_given_back_is_not_used_memory(host: Host) -> None:
    host.group(
        memory_max=f"{8 * GIB}",
        memory_current=f"{7 * GIB}",
        memory_stat=f"anon 5\ninactive_file {5 * GIB}\nactive_file 7\n",
    )
    assert this_machine(host.root).memory == 6 * GIB


@pytest.mark.parametrize("quota", ["max 100000\n", "", "max\n", "x y z\n", "100 0\n"])
def test_no_limit_is_no_limit(host: Host, quota: str) -> None:
    host.group(cpu_max=quota, memory_max="max\n", memory_current="12\n")
    assert this_machine(host.root) == Machine(16, 64 * GIB, "MemAvailable")


def test_less_than_one_processor_is_one(host: Host) -> None:
    host.group(cpu_max="50000 100000")
    assert this_machine(host.root).cores == 1


def test_more_used_than_allowed_is_nothing_left(host: Host) -> None:
    host.group(memory_max="100", memory_current="200")
    assert this_machine(host.root).memory == 0


def test_the_tightest_group_above_this_process_counts(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/user.slice/build.scope\n")
    host.group("user.slice", memory_max=f"{8 * GIB}", memory_current="0", cpu_max="max 100000")
    host.group(
        "user.slice/build.scope",
        memory_max=f"{32 * GIB}",
        memory_current="0",
        cpu_max="200000 100000",
    )
    assert this_machine(host.root) == Machine(2, 8 * GIB, "memory.max of the control group")


@pytest.mark.parametrize("line", ["0::/../../other\n", "1:name=x:/y\n", "0::/gone\n", "junk"])
def test_a_group_that_cannot_be_seen_is_left_out(host: Host, line: str) -> None:
    host.write("proc/self/cgroup", line)
    host.group(memory_max=f"{8 * GIB}", memory_current="0")
    assert this_machine(host.root).memory == 8 * GIB


def test_unknown_memory_means_one_job(host: Host) -> None:
    for text in ("", "MemAvailable: many kB\n", "MemAvailable:\n"):
        host.write("proc/meminfo", text)
        assert plan_jobs(this_machine(host.root), 4.0).jobs == 1


def test_this_host() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.memory > 0

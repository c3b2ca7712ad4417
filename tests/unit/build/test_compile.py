from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "buildroot"))
from root_kit import needs_bwrap, tiny_root

from pinwheel.build.compile import CompilePlan, compile_wheel, environment_of
from pinwheel.build.costs import read_costs
from pinwheel.build.jobs import JobPlan
from pinwheel.build.work import Work
from pinwheel.buildroot.sandbox import Sandbox
from pinwheel.console import Console
from pinwheel.errors import CompileError, DiskFullError, OutOfMemoryError

pytestmark = needs_bwrap

RESULT = {
    "code": 0,
    "seconds": 12.5,
    "cpu_seconds": 20.0,
    "peak_bytes": 1 << 30,
    "largest_process_bytes": 1 << 29,
    "cache": {
        "stats": {
            "cache_hits": {"counts": {"CUDA": 2, "C/C++": 1}},
            "cache_misses": {"counts": {"CUDA": 4}},
        }
    },
}
PROBE = "build/temp/CMakeFiles/CMakeScratch/src.c"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_root(tmp_path_factory.mktemp("tiny") / "root")


@pytest.fixture
def plan(root: Path, tmp_path: Path) -> CompilePlan:
    work = Work(tmp_path / "work")
    for directory in (work.source, work.logs / "sources", work.inside, tmp_path / "env/bin"):
        directory.mkdir(parents=True)
    for name in ("toolkit", "tools"):
        (tmp_path / name).mkdir()
    return CompilePlan(
        work=work,
        sandbox=Sandbox(root, ("bwrap",)),
        toolkit=tmp_path / "toolkit",
        environment=tmp_path / "env",
        site="lib/python3.11/site-packages",
        tools=tmp_path / "tools",
        cache=tmp_path / "cache",
        capabilities="8.0;9.0",
        jobs=JobPlan(4, "by processors: 4"),
        env={"VLLM_TARGET_DEVICE": "cuda", "MAX_JOBS": "99", "PATH": "/evil"},
        options=("--py-limited-api=cp38",),
        dependencies=(),
        release="0.6.3",
        epoch=1_728_941_239,
        costs=tmp_path / "costs.json",
    )


@pytest.fixture
def build(plan: CompilePlan) -> Callable[..., str]:
    """Plays the build inside: events, logs, results, an exit status."""

    def play(
        runs: list[tuple[str, int, str]],
        *,
        code: int = 0,
        said: str = "",
        wheels: tuple[str, ...] = ("p-1-py3-none-any.whl",),
    ) -> str:
        lines, logs = [], []
        for source, status, log in runs:
            step = f"{source}.o"
            common = {
                "step": step,
                "source": source,
                "log": f"/logs/sources/{Path(source).name}.log",
            }
            lines.append({"event": "start", "time": 1.0, **common})
            lines.append({"event": "end", "time": 2.0, "seconds": 60.0, "code": status, **common})
            logs.append((f"{Path(source).name}.log", f"command: nvcc -c {source}\n\n{log}"))
        events = "".join(json.dumps(line) + "\n" for line in lines)
        (plan.work.inside / "events").write_text(events)
        (plan.work.inside / "result").write_text(json.dumps(RESULT))
        for name, text in logs:
            (plan.work.logs / "sources" / name).write_text(text)
        (plan.work.inside / "said").write_text(said)
        script = plan.environment / "bin/python"
        script.write_text(
            "#!/usr/bin/sh\n"
            "cat > /out/orders\n"
            "cat /opt/pinwheel/events >> /logs/events.jsonl\n"
            "cat /opt/pinwheel/result > /out/result.json\n"
            "cat /opt/pinwheel/said\n"
            + "".join(f"touch /out/{wheel}\n" for wheel in wheels)
            + f"exit {code}\n"
        )
        script.chmod(0o755)
        err = StringIO()
        play.said = err  # type: ignore[attr-defined]
        made = compile_wheel(plan, Console(err=err))
        play.made = made  # type: ignore[attr-defined]
        assert made.wheel == plan.work.out / wheels[0]
        assert made.wheel.exists()
        return made.summary() + "\n" + err.getvalue()

    return play


def test_a_build_is_counted(plan: CompilePlan, build: Callable[..., str]) -> None:
    said = build([("csrc/a.cu", 0, ""), (PROBE, 1, "no such flag"), ("csrc/b.cpp", 0, "")])
    assert "2 sources in 12 s" in said
    assert "compile cache: 3 hits, 4 misses" in said
    assert "4 compilers at once, by processors: 4" in said
    assert "peak memory 1.1 GB, largest process 536.9 MB" in said
    orders = json.loads((plan.work.out / "orders").read_text())
    assert orders["options"] == ["--py-limited-api=cp38"]
    assert read_costs(plan.costs).seconds == {"csrc/a.cu.o": 60.0, "csrc/b.cpp.o": 60.0}


def test_the_figures_of_a_build(build: Callable[..., str]) -> None:
    build([("csrc/a.cu", 0, ""), (PROBE, 1, "no such flag"), ("csrc/b.cpp", 0, "")])
    figures = build.made.as_dict()  # type: ignore[attr-defined]
    assert figures.pop("per-source") == [
        {"source": source, "step": f"{source}.o", "seconds": 60.0, "earlier": False}
        for source in ("csrc/a.cu", "csrc/b.cpp")
    ]
    assert figures == {
        "seconds": 12.5,
        "cpu-seconds": 20.0,
        "peak-bytes": 1 << 30,
        "largest-process-bytes": 1 << 29,
        "cache-hits": 3,
        "cache-misses": 4,
        "jobs": 4,
        "jobs-reason": "by processors: 4",
        "sources": 2,
    }


def test_sources_of_a_run_before_this_one_are_told_apart(build: Callable[..., str]) -> None:
    with pytest.raises(CompileError):
        build(
            [("csrc/a.cu", 0, ""), ("csrc/b.cu", 0, ""), ("csrc/c.cu", 2, "c.cu(1): error: x")],
            code=1,
        )
    said = build([("csrc/b.cu", 0, ""), ("csrc/c.cu", 0, "")])
    assert "2 sources in" in said
    times = build.made.times  # type: ignore[attr-defined]
    assert {t.source: t.earlier for t in times} == {
        "csrc/a.cu": True,
        "csrc/b.cu": False,  # compiled again: what it was made of had changed
        "csrc/c.cu": False,
    }


def test_a_recipe_cannot_replace_what_the_build_sets(plan: CompilePlan) -> None:
    env = environment_of(plan)
    assert env["MAX_JOBS"] == "4"
    assert env["PATH"] == "/opt/env/bin:/opt/cuda/bin:/usr/bin:/bin"
    assert env["VLLM_TARGET_DEVICE"] == "cuda"
    assert env["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"
    # D1: setuptools-scm asks neither git nor PKG-INFO, of which a source tree may have neither.
    assert env["SETUPTOOLS_SCM_PRETEND_VERSION"] == "0.6.3"
    # The last map that fits wins, so the most special one comes last.
    assert env["PINWHEEL_PREFIX_MAP"].split()[0] == "-ffile-prefix-map=/opt/="


def test_a_failing_source_shows_command_log_and_cause(
    plan: CompilePlan, build: Callable[..., str]
) -> None:
    log = 'csrc/b.cu(7): error: identifier "x" is undefined\n'
    runs = [("csrc/a.cu", 0, ""), (PROBE, 1, "probe failed"), ("csrc/b.cu", 2, log)]
    with pytest.raises(CompileError, match=r"csrc/b\.cu did not compile") as caught:
        build(runs, code=1, said="ninja: build stopped: subcommand failed.\n")
    evidence = "\n".join(caught.value.evidence)
    assert "command: nvcc -c csrc/b.cu" in evidence
    assert 'cause: csrc/b.cu(7): error: identifier "x" is undefined' in evidence
    assert f"log: {plan.work.logs}/sources/b.cu.log" in evidence
    assert "exit status 2" in evidence
    assert "probe failed" not in evidence
    # What was finished is known for the next try.
    assert read_costs(plan.costs).seconds == {"csrc/a.cu.o": 60.0}


def test_a_compiler_killed_for_memory_names_the_jobs_that_fit(build: Callable[..., str]) -> None:
    """D2"""
    log = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"
    with pytest.raises(OutOfMemoryError, match="4 compilers at once") as caught:
        build([("csrc/a.cu", 9, log)], code=1)
    assert "--jobs 3" in caught.value.next_step
    assert "cicc" in "\n".join(caught.value.evidence)


def test_a_full_disk_is_said_to_be_one(build: Callable[..., str]) -> None:
    """D10"""
    with pytest.raises(DiskFullError):
        build([("csrc/a.cu", 1, "as: a.o: No space left on device\n")], code=1)


def test_a_failing_configuration_shows_the_builds_log(
    plan: CompilePlan, build: Callable[..., str]
) -> None:
    said = "-- looking\nCMake Error at CMakeLists.txt:12 (find_package):\n  no Torch\n"
    with pytest.raises(CompileError, match="before or after compiling") as caught:
        build([(PROBE, 1, "")], code=1, said=said)
    assert "cause: CMake Error at CMakeLists.txt:12 (find_package):" in caught.value.evidence
    assert f"log: {plan.work.logs / 'build.log'}" in caught.value.evidence


def test_yesterdays_failure_is_not_todays(plan: CompilePlan, build: Callable[..., str]) -> None:
    with pytest.raises(CompileError, match="csrc/a"):
        build([("csrc/a.cu", 2, "a.cu(1): error: old\n")], code=1)
    with pytest.raises(CompileError, match="csrc/b"):
        build([("csrc/b.cu", 2, "b.cu(1): error: new\n")], code=1)


@pytest.mark.parametrize("wheels", [(), ("a-1-py3-none-any.whl", "b-1-py3-none-any.whl")])
def test_no_single_wheel_is_an_error(build: Callable[..., str], wheels: tuple[str, ...]) -> None:
    with pytest.raises(CompileError, match="no single wheel"):
        build([("csrc/a.cu", 0, "")], wheels=wheels)

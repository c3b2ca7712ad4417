"""Runs the real command on the test project, each run a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinwheel.build.progress import Events, SourceRun, is_probe
from pinwheel.files import sha256_file
from pinwheel.matrix.models import load_matrix
from pinwheel.recipe.data import data_digest
from pinwheel.recipe.load import load_recipe
from pinwheel.recipe.lock import Lock, Role
from pinwheel.recipe.lockfile import lock_path, read_lock, write_lock
from pinwheel.recipe.stale import matrix_slice_digest, patch_inputs
from pinwheel.settings import load_settings

COMBO = "cu130-torch2.11-pinprobe0.1.0"
TOOLKIT = "wheels-13.0.88"
ROOT = os.geteuid() == 0
#: What is named by its content and costs minutes to make: taken from the machine's own cache.
SHARED = ("store", "roots", "toolkits", "tools", "envs", "uv")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How one run ended."""

    code: int
    out: str
    err: str
    seconds: float

    def json(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.out)
        return data

    def __str__(self) -> str:
        return (
            f"exit {self.code} after {self.seconds:.0f} s\n{self.out[-2000:]}\n{self.err[-6000:]}"
        )


@dataclass(frozen=True, kw_only=True)
class Place:
    """A project, and where its builds keep and put things."""

    project: Path
    dist: Path
    cache: Path
    index: str

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PINWHEEL_")}
        kept = ("PINWHEEL_MIRRORS_DEBIAN", "PINWHEEL_MIRRORS_DEBIAN_SNAPSHOT")
        return {
            **inherited,
            **{k: os.environ[k] for k in kept if k in os.environ},
            "PINWHEEL_PROJECT": str(self.project),
            "PINWHEEL_DIST": str(self.dist),
            "PINWHEEL_CACHE": str(self.cache),
            "PINWHEEL_MIRRORS_INDEX": self.index,
        }

    def command(self, *arguments: str, prefix: Sequence[str] = ()) -> list[str]:
        return [*prefix, sys.executable, "-m", "pinwheel.cli.main", *arguments]

    def run(self, *arguments: str, prefix: Sequence[str] = (), timeout: float = 1500) -> Answer:
        """``pinwheel`` with these arguments, to its end; ``prefix`` is put before the command."""
        started = time.monotonic()
        done = subprocess.run(
            self.command(*arguments, prefix=prefix),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        answer = Answer(
            code=done.returncode,
            out=done.stdout,
            err=done.stderr,
            seconds=time.monotonic() - started,
        )
        print(f"$ pinwheel {' '.join(arguments)}", answer, sep="\n")  # shown when a test fails
        return answer

    def build(self, *arguments: str, prefix: Sequence[str] = ()) -> Answer:
        """``pinwheel build`` of the test project's combo, with a report as JSON."""
        return self.run(*BUILD, *arguments, prefix=prefix)

    @property
    def wheels(self) -> list[Path]:
        return sorted(self.dist.rglob("*.whl"))

    @property
    def files(self) -> list[Path]:
        """Every file below dist, hidden ones too."""
        return sorted(p for p in self.dist.rglob("*") if not p.is_dir())

    @property
    def lock(self) -> Lock:
        return read_lock(self.lock_file)

    @property
    def lock_file(self) -> Path:
        return self.recipe.with_name(f"lock.{TOOLKIT}.toml")

    @property
    def recipe(self) -> Path:
        return self.project / "recipes" / COMBO / "recipe.toml"

    @property
    def work(self) -> Path:
        """The working directory of the one build made here."""
        (path,) = (p for p in (self.cache / "work").iterdir() if p.is_dir())
        return path

    def compiles(self) -> dict[str, list[SourceRun]]:
        """Every compile of a source so far, whichever run it belonged to, by step."""
        runs: dict[str, list[SourceRun]] = {}
        for run in all_runs(self.work / "logs" / "events.jsonl"):
            runs.setdefault(run.step, []).append(run)
        return runs

    def with_project(self, project: Path) -> Place:
        """The same place with a copy of its project that may be written to."""
        shutil.copytree(self.project, project)
        return dataclasses.replace(self, project=project)

    def change(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def freshen(self) -> None:
        """Make the lock follow from recipe and patches, as `pinwheel lock` would, offline."""
        matrix = load_matrix(self.project / "arch_matrix.toml")
        settings = load_settings(env=self.environment())
        loaded = load_recipe(settings, COMBO)
        lock = read_lock(lock_path(loaded, TOOLKIT))
        inputs = [*(i for i in lock.inputs if Role.PATCH not in i.roles), *patch_inputs(loaded)]
        fresh = lock.model_copy(
            update={
                "recipe_sha256": loaded.digest,
                "matrix_sha256": matrix_slice_digest(matrix, loaded, TOOLKIT),
                "data_sha256": data_digest(TOOLKIT),
                "inputs": tuple(
                    sorted(inputs, key=lambda i: (i.source, i.name, i.version, i.path))
                ),
            }
        )
        write_lock(fresh, self.lock_file)


@dataclass(frozen=True)
class Made:
    """A place with one finished build in it."""

    place: Place
    answer: Answer
    wheel: Path
    sha256: str


def made(place: Place, answer: Answer) -> Made:
    assert answer.code == 0, answer
    (wheel,) = place.wheels
    assert answer.json()["wheel"] == str(wheel)
    return Made(place, answer, wheel, sha256_file(wheel))


#: Two compilers at once: what CI's machines have processors for, whatever this one has.
BUILD = ("build", "--combo", COMBO, "--jobs", "2", "--json")


def all_runs(path: Path) -> Iterator[SourceRun]:
    """Each compile of a source an events file tells of; what never ended has no ``seconds``."""
    open_runs: dict[str, SourceRun] = {}
    for line in path.read_text().splitlines(keepends=True):
        event = json.loads(line)
        if is_probe(event["source"]):
            continue
        if event["event"] == "start":
            run = SourceRun(event["step"], event["source"], event["log"], event["time"])
            open_runs[run.step] = run
            yield run  # completed below, while the caller goes on
        else:
            run = open_runs[event["step"]]
            run.seconds, run.code = event["seconds"], event["code"]


def fresh_cache(path: Path, **instead: Path) -> Path:
    """A cache with nothing built or compiled in it that shares all else with the machine's own.

    ``instead`` names directories to use for a part of it: ``store``, ``sccache``.
    """
    own = load_settings(Path(__file__).parent).cache
    path.mkdir()
    shared = {name: own / name for name in SHARED} | instead
    for name, target in shared.items():
        target.mkdir(parents=True, exist_ok=True)
        (path / name).symlink_to(target)
    return path


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own of that size, in memory; needs root."""
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    """Change a mounted file system's options."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


def stopped(path: Path, timeout: float = 20) -> bool:
    """Whether no process is left whose command line names ``path``."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not any(str(path).encode() in line for line in _command_lines()):
            return True
        time.sleep(0.2)
    return False


def _command_lines() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / "cmdline").read_bytes()
        except OSError:
            continue  # ended while we looked


def wait_for(
    reached: Callable[[], object], process: subprocess.Popen[bytes], timeout: float
) -> None:
    """Look at a running build until ``reached`` is true."""
    deadline = time.monotonic() + timeout
    while not reached():
        assert process.poll() is None, "the build ended first"
        assert time.monotonic() < deadline, "it did not come so far in time"
        time.sleep(0.1)


Reached = Callable[[subprocess.Popen[bytes]], Any]


def kill_when(place: Place, log: Path, reached: Reached, *arguments: str) -> Any:
    """Start ``pinwheel`` and end it by SIGKILL once ``reached`` has given its answer."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            place.command(*arguments), env=place.environment(), stdout=sink, stderr=sink
        )
        try:
            seen = reached(process)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == -9, log.read_text()
    assert stopped(place.cache), "a killed build left processes behind"
    assert place.files == []
    return seen


def once_compiled(place: Place, count: int, timeout: float = 1500) -> Reached:
    """Waits until a build has compiled that many sources; gives the steps that ended well."""

    def reached(process: subprocess.Popen[bytes]) -> set[str]:
        wait_for(lambda: list(place.cache.glob("work/*/logs/events.jsonl")), process, timeout)
        events = Events(place.work / "logs" / "events.jsonl")
        ended: list[SourceRun] = []

        def enough() -> bool:
            ended.extend(r for r in events.poll() if r.code == 0 and not is_probe(r.source))
            return len(ended) >= count

        wait_for(enough, process, timeout)
        done = {step for step, runs in place.compiles().items() if runs[0].code == 0}
        time.sleep(1)  # ninja, too, has to have seen that they ended
        return done

    return reached

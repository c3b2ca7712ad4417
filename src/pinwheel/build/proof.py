"""Proof on the spot: the finished wheel installed from the run lock, loaded and looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinwheel.build.bench import Bench
from pinwheel.build.work import Work
from pinwheel.buildroot.environment import discard_environment, install_environment
from pinwheel.buildroot.sandbox import Bind
from pinwheel.console import Console
from pinwheel.errors import ProofError
from pinwheel.files import make_directory
from pinwheel.recipe.lock import Lock, Role
from pinwheel.recipe.models import Recipe
from pinwheel.settings import Settings

# One process must hold one copy of these; two have two registries and two allocators.
_SINGLE = re.compile(r"lib(torch|torch_cpu|torch_cuda|c10|c10_cuda|cudart)\b.*\.so[.\d]*$")
# Loaded once the driver is there; the stub stands in where there is none.
_DRIVER = "/opt/driver"


@dataclass(frozen=True, slots=True)
class Proof:
    """What was seen of the installed wheel.

    Attributes:
        version: ``__version__`` of the package.
        torch: version of the torch it was loaded into.
        operators: library -> operators that loading it registered.
        entry_points: command -> first line of its help.
        libraries: soname -> the one file all of them resolve it to.
    """

    version: str
    torch: str
    operators: Mapping[str, tuple[str, ...]]
    entry_points: Mapping[str, str]
    libraries: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "version": self.version,
            "torch": self.torch,
            "operators": {k: list(v) for k, v in self.operators.items()},
            "entry-points": dict(self.entry_points),
            "libraries": dict(self.libraries),
        }


def prove_wheel(
    wheel: Path,
    version: str,
    recipe: Recipe,
    lock: Lock,
    bench: Bench,
    work: Work,
    settings: Settings,
    console: Console,
) -> Proof:
    """Install the wheel with its run lock into a clean environment and look at it from inside.

    Where there is no driver the toolkit's libcuda stub stands in, so that libraries load and
    register; no kernel runs. The environment is removed afterwards, whatever was found.

    Raises:
        EnvironmentInstallError: it does not install beside its locked requirements.
        ProofError: it is not what the recipe expects; every finding is listed.
    """
    environment = install_environment(
        lock.with_role(Role.RUN),
        bench.files,
        extra={wheel.name: wheel},
        sandbox=bench.sandbox,
        tools=bench.tools,
        cache=settings.cache / "envs",
        label="proof",
        console=console,
    )
    try:
        return judge(
            _look(environment, wheel.name, recipe, bench, work, console),
            wheel.name,
            version,
            recipe,
        )
    finally:  # of gigabytes, and the next proof makes its own
        discard_environment(environment)


def _look(
    environment: Path, wheel: str, recipe: Recipe, bench: Bench, work: Work, console: Console
) -> Mapping[str, Any]:
    """What the probe finds in the environment."""
    orders = {
        "module": recipe.proof.module,
        "entry_points": [list(words) for words in recipe.proof.entry_points],
        "libraries": {n: list(e.after) for n, e in sorted(recipe.extensions.items())},
    }
    make_directory(work.out)
    (work.out / "findings.json").unlink(missing_ok=True)
    console.say(
        f"proof: importing {recipe.proof.module}, loading {len(recipe.extensions)} libraries"
    )
    with console.progress(0, "steps", "proof") as progress:
        result = bench.sandbox.run(
            ["/opt/env/bin/python", "-I", "/opt/pinwheel/probe.py"],
            binds=[
                Bind(environment, "/opt/env"),
                Bind(work.inside, "/opt/pinwheel"),
                Bind(work.out, "/out", writable=True),
                Bind(bench.toolkit.path / "lib64/stubs", _DRIVER),
            ],
            env={
                "LD_LIBRARY_PATH": _DRIVER,
                "PATH": "/opt/env/bin:/usr/bin:/bin",
                # Nothing is sent anywhere (there is no network) and nothing is waited for.
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
            },
            tick=progress.tick,
            stdin=json.dumps(orders).encode(),
        )
    try:
        seen = json.loads((work.out / "findings.json").read_text())
    except (OSError, ValueError) as error:
        raise ProofError(
            f"The probe of {wheel} did not answer.",
            evidence=result.output.strip().splitlines()[-20:],
            next_step="Run the same command again: the environment is made anew. If that does not "
            "help, the build root may be damaged: remove the cache's roots directory.",
        ) from error
    return dict(seen)


def judge(seen: Mapping[str, Any], name: str, version: str, recipe: Recipe) -> Proof:
    """Compare what the probe saw with what the recipe expects.

    Raises:
        ProofError: something differs; all of it is listed.
    """
    wrong: list[str] = []
    imported = seen["import"]
    found = imported["found"] or {}
    if imported["code"] != 0:
        wrong += [f"import {recipe.proof.module} failed:", *_tail(imported)]
    elif found.get("version") != version:
        wrong.append(f"{recipe.proof.module}.__version__ is {found.get('version')}, not {version}")
    helps: dict[str, str] = {}
    for command, answer in seen["entry_points"].items():
        lines = [line for line in answer["output"].splitlines() if line.strip()]
        usage = [line for line in lines if line.lower().startswith("usage")]
        if answer["code"] != 0 or not usage:
            wrong += [f"`{command}` ended with {answer['code']}:", *_tail(answer)]
        else:
            helps[command] = usage[0].strip()
    operators: dict[str, tuple[str, ...]] = {}
    torch = ""
    files: dict[str, set[str]] = {}
    _collect(files, seen["torch_itself"])
    for library, facts in seen["libraries"].items():
        load = facts["load"]
        if load["code"] != 0 or not load["found"]:
            wrong += [f"{library} does not load:", *_tail(load)]
            continue
        torch = load["found"]["torch"]
        operators[library] = tuple(load["found"]["operators"])
        expected = set(recipe.extensions[library].operators)
        there = set(operators[library])
        wrong += [f"{library}: operator {o} is missing" for o in sorted(expected - there)]
        wrong += [f"{library}: operator {o} is not expected" for o in sorted(there - expected)]
        lost = [s for s, f in facts["resolved"].items() if f == "not found"]
        wrong += [f"{library}: {soname} is not found with torch's library path" for soname in lost]
        _collect(files, facts["resolved"])
        _collect(files, {Path(m).name: m for m in load["found"]["maps"]})
    for soname, paths in sorted(files.items()):
        if len(paths) > 1:
            wrong.append(f"two copies of {soname}: {' and '.join(sorted(paths))}")
    if wrong:
        raise ProofError(
            f"{name} is not what its recipe says.",
            evidence=wrong,
            next_step="If the difference is meant, state it in the recipe "
            "([extensions], [proof]); otherwise correct source or patches. No wheel was written.",
        )
    single = {soname: next(iter(paths)) for soname, paths in sorted(files.items())}
    return Proof(version, torch, operators, helps, single)


def _collect(files: dict[str, set[str]], resolved: Mapping[str, str]) -> None:
    """Group the libraries that must be single by what they are, whatever their exact file name."""
    for soname, path in resolved.items():
        match = _SINGLE.match(soname)
        if match and path != "not found":
            files.setdefault(f"lib{match[1]}", set()).add(path)


def _tail(answer: Mapping[str, Any]) -> list[str]:
    return [f"| {line}" for line in str(answer["output"]).rstrip().splitlines()[-12:]]

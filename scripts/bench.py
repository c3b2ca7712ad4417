"""Measures what pinwheel claims of its speed, as ratios against named peers in one run.

Run by ``./nox -s bench``. Nothing here passes or fails: a busy machine is not a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HELP = {
    "pinwheel --help": ("-m", "pinwheel.cli.main", "--help"),
    "auditwheel --help": ("-m", "auditwheel", "--help"),
    "nox --help": ("-m", "nox", "--help"),
    "python -c ''": ("-c", ""),
}
# Runs a command and says what it took. A small process of its own: a program counts at its start
# as large as the one that starts it.
MEASURE = """
import json, os, subprocess, sys, time
before = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, used = os.wait4(child.pid, 0)
wall = time.perf_counter() - before
cpu = used.ru_utime + used.ru_stime
print(json.dumps([wall, cpu, used.ru_maxrss, os.waitstatus_to_exitcode(status)]))
"""
Command = Sequence[str | Path]


@dataclass(frozen=True)
class Cost:
    """What running something took: seconds, seconds of all processors, bytes."""

    wall: float
    cpu: float
    memory: int


def measured(*commands: Command, environment: Mapping[str, str]) -> Cost:
    """Commands run one after the other: times are summed, of the memory the largest counts.

    Raises:
        SystemExit: one ends with an error.
    """
    costs = []
    for command in commands:
        line = [sys.executable, "-IS", "-c", MEASURE, *map(str, command)]
        done = subprocess.run(line, env=environment, check=True, capture_output=True, text=True)
        wall, cpu, memory, code = json.loads(done.stdout)
        if code != 0:
            sys.exit(f"exit code {code}: {' '.join(map(str, command))}")
        costs.append(Cost(wall, cpu, memory * 1024))
    return Cost(sum(c.wall for c in costs), sum(c.cpu for c in costs), max(c.memory for c in costs))


def in_turn(
    rows: Mapping[str, Sequence[Command]], rounds: int, environment: Mapping[str, str]
) -> dict[str, Cost]:
    """The median of ``rounds`` runs of each, in turn, so that noise falls on all alike."""
    found: dict[str, list[Cost]] = {name: [] for name in rows}
    for _ in range(rounds + 1):
        for name, commands in rows.items():
            found[name].append(measured(*commands, environment=environment))
    # The first round warms the disk cache and the compiled modules.
    return {name: median(costs[1:]) for name, costs in found.items()}


def median(costs: Iterable[Cost]) -> Cost:
    """Of each figure."""
    wall, cpu, memory = zip(*((c.wall, c.cpu, c.memory) for c in costs), strict=True)
    return Cost(statistics.median(wall), statistics.median(cpu), int(statistics.median(memory)))


def official_wheel(where: Path) -> Path:
    """The wheel that the first recipe's lock names for comparison, under its own name."""
    from official_kit import fetched

    from pinwheel.recipe.lock import Role
    from pinwheel.recipe.lockfile import read_lock

    (item,) = read_lock(min(ROOT.glob("recipes/*/lock.*.toml"))).with_role(Role.REFERENCE)
    return fetched(item, where)


def nm_there(where: Path) -> tuple[str, Path]:
    """The host's ``nm``, or that of the build root where it has none; with what it is."""
    from peers_kit import tools

    if found := shutil.which("nm"):
        return "the host's", Path(found)
    return "the build root's", tools(where / "root").bin / "nm"


def cuobjdump_of_the_index(where: Path) -> tuple[str, Path]:
    """NVIDIA's ``cuobjdump``; with the wheel it is from."""
    from official_kit import fetched
    from peers_kit import CUDA_TOOLS

    for item in CUDA_TOOLS:  # the second is nvdisasm, which it calls
        with zipfile.ZipFile(fetched(item, where)) as archive:
            archive.extractall(where / "cuda")
    (program,) = (where / "cuda").glob("nvidia/*/bin/cuobjdump")
    for path in program.parent.iterdir():
        path.chmod(0o755)
    return f"{CUDA_TOOLS[0].name} {CUDA_TOOLS[0].version}", program


def peers(wheel: Path, where: Path) -> dict[str, list[Command]]:
    """What tells as much of a wheel without pinwheel: its parts, by what they do."""
    unzip = shutil.which("unzip")
    if unzip is None:
        sys.exit("unzip is not there; install it, it is one of the peers")
    folder = where / "unpacked"
    subprocess.run([unzip, "-qo", wheel, "-d", folder], check=True)
    libraries = sorted(folder.rglob("*.so"))
    (which_nm, nm), (package, cuobjdump) = nm_there(where), cuobjdump_of_the_index(where)
    holders = [x for x in libraries if b".nv_fatbin\0" in x.read_bytes()]
    return {
        "unzip": [(unzip, "-qo", wheel, "-d", folder)],
        # Which code there is, and the names of its kernels.
        f"cuobjdump -lelf, -symbols ({package})": [
            (cuobjdump, option, x) for x in holders for option in ("-lelf", "-symbols")
        ],
        f"nm -D ({which_nm})": [(nm, "-D", *libraries)],
        "auditwheel show": [(sys.executable, "-m", "auditwheel", "show", wheel)],
    }


def verify_rows(wheel: Path, where: Path) -> dict[str, list[Command]]:
    """Our command, its peers, and all of these one after the other."""
    verify: Command = (sys.executable, "-m", "pinwheel.cli.main", "verify", wheel, "--quiet")
    parts = peers(wheel, where)
    return {
        "pinwheel verify": [verify],
        **parts,
    }


def with_sum(costs: dict[str, Cost]) -> dict[str, Cost]:
    """One row more: the peers, which have no answer until the last of them has run."""
    of = [cost for name, cost in costs.items() if not name.startswith("pinwheel")]
    total = Cost(sum(c.wall for c in of), sum(c.cpu for c in of), max(c.memory for c in of))
    return {**costs, f"these {len(of)}, one after another": total}


def table(title: str, costs: Mapping[str, Cost]) -> str:
    """Lines for people; ratios are against the first row."""
    width = max(map(len, costs))
    first = next(iter(costs.values()))
    lines = [
        title,
        f"{'command':{width}} {'wall':>9} {'CPU':>9} {'memory':>9}  wall and CPU of ours",
    ]
    lines += [
        f"{name:{width}} {c.wall:8.3f}s {c.cpu:8.3f}s {c.memory / 1e6:6.0f} MB"
        f"  {c.wall / first.wall:5.1f}x {c.cpu / first.cpu:5.1f}x"
        for name, c in costs.items()
    ]
    return "\n".join(lines)


def as_rows(costs: Mapping[str, Cost]) -> list[dict[str, object]]:
    """The same as plain data."""
    first = next(iter(costs.values()))
    return [
        {
            "command": name,
            "wall": c.wall,
            "cpu": c.cpu,
            "memory": c.memory,
            "ratio": c.wall / first.wall,
            "cpu-ratio": c.cpu / first.cpu,
        }
        for name, c in costs.items()
    ]


def main() -> int:
    """Print the tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="runs of each --help (15)")
    parser.add_argument("--verify-rounds", type=int, default=3, help="runs on the wheel (3)")
    parser.add_argument("--only", choices=("start-up", "verify"), help="one of the tables")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]  # of others: ours is still to come
    # The tests know where peers come from.
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    found: dict[str, tuple[str, dict[str, Cost]]] = {}
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        # Modules are compiled once, as where something is installed, whatever this environment
        # says of that; each command's first run is not counted.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(where / "compiled")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if arguments.only != "verify":
            rows = {name: [(sys.executable, *rest)] for name, rest in HELP.items()}
            title = f"Start-up, median of {arguments.rounds} runs in turn"
            found["start-up"] = title, in_turn(rows, arguments.rounds, environment)
        if arguments.only != "start-up":
            wheel = official_wheel(where)
            costs = in_turn(verify_rows(wheel, where), arguments.verify_rounds, environment)
            title = (
                f"Verify of {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB), "
                f"median of {arguments.verify_rounds} runs in turn"
            )
            found["verify"] = title, with_sum(costs)
    if arguments.json:
        data = {key: as_rows(costs) for key, (_, costs) in found.items()}
        about = {"python": platform.python_version(), "processors": os.cpu_count(), "load": load}
        print(json.dumps({**about, **data}, indent=2))
        return 0
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} processors, load {load:.1f} before\n"
    )
    print("\n\n".join(table(title, costs) for title, costs in found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures what pinwheel claims of its speed, as ratios against named peers in one run.

Run by ``./nox -s bench``. Nothing here passes or fails: a busy machine is not a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

HELP = {
    "pinwheel --help": ("-m", "pinwheel.cli.main", "--help"),
    "auditwheel --help": ("-m", "auditwheel", "--help"),
    "nox --help": ("-m", "nox", "--help"),
    "python -c ''": ("-c", ""),
}


def seconds(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Wall and CPU seconds of one run of this Python."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    wall, after = time.perf_counter() - began, os.times()
    used = after.children_user + after.children_system
    return wall, used - before.children_user - before.children_system


def start_up(rounds: int) -> list[dict[str, object]]:
    """Every command in turn, ``rounds`` times, so that noise falls on all alike."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in HELP}
    for _ in range(rounds + 1):
        for name, arguments in HELP.items():
            found[name].append(seconds(arguments))
    rows: list[dict[str, object]] = []
    # The first round warms the disk cache and the compiled modules.
    base = statistics.median(wall for wall, _ in found["pinwheel --help"][1:])
    for name, times in found.items():
        wall = statistics.median(w for w, _ in times[1:])
        cpu = statistics.median(c for _, c in times[1:])
        rows.append({"command": name, "wall": wall, "cpu": cpu, "ratio": wall / base})
    return rows


def main() -> int:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="runs of each command (15)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = start_up(arguments.rounds)
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), "start-up": rows}, indent=2))
        return 0
    print(
        f"Start-up, median of {arguments.rounds} runs in turn, Python {platform.python_version()}"
    )
    print(f"{'command':20} {'wall':>8} {'CPU':>8}  against pinwheel")
    for row in rows:
        print(f"{row['command']:20} {row['wall']:7.3f}s {row['cpu']:7.3f}s  {row['ratio']:.1f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())

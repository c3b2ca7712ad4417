"""Builds the wheel inside the build root: compiler cache, PEP 517 build, memory and CPU watch.

Reads its orders as JSON from standard input and writes ``/out/result.json``:

- ``options``: arguments for the backend's wheel command
- ``cache_program``: path of sccache inside, or empty
- ``environment``: variables for the build
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
OUT = Path("/out")
SERVER_LOG = Path("/logs/sccache.log")


class MemoryWatch(threading.Thread):
    """Samples the resident memory of every process inside, once a second; keeps the peak."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0

    def run(self) -> None:
        """Sample until the process ends."""
        while True:
            total = 0
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        fields = (entry / "statm").read_text().split()
                        total += (int(fields[1]) - int(fields[2])) * PAGE  # without shared pages
                    except (OSError, IndexError, ValueError):
                        continue  # ended while we looked
            self.peak = max(self.peak, total)
            time.sleep(1)


def start_cache(program: str) -> subprocess.Popen[bytes] | None:
    """Start the cache's server inside, where it must live: it is what runs the compilers."""
    if not program:
        return None
    environment = {**os.environ, "SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1"}
    try:
        with SERVER_LOG.open("ab") as log:
            server = subprocess.Popen([program], env=environment, stdout=log, stderr=log)
    except OSError as error:
        print(f"compiler cache did not start ({error}); building without it", flush=True)
        return None
    socket = Path(os.environ["SCCACHE_SERVER_UDS"])
    for _ in range(100):
        if socket.exists():
            return server
        if server.poll() is not None:
            break
        time.sleep(0.1)
    print(f"compiler cache did not start ({server.poll()}); building without it", flush=True)
    if server.poll() is None:
        server.kill()
        server.wait()
    return None


def stop_cache(program: str, server: subprocess.Popen[bytes]) -> dict[str, object]:
    """Read the server's counts and stop it."""
    asked = subprocess.run(
        [program, "--show-stats", "--stats-format", "json"], capture_output=True, check=False
    )
    try:
        counts = json.loads(asked.stdout)
    except ValueError:
        counts = {}
    subprocess.run([program, "--stop-server"], capture_output=True, check=False)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    return counts if isinstance(counts, dict) else {}


def main() -> int:
    """Carry the orders out; the exit status is the build's."""
    orders = json.load(sys.stdin)
    os.umask(0o022)
    os.environ.update(orders["environment"])
    watch = MemoryWatch()
    watch.start()
    started = time.monotonic()
    program = orders["cache_program"]
    server = start_cache(program)
    os.environ["PINWHEEL_CACHE_PROGRAM"] = program if server else ""
    # -P: a build.py in the source tree must not be taken for the front end.
    command = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation"]
    command += ["--skip-dependency-check", "--outdir", str(OUT)]
    command += [f"--config-setting=--build-option={option}" for option in orders["options"]]
    code = subprocess.call([*command, "/build/src"], stdin=subprocess.DEVNULL)
    counts = stop_cache(program, server) if server else {}
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {
        "code": code,
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_bytes": watch.peak,
        "largest_process_bytes": usage.ru_maxrss * 1024,
        "cache": counts,
    }
    (OUT / "result.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

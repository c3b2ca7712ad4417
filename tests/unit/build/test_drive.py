from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVE = Path(__file__).parents[3] / "src/pinwheel/build/inside/drive.py"

# drive.py has the sandbox's own paths; here they lead to a temporary directory.
OUTSIDE = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("drive", sys.argv[1])
drive = importlib.util.module_from_spec(spec)
spec.loader.exec_module(drive)
drive.OUT = pathlib.Path(sys.argv[2])
drive.SERVER_LOG = pathlib.Path(sys.argv[2]) / "sccache.log"
sys.exit(drive.main())
"""
# Stands for the `build` package of the build environment; says what it was asked.
BACKEND = """
import json, os, pathlib, sys
here = pathlib.Path(os.environ["RECORD"])
big = bytearray(64 << 20) if os.environ.get("BIG") else None
if big is not None:
    import time
    big[:] = b"x" * len(big)
    time.sleep(1.5)
mask = os.umask(0)
here.write_text(json.dumps({"argv": sys.argv[1:], "umask": mask, "env": dict(os.environ),
                            "stdin": sys.stdin.read()}))
if os.environ.get("SIGNAL"):
    os.kill(os.getpid(), int(os.environ["SIGNAL"]))
sys.exit(int(os.environ.get("CODE", "0")))
"""
# A cache program with sccache's way of being told what to do.
CACHE = """#!/bin/sh
case "$1$SCCACHE_START_SERVER" in
  1) touch "$SCCACHE_SERVER_UDS"; while [ -e "$SCCACHE_SERVER_UDS" ]; do sleep 0.05; done ;;
  --show-stats*) echo '{"stats": {"cache_hits": {"counts": {"CUDA": 3}}}}' ;;
  --stop-server*) rm -f "$SCCACHE_SERVER_UDS" ;;
esac
"""


class Inside:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        self.out.mkdir()
        (path / "build").mkdir()
        (path / "build/__init__.py").touch()
        (path / "build/__main__.py").write_text(BACKEND)

    def drive(self, cache: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        orders = {
            "options": ["--py-limited-api=cp38", "--build-number=0sm80"],
            "cache_program": cache,
            "environment": {"FROM_ORDERS": "yes"},
        }
        return subprocess.run(
            [sys.executable, "-c", OUTSIDE, str(DRIVE), str(self.out)],
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": str(self.path),
                "RECORD": str(self.path / "record.json"),
                "SCCACHE_SERVER_UDS": str(self.path / "socket"),
                **env,
            },
            input=json.dumps(orders),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def record(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.path / "record.json").read_text())
        return data

    def result(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return data


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return Inside(tmp_path)


def cache_program(path: Path, text: str = CACHE) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_back_end_gets_its_orders(inside: Inside) -> None:
    done = inside.drive()
    assert done.returncode == 0, done
    record = inside.record()
    assert record["argv"] == [
        *("--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", str(inside.out)),
        "--config-setting=--build-option=--py-limited-api=cp38",
        "--config-setting=--build-option=--build-number=0sm80",
        "/build/src",
    ]
    assert record["umask"] == 0o022
    assert record["stdin"] == ""
    assert record["env"]["FROM_ORDERS"] == "yes"
    assert record["env"]["PINWHEEL_CACHE_PROGRAM"] == ""
    result = inside.result()
    assert result["code"] == 0
    assert result["cache"] == {}
    assert result["seconds"] >= 0
    assert result["cpu_seconds"] >= 0


@pytest.mark.parametrize(
    ("env", "status", "code"),
    [({"CODE": "1"}, 1, 1), ({"SIGNAL": "9"}, 137, -9), ({"SIGNAL": "15"}, 143, -15)],
)
def test_a_failed_build_keeps_its_status(
    inside: Inside, env: dict[str, str], status: int, code: int
) -> None:
    assert inside.drive(**env).returncode == status
    assert inside.result()["code"] == code


def test_the_cache_server_lives_as_long_as_the_build(inside: Inside) -> None:
    program = cache_program(inside.path / "cache")
    assert inside.drive(program).returncode == 0
    assert inside.record()["env"]["PINWHEEL_CACHE_PROGRAM"] == program
    assert inside.result()["cache"] == {"stats": {"cache_hits": {"counts": {"CUDA": 3}}}}
    assert not (inside.path / "socket").exists()


def test_a_cache_that_does_not_start_is_done_without(inside: Inside) -> None:
    program = cache_program(inside.path / "cache", "#!/bin/sh\necho no >&2\nexit 2\n")
    done = inside.drive(program)
    assert done.returncode == 0
    assert "compiler cache did not start (2)" in done.stdout
    assert inside.record()["env"]["PINWHEEL_CACHE_PROGRAM"] == ""
    assert (inside.out / "sccache.log").read_text() == "no\n"


def test_counts_that_cannot_be_read_are_none(inside: Inside) -> None:
    text = CACHE.replace("""echo '{"stats": {"cache_hits": {"counts": {"CUDA": 3}}}}'""", "echo x")
    assert inside.drive(cache_program(inside.path / "cache", text)).returncode == 0
    assert inside.result()["cache"] == {}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_is_watched(inside: Inside) -> None:
    assert inside.drive(BIG="1").returncode == 0
    assert inside.result()["peak_bytes"] >= 60 << 20
    assert inside.result()["largest_process_bytes"] >= 60 << 20

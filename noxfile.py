"""Sessions of the project; ``./nox -l`` lists them."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

ROOT = Path(__file__).parent
REQUIREMENTS = ROOT / "requirements"
#: What each lock is made from, as arguments of ``uv pip compile``.
PROJECT = ("pyproject.toml", "requirements/build.in")
LOCKS = {
    "bootstrap": ("requirements/bootstrap.in",),
    "run": PROJECT,
    "test": (*PROJECT, "--group", "test"),
    "lint": (*PROJECT, "requirements/bootstrap.in", "--group", "test", "--group", "lint"),
}
UV = str(Path(sys.executable).with_name("uv"))  # pinned in bootstrap.txt, beside nox
# Trust what the machine trusts: a mirror behind a certificate of one's own works without more.
os.environ.setdefault("UV_SYSTEM_CERTS", "1")


def install(session: nox.Session, lock: str) -> None:
    """Install a lock and the project, unless this environment has exactly that already."""
    path = REQUIREMENTS / f"{lock}.txt"
    stamp = Path(session.virtualenv.location) / "pinwheel-installed"
    state = hashlib.sha256(path.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == state:
        return
    stamp.unlink(missing_ok=True)
    session.install("--require-hashes", "-r", str(path))
    session.install("--no-deps", "--no-build-isolation", "-e", ".")
    stamp.write_text(state)


def pinwheel(session: nox.Session, command: str) -> None:
    """Run one pinwheel command with the arguments behind ``--``."""
    install(session, "run")
    # Kept apart from stdout, which is a report: `./nox … --json | jq` works.
    session.run("pinwheel", command, *session.posargs, stderr=None)


@nox.session(tags=["pinwheel"])
def build(session: nox.Session) -> None:
    """Build the wheel of a combo: -- --combo cu121-torch2.3-vllm0.6.3"""
    pinwheel(session, "build")


@nox.session(tags=["pinwheel"])
def lock(session: nox.Session) -> None:
    """Resolve every input of a combo into its lock, or check that the lock still holds."""
    pinwheel(session, "lock")


@nox.session(tags=["pinwheel"])
def fetch(session: nox.Session) -> None:
    """Fill the store with every input of a combo."""
    pinwheel(session, "fetch")


@nox.session(tags=["pinwheel"])
def clean(session: nox.Session) -> None:
    """Show what the cache takes and remove what was not used for long: -- --dry-run"""
    pinwheel(session, "clean")


@nox.session(tags=["pinwheel"])
def verify(session: nox.Session) -> None:
    """Read a wheel and say whether it fits what it is for: -- dist/COMBO/WHEEL"""
    pinwheel(session, "verify")


@nox.session(tags=["pinwheel"])
def matrix(session: nox.Session) -> None:
    """Show the matrix, or check every rule of it."""
    pinwheel(session, "matrix")


@nox.session(tags=["ci"])
def lint(session: nox.Session) -> None:
    """Style, types and layers."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "src", "tests/conftest.py", "noxfile.py")
    session.run("lint-imports")


@nox.session(tags=["ci"])
def tests(session: nox.Session) -> None:
    """Unit tests, and the whole pipeline for real on a small CUDA package."""
    install(session, "test")
    # Ten more minutes of builds that are killed or starved on purpose are in e2e.
    session.run(
        "pytest", *(session.posargs or ["tests/unit", "tests/integration", "-m", "not faults"])
    )


@nox.session(tags=["slow"])
def e2e(session: nox.Session) -> None:
    """Builds killed and starved on purpose; the flagship to dist/, killed and resumed (hours)."""
    install(session, "test")
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    session.run("pytest", "tests/integration", "-m", "faults")
    session.run("pytest", "tests/e2e")


@nox.session(tags=["slow"])
def fuzz(session: nox.Session) -> None:
    """Damaged wheels, libraries and device code for the readers: -- --minutes 60 --seed 1"""
    install(session, "test")
    session.run("python", "tests/fuzz/fuzz_readers.py", *session.posargs)


@nox.session(tags=["slow"])
def bench(session: nox.Session) -> None:
    """Speed as ratios against named peers, in one run on an idle machine."""
    install(session, "lint")  # has nox, one of the peers
    session.run("python", "scripts/bench.py", *session.posargs)


@nox.session(venv_backend="none", tags=["maintenance"])
def requirements(session: nox.Session) -> None:
    """Write requirements/*.txt anew; --check compares, --upgrade takes newer versions."""
    check = "--check" in session.posargs
    extra = [argument for argument in session.posargs if argument != "--check"]
    stale = []
    for name, sources in LOCKS.items():
        target = REQUIREMENTS / f"{name}.txt"
        output = Path(session.create_tmp()) / target.name if check else target
        if check:
            output.write_bytes(target.read_bytes())
        session.run(
            UV, "pip", "compile", "--quiet", "--universal", "--python-version=3.11",
            "--generate-hashes", "--no-emit-index-url", "--no-annotate",
            "--custom-compile-command=./nox -s requirements", *extra, *sources,
            "--output-file", str(output),
            external=True,
        )  # fmt: skip
        if check and output.read_bytes() != target.read_bytes():
            stale.append(target.name)
    if stale:
        session.error(f"not what its sources ask for: {', '.join(stale)}; ./nox -s requirements")

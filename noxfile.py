"""Sessions of the project. Two commands to start with:

    ./nox -s build -- --combo cu121-torch2.3-vllm0.6.3      the wheel, into dist/
    ./nox -s tests                                          all tests

What a session takes stands behind "--", its help too: ./nox -s build -- --help
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.sessions = []  # nothing runs that was not asked for; ./nox alone lists them

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
#: The environment of all sessions that run pinwheel itself.
SHARED = ROOT / ".nox" / "pinwheel"
UV = str(Path(sys.executable).with_name("uv"))  # pinned in bootstrap.txt, beside nox
# Trust what the machine trusts: a mirror behind a certificate of one's own works without more.
os.environ.setdefault("UV_SYSTEM_CERTS", "1")


def install(session: nox.Session, lock: str) -> None:
    """Install a lock and the project, unless this environment has exactly that already."""
    stamp = Path(session.virtualenv.location) / "pinwheel-installed"
    state = digest(lock)
    if stamp.is_file() and stamp.read_text() == state:
        return
    stamp.unlink(missing_ok=True)
    session.install("--require-hashes", "-r", str(REQUIREMENTS / f"{lock}.txt"))
    session.install("--no-deps", "--no-build-isolation", "-e", ".")
    stamp.write_text(state)


def digest(lock: str) -> str:
    """What an environment of this lock depends on."""
    parts = ((REQUIREMENTS / f"{lock}.txt").read_bytes(), (ROOT / "pyproject.toml").read_bytes())
    return hashlib.sha256(b"".join(parts)).hexdigest()


@contextmanager
def shared(session: nox.Session) -> Iterator[dict[str, str]]:
    """Variables of the environment with pinwheel in it, which nobody changes while it is used."""
    SHARED.parent.mkdir(exist_ok=True)
    # Without inheritance: the lock is gone with this process, however that ends.
    with (SHARED.parent / "pinwheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not ready():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                session.log("waiting for another ./nox, which works in the same environment")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready():
                prepare(session)
            fcntl.flock(lock, fcntl.LOCK_SH)
        path = f"{SHARED / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        yield {"VIRTUAL_ENV": str(SHARED), "PATH": path}


def ready() -> bool:
    """Whether the shared environment is complete, of these pins and this place, with a Python."""
    stamp = SHARED / "pinwheel-installed"
    wanted = f"{digest('run')} {SHARED}"
    return (
        stamp.is_file()
        and stamp.read_text() == wanted
        and os.access(SHARED / "bin" / "python", os.X_OK)
    )


def prepare(session: nox.Session) -> None:
    """Make the shared environment anew; the stamp is written last."""
    session.log(f"preparing {SHARED.relative_to(ROOT)}, for every command of pinwheel")
    shutil.rmtree(SHARED, ignore_errors=True)
    pip = ("pip", "install", "--python", str(SHARED / "bin" / "python"))
    for step in (
        ("venv", "--python", sys.executable, str(SHARED)),
        (*pip, "--require-hashes", "-r", str(REQUIREMENTS / "run.txt")),
        (*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)),
    ):
        session.run_install(UV, *step, external=True, silent=True)
    (SHARED / "pinwheel-installed").write_text(f"{digest('run')} {SHARED}")


def run(session: nox.Session, *command: str, patience: float = 30) -> None:
    """Run a tool; a signal that ends us waits for it, and no other is started."""
    session.run(*command, interrupt_timeout=patience, terminate_timeout=30)
    stop_if_ended()


def stop_if_ended() -> None:
    """It may have been done just when the signal came."""
    if "PINWHEEL_NOX_SIGNAL" in os.environ:  # by scripts/start_nox.py
        raise KeyboardInterrupt


def pinwheel(session: nox.Session, command: str) -> None:
    """Run one pinwheel command with the arguments behind ``--``."""
    with shared(session) as variables:
        try:
            session.run(
                str(SHARED.relative_to(ROOT) / "bin" / "pinwheel"),
                command,
                *session.posargs,
                env=variables,
                external=True,
                # Kept apart from stdout, which is a report: `./nox … --json | jq` works.
                stderr=None,
                # It ends its compilers itself, which takes up to ten seconds and more on a slow
                # disk; killed, it would leave files half-written for the next run to find.
                interrupt_timeout=0.3,
                terminate_timeout=60,
            )
        except CommandFailed as error:
            code = error.return_code or 1
            os.environ.setdefault("PINWHEEL_NOX_FAILED", str(code if code > 0 else 128 - code))
            raise
        stop_if_ended()


@nox.session(venv_backend="none", tags=["pinwheel"])
def build(session: nox.Session) -> None:
    """Build the wheel of a combo: -- --combo cu121-torch2.3-vllm0.6.3"""
    pinwheel(session, "build")


@nox.session(venv_backend="none", tags=["pinwheel"])
def lock(session: nox.Session) -> None:
    """Resolve every input of a combo into its lock, or check that the lock still holds."""
    pinwheel(session, "lock")


@nox.session(venv_backend="none", tags=["pinwheel"])
def fetch(session: nox.Session) -> None:
    """Fill the store with every input of a combo."""
    pinwheel(session, "fetch")


@nox.session(venv_backend="none", tags=["pinwheel"])
def verify(session: nox.Session) -> None:
    """Read a wheel and say whether it fits what it is for: -- dist/COMBO/WHEEL"""
    pinwheel(session, "verify")


@nox.session(venv_backend="none", tags=["pinwheel"])
def abi(session: nox.Session) -> None:
    """Show which torch builds a wheel fits, and what breaks the others: -- WHEEL"""
    pinwheel(session, "abi")


@nox.session(venv_backend="none", tags=["pinwheel"])
def compare(session: nox.Session) -> None:
    """Show what differs between two wheels: -- WHEEL WHEEL"""
    pinwheel(session, "compare")


@nox.session(venv_backend="none", tags=["pinwheel"])
def matrix(session: nox.Session) -> None:
    """Show drivers, CUDA lines, torch builds, releases and combos; --check checks every rule."""
    pinwheel(session, "matrix")


@nox.session(venv_backend="none", tags=["pinwheel"])
def clean(session: nox.Session) -> None:
    """Show what the cache takes and remove what was not used for long: -- --dry-run"""
    pinwheel(session, "clean")


@nox.session(tags=["ci"])
def lint(session: nox.Session) -> None:
    """Style, types and layers."""
    install(session, "lint")
    run(session, "ruff", "check", ".")
    run(session, "ruff", "format", "--check", ".")
    run(session, "mypy", "src", "tests/conftest.py", "noxfile.py", "scripts/start_nox.py")
    run(session, "lint-imports")


@nox.session(tags=["ci"])
def tests(session: nox.Session) -> None:
    """Unit tests, and the whole pipeline for real on a small CUDA package."""
    install(session, "test")
    # Ten more minutes of builds that are killed or starved on purpose are in e2e.
    chosen = session.posargs or ["tests/unit", "tests/integration", "-m", "not faults"]
    run(session, "pytest", *chosen)


@nox.session(tags=["slow"])
def e2e(session: nox.Session) -> None:
    """Builds killed and starved on purpose; the flagship to dist/, killed and resumed (hours)."""
    install(session, "test")
    if session.posargs:
        run(session, "pytest", *session.posargs)
        return
    run(session, "pytest", "tests/integration", "-m", "faults")
    run(session, "pytest", "tests/e2e")


@nox.session(tags=["slow"])
def fuzz(session: nox.Session) -> None:
    """Damaged wheels, libraries and device code for the readers: -- --minutes 60 --seed 1"""
    install(session, "test")
    run(session, "python", "tests/fuzz/fuzz_readers.py", *session.posargs)


@nox.session(tags=["slow"])
def bench(session: nox.Session) -> None:
    """Speed as ratios against named peers, in one run on an idle machine."""
    install(session, "lint")  # has nox, one of the peers
    run(session, "python", "scripts/bench.py", *session.posargs)


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

"""./nox: finds a Python, prepares .venv whatever the machine lacks, and hands over to nox."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# What a bare machine's shell gives; certificates are the machine's own affair.
BARE = {"PATH": "/usr/bin:/bin"} | {
    name: os.environ[name] for name in ("SSL_CERT_FILE", "PIP_CERT") if name in os.environ
}


@pytest.fixture
def nox(load_script: Callable[[Path, str], ModuleType]) -> ModuleType:
    return load_script(ROOT / "nox", "bootstrap_under_test")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what ./nox reads, in a directory with a space in its name."""
    copy = tmp_path / "a checkout"
    copy.mkdir()
    shutil.copy(ROOT / "nox", copy)
    shutil.copytree(ROOT / "requirements", copy / "requirements")
    (copy / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "start_nox.py", copy / "scripts")
    (copy / "noxfile.py").write_text(
        "import nox\n"
        "@nox.session(venv_backend='none')\n"
        "def hello(session):\n"
        "    session.log('hello ' + ' '.join(session.posargs))\n"
    )
    return copy


def bare(checkout: Path) -> dict[str, str]:
    """An environment with next to nothing in it; what pip fetched is shared between tests."""
    cache = checkout.parent.parent / "pip-cache"
    return BARE | {"HOME": str(checkout.parent), "PIP_CACHE_DIR": str(cache)}


def start(checkout: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(checkout / "nox"), *args],
        cwd=checkout.parent,
        env=bare(checkout) | env,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_an_old_python_can_parse_it() -> None:
    ast.parse((ROOT / "nox").read_text(), feature_version=(3, 6))


def test_it_is_executable() -> None:
    assert os.access(ROOT / "nox", os.X_OK)


def test_an_old_python_hands_over_to_a_newer_one(
    nox: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.14"
    shim.write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    shim.chmod(0o755)
    (tmp_path / "python3.12").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    started: list[list[str]] = []

    def execv(_: str, argv: list[str]) -> None:
        started.append(argv)
        sys.exit(0)

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        nox.use_newer_python(["-s", "tests"])
    assert started == [[str(tmp_path / "python3.12"), str(ROOT / "nox"), "-s", "tests"]]


def test_no_suitable_python_is_one_clear_error(
    nox: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer; this is Python"):
        nox.use_newer_python([])


def test_a_strangers_environment_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "precious").touch()
    result = start(checkout, "--version")
    assert result.returncode == 1
    assert "there is a .venv here that ./nox did not make" in result.stderr
    assert (checkout / ".venv" / "precious").exists()


def test_missing_pins_are_one_clear_error(checkout: Path) -> None:
    (checkout / "requirements" / "bootstrap.txt").unlink()
    result = start(checkout, "--version")
    assert result.returncode == 1
    assert "Restore requirements/bootstrap.txt" in result.stderr
    assert not (checkout / ".venv").exists()


def test_a_failing_install_is_one_clear_error_and_is_done_over(checkout: Path) -> None:
    # Port 9 of this machine: nothing listens there, and nothing leaves the machine.
    result = start(
        checkout,
        "--version",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_CONFIG_FILE=os.devnull,
        PIP_RETRIES="0",
        PIP_NO_CACHE_DIR="1",
    )
    assert result.returncode == 1
    assert "could not install requirements/bootstrap.txt" in result.stderr
    assert "Traceback" not in result.stderr
    assert (checkout / ".venv" / "pinwheel-bootstrap").read_text() == "incomplete"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_installer_too(checkout: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        # SIGINT as a shell's foreground gives it; what runs in the background inherits it ignored.
        code = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        code += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(checkout / "nox"), "--version"],
            env=bare(checkout)
            | {"PIP_INDEX_URL": url, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        silent.settimeout(120)
        asked, _ = silent.accept()
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        asked.settimeout(30)
        while asked.recv(4096):  # to the end: whoever asked has ended
            pass
        asked.close()
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert (checkout / ".venv" / "pinwheel-bootstrap").read_text() == "incomplete"


def test_ready_only_when_complete_and_in_its_place(
    nox: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, python = tmp_path / "marker", tmp_path / "python"
    monkeypatch.setattr(nox, "MARKER", str(marker))
    monkeypatch.setattr(nox, "PYTHON", str(python))
    here = nox.digest()
    assert not nox.ready(here)
    python.symlink_to(sys.executable)
    marker.write_text("incomplete")
    assert not nox.ready(here)
    marker.write_text(here)
    assert nox.ready(here)
    python.unlink()
    python.symlink_to("/nonexistent/python3.11")  # the machine's Python was replaced
    assert not nox.ready(here)
    monkeypatch.setattr(nox, "VENV", "/elsewhere/.venv")  # its scripts name their place
    assert nox.digest() != here


def write_pin(
    nox: ModuleType, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(data).hexdigest()
    pins = tmp_path / "bootstrap.txt"
    pins.write_text(f"nox==1 \\\n    --hash=sha256:{'0' * 64}\npip==99.1 \\\n"
                    f"    --hash=sha256:{'1' * 64} \\\n    --hash=sha256:{digest}\n")  # fmt: skip
    monkeypatch.setattr(nox, "REQUIREMENTS", str(pins))


def serve_pip(tmp_path: Path, data: bytes) -> Path:
    name = "pip-99.1-py3-none-any.whl"
    (tmp_path / "simple" / "pip").mkdir(parents=True)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / name).write_bytes(data)
    (tmp_path / "simple" / "pip" / "index.html").write_text(
        f'<a href="../../files/x{name}">x</a>\n<a href="../../files/{name}#sha256=0">{name}</a>'
    )
    return tmp_path


def test_pip_from_a_configured_index(
    nox: ModuleType, make_index: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pin(nox, tmp_path, b"a wheel", monkeypatch)
    with make_index.serve(serve_pip(tmp_path, b"a wheel")) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple/")
        command, environment, _ = nox.pip_from_index(str(tmp_path))
    assert command[:3] == [nox.PYTHON, "-m", "pip"]
    assert Path(environment["PYTHONPATH"]).read_bytes() == b"a wheel"


def test_pip_with_another_hash_is_refused(
    nox: ModuleType, make_index: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pin(nox, tmp_path, b"a wheel", monkeypatch)
    with make_index.serve(serve_pip(tmp_path, b"another wheel")) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple/")
        with pytest.raises(SystemExit, match="is not the pinned file: its sha256 differs"):
            nox.pip_from_index(str(tmp_path))


def test_an_index_without_pip_is_a_reason_not_a_crash(
    nox: ModuleType, make_index: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_index.serve(tmp_path) as url:
        host = url.removeprefix("http://")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@{host}/simple")
        command, _, why_not = nox.pip_from_index(str(tmp_path))
    assert command is None
    assert "/simple/pip/: " in why_not
    assert "secret" not in why_not


@pytest.mark.parametrize(
    ("env", "conf", "index"),
    [
        ({"PIP_INDEX_URL": "https://a.example/simple"}, "", "https://a.example/simple"),
        ({"UV_DEFAULT_INDEX": "own=https://b.example/s"}, "", "https://b.example/s"),
        ({}, "[global]\nindex-url = https://c.example/s\n", "https://c.example/s"),
        ({}, "[install]\nindex_url = https://d.example/s?a=b\n", "https://d.example/s?a=b"),
        ({}, "no configuration at all", ""),
        ({}, "", ""),
    ],
)
def test_configured_index(
    nox: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    conf: str,
    index: str,
) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "pip.conf"
    file.write_text(conf)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert nox.configured_index() == index


def test_index_with_an_equals_sign_in_it(nox: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://a.example/simple?token=x")
    assert nox.configured_index() == "https://a.example/simple?token=x"


def test_locks_name_no_host_and_hash_everything() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert [lock.stem for lock in locks] == ["bootstrap", "lint", "run", "test"]
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text
        for pin in re.split(r"\n(?=\S)", text):
            assert pin.startswith("#") or HASH.search(pin), f"{lock.name}: {pin}"


def test_the_probe_sdist_is_the_same_twice(make_index: ModuleType, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "tests" / "packages" / "pinprobe-0.1.0", copy)
    (copy / "build").mkdir()
    (copy / "build" / "leftover").touch()
    assert make_index.sdist_bytes(copy) == make_index.sdist_bytes()


@pytest.mark.network
@pytest.mark.slow
def test_first_run_second_run_and_interrupted(checkout: Path, tmp_path: Path) -> None:
    first = start(checkout, "-s", "hello", "--", "world", PYTHONPATH="/nonexistent", PIP_USER="1")
    assert first.returncode == 0, first.stderr
    assert "hello world" in first.stderr
    marker = checkout / ".venv" / "pinwheel-bootstrap"
    assert len(marker.read_text()) == 64
    made = (checkout / ".venv" / "pyvenv.cfg").stat().st_mtime_ns

    # What ./nox itself takes the second time: all but nox.
    (checkout / ".venv" / "bin" / "python").rename(tmp_path / "python")
    (checkout / ".venv" / "bin" / "python").symlink_to("/bin/true")
    took = []
    for _ in range(5):
        before = time.monotonic()
        assert start(checkout, "-s", "hello").returncode == 0
        took.append(time.monotonic() - before)
    assert min(took) < 0.3
    (checkout / ".venv" / "bin" / "python").unlink()
    (tmp_path / "python").rename(checkout / ".venv" / "bin" / "python")
    assert (checkout / ".venv" / "pyvenv.cfg").stat().st_mtime_ns == made

    # Killed half-way: the marker does not say "done", so it is made anew.
    marker.write_text("incomplete")
    shutil.rmtree(checkout / ".venv" / "lib")
    again = start(checkout, "-s", "hello", "--", "again")
    assert again.returncode == 0, again.stderr
    assert "preparing .venv" in again.stderr
    assert "hello again" in again.stderr


@pytest.mark.network
@pytest.mark.slow
def test_pinwheels_sessions_share_one_environment(checkout: Path) -> None:
    """The real noxfile and package: made once, by whichever session comes first."""
    for name in ("noxfile.py", "pyproject.toml", "README.md", "LICENSE", "arch_matrix.toml"):
        shutil.copy(ROOT / name, checkout / name)
    for name in ("src", "recipes", "patches"):
        shutil.copytree(ROOT / name, checkout / name)
    said = {}
    for name, args in (("matrix", ("--json",)), ("lock", ("--help",)), ("clean", ("--help",))):
        answer = start(checkout, "-s", name, "--", *args)
        assert answer.returncode == 0, answer.stderr
        assert ("preparing .nox/pinwheel" in answer.stderr) is (name == "matrix")
        said[name] = answer.stdout
    assert json.loads(said["matrix"])["combos"]
    assert said["lock"].startswith("Usage: pinwheel lock")
    assert [path.name for path in (checkout / ".nox").iterdir() if path.is_dir()] == ["pinwheel"]


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="hides files with a mount, which needs root")
def test_a_python_without_ensurepip(checkout: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not here")
    stdlib = sysconfig.get_paths()["stdlib"]
    hidden = [f"{stdlib}/ensurepip", "/usr/share/python-wheels"]
    mounts = " && ".join(f"mount -t tmpfs none {p}" for p in hidden if Path(p).is_dir())
    probe = subprocess.run(["unshare", "--mount", "sh", "-c", mounts], capture_output=True)
    if probe.returncode:
        pytest.skip(f"mounts are refused: {probe.stderr.decode()}")
    base = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh",
         str(base), str(checkout / "nox"), "-s", "hello"],
        cwd=checkout,
        env=bare(checkout),
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "Session hello was successful" in result.stderr

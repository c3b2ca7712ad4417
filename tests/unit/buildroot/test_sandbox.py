from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from root_kit import NO_NAMESPACES, needs_bwrap, python, running, tiny_root, until

from pinwheel.buildroot import sandbox as module
from pinwheel.buildroot.sandbox import BASE_ENVIRONMENT, Bind, Sandbox, enter, preflight
from pinwheel.errors import SandboxError

PROJECT = Path(__file__).parents[3]

pytestmark = needs_bwrap


def shell(sandbox: Sandbox, script: str, **options: object) -> str:
    result = sandbox.run(["/usr/bin/sh", "-c", script], **options)  # type: ignore[arg-type]
    return result.output.strip()


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """D8: a host whose environment would lead a build astray."""
    for key, value in {
        "PATH": f"/usr/local/cuda-11.8/bin:{os.environ['PATH']}",
        "CUDA_HOME": "/usr/local/cuda-11.8",
        "CC": "/usr/bin/clang",
        "CXX": "clang++",
        "CFLAGS": "-march=native",
        "NVCC_PREPEND_FLAGS": "-arch=native",
        "LD_LIBRARY_PATH": "/opt/wrong",
        "PYTHONPATH": "/opt/wrong",
        "MAX_JOBS": "64",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Asia/Tokyo",
        "SOURCE_DATE_EPOCH": "1",
    }.items():
        monkeypatch.setenv(key, value)


@pytest.mark.usefixtures("hostile")
def test_the_environment_inside_is_exactly_the_fixed_one(sandbox: Sandbox) -> None:
    seen = variables(sandbox.run(["/usr/bin/env"]).output)
    assert seen.pop("PWD") == "/build"  # bubblewrap's own
    assert seen == dict(BASE_ENVIRONMENT)


@pytest.mark.usefixtures("hostile")
def test_only_what_a_recipe_sets_is_added(sandbox: Sandbox) -> None:
    env = {"PATH": "/opt/cuda/bin:/usr/bin:/bin", "TORCH_CUDA_ARCH_LIST": "8.0;9.0", "EMPTY": ""}
    seen = variables(sandbox.run(["/usr/bin/env"], env=env).output)
    del seen["PWD"]
    assert seen == {**BASE_ENVIRONMENT, **env}


def test_there_is_no_network_but_the_loopback(sandbox: Sandbox) -> None:
    lines = shell(sandbox, "cat /proc/net/dev").splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]


def test_no_file_of_the_host_is_there(sandbox: Sandbox, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("secret")
    said = shell(sandbox, f"cat {canary} /etc/hostname {PROJECT}/pyproject.toml; ls -A /tmp /")
    assert "secret" not in said
    assert said.count("No such file") == 3
    top = said.split("/:")[1].split("/tmp:")[0].split()
    assert {*top} <= {path.name for path in sandbox.root.iterdir()}
    assert said.endswith("/tmp:")  # empty


def test_no_process_of_the_host_is_there(sandbox: Sandbox) -> None:
    processes = [name for name in shell(sandbox, "ls /proc").split() if name.isdigit()]
    assert len(processes) <= 4
    assert max(map(int, processes)) < 10


def test_host_name_umask_and_standard_input_are_fixed(sandbox: Sandbox) -> None:
    before = os.umask(0o077)
    try:
        script = "cat /proc/sys/kernel/hostname; umask; touch new; stat -c %a new; cat; echo end"
        said = shell(sandbox, script)
    finally:
        os.umask(before)
    assert said.splitlines() == ["pinwheel", "0022", "644", "end"]


@pytest.mark.parametrize("place", ["/", "/usr/bin", "/opt", "/opt/tool", "/logs", "/proc/sys"])
def test_the_root_cannot_be_written(sandbox: Sandbox, tmp_path: Path, place: str) -> None:
    result = sandbox.run(["/usr/bin/touch", f"{place}/x"], binds=[Bind(tmp_path, "/opt/tool")])
    assert result.returncode == 1
    assert (
        "Read-only" in result.output
        or "Permission denied" in result.output
        or ("No such file" in result.output)
    )
    assert not list(tmp_path.iterdir())
    assert not (sandbox.root / place.strip("/") / "x").exists()


def test_scratch_and_writable_binds_can_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    said = shell(
        sandbox,
        "touch /build/a /build/tmp/b /build/home/c /tmp/d /out/e && ls /build",
        binds=[Bind(out, "/out", writable=True)],
    )
    assert said.split() == ["a", "home", "tmp"]
    assert [p.name for p in out.iterdir()] == ["e"]
    assert not list((sandbox.root / "build").iterdir())


def test_capabilities_are_dropped(sandbox: Sandbox) -> None:
    lines = shell(sandbox, "cat /proc/self/status").splitlines()
    effective = next(line for line in lines if line.startswith("CapEff"))
    assert int(effective.split()[1], 16) == 0


def test_exit_status_signal_and_standard_input_come_through(sandbox: Sandbox) -> None:
    assert sandbox.run(["/usr/bin/sh", "-c", "exit 7"]).returncode == 7
    assert sandbox.run(["/usr/bin/sh", "-c", "kill -9 $$"]).returncode == 137
    assert sandbox.run(["/usr/bin/cat"], stdin=b"h\xc3\xa9").output == "h\u00e9"


def test_output_goes_to_the_log(sandbox: Sandbox, tmp_path: Path) -> None:
    log = tmp_path / "logs/build.log"
    for text in ("one", "two"):
        result = sandbox.run(["/usr/bin/sh", "-c", f"echo {text}"], log=log)
        assert result.output == f"{text}\n"
    assert log.read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("args", "options", "named"),
    [
        (["/opt/env/bin/python"], {}, "/opt/env/bin/python"),
        (["/usr/bin/true"], {"binds": [Bind(Path("/nonexistent/x"), "/out")]}, "/nonexistent/x"),
        (["/usr/bin/true"], {"chdir": "/build/src"}, "/build/src"),
    ],
)
def test_what_is_not_there_is_no_refusal_of_the_kernel(
    sandbox: Sandbox, args: list[str], options: dict[str, object], named: str
) -> None:
    with pytest.raises(SandboxError, match="something is not there") as caught:
        sandbox.run(args, **options)  # type: ignore[arg-type]
    assert named in "\n".join([caught.value.what, *caught.value.evidence])
    assert "kernel" not in caught.value.next_step


RUN = """
import sys
from pathlib import Path
from pinwheel.buildroot.sandbox import Sandbox
Sandbox(Path(sys.argv[1]), ("bwrap",)).run(["/usr/bin/sh", "-c", "sleep %s; true"])
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_killed_build(sandbox: Sandbox, how: signal.Signals) -> None:
    mark = f"98765.{os.getpid()}{int(how)}"
    with python(RUN % mark, str(sandbox.root)) as process:
        assert until(lambda: running(f"sleep {mark}"))
        process.send_signal(how)
        process.wait(timeout=20)
        assert until(lambda: not running(mark)), "the sandbox went on without its parent"


def test_enter_falls_back_to_the_hosts_bubblewrap(sandbox: Sandbox) -> None:
    entered = enter(sandbox.root)  # the tiny root has no bubblewrap
    assert entered.bwrap[-1].endswith("/bwrap")
    assert entered.run(["/usr/bin/true"]).returncode == 0


def test_enter_tells_what_each_bubblewrap_said(tmp_path: Path) -> None:
    root = tiny_root(tmp_path / "root")
    (root / "usr/bin/true").unlink()
    (root / "usr/bin/true").write_bytes(b"no program")
    (root / "usr/bin/true").chmod(0o755)
    with pytest.raises(SandboxError) as caught:
        enter(root)
    assert any("No such file" in line for line in caught.value.evidence)  # the locked one
    assert len(caught.value.evidence) >= 2


def test_preflight_passes_where_the_sandbox_works() -> None:
    preflight()


REFUSED = (
    NO_NAMESPACES
    + """
from pinwheel.cli.main import main
main(["build", "--combo", sys.argv[1], "--cache", sys.argv[2], "--json"])
"""
)
# As root, yet without the right to mount: a plain container.
CONTAINED = """
import sys
from pinwheel.buildroot.sandbox import preflight
from pinwheel.errors import SandboxError
try:
    preflight()
except SandboxError as error:
    print("\\n".join([error.what, *error.evidence, error.next_step]))
    sys.exit(error.exit_code)
"""


def test_where_user_namespaces_are_refused_nothing_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    combo = next((PROJECT / "recipes").iterdir()).name
    monkeypatch.setenv("PINWHEEL_PROJECT", str(PROJECT))
    monkeypatch.setenv("PINWHEEL_DIST", str(tmp_path / "dist"))
    with python(REFUSED, combo, str(tmp_path / "cache")) as process:
        said, _ = process.communicate(timeout=60)
    if said.startswith("SKIP"):
        pytest.skip(said)
    assert process.returncode == SandboxError.exit_code
    assert "unshare(CLONE_NEWUSER) answered ENOSPC" in said
    assert "user.max_user_namespaces = 0" in said
    assert "or run as root" in said
    assert "Traceback" not in said
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "dist").exists()


@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="needs util-linux's setpriv")
def test_root_without_the_right_to_mount_is_told_how_to_start_its_container() -> None:
    said = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user"),
            *("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"),
            *(sys.executable, "-c", CONTAINED),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if said.stderr.startswith("unshare:"):
        pytest.skip(said.stderr)
    assert said.returncode == SandboxError.exit_code, said
    assert "answered EPERM" in said.stdout
    assert "--privileged" in said.stdout


def test_the_settings_that_decide_are_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    error = module.refused("said so")
    assert error.evidence[0] == "said so"
    assert any(line.startswith("user.max_user_namespaces = ") for line in error.evidence)
    assert "run as root" in error.next_step

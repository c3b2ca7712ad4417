"""The locked Debian root and the sandbox around it, for real: what is shut out stays out.

The root's packages (about 113 MB) are fetched once into the configured store, as a build does.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinwheel.buildroot.environment import install_environment, unpack_tools
from pinwheel.buildroot.root import unpack_root
from pinwheel.buildroot.sandbox import BASE_ENVIRONMENT, Bind, Sandbox, enter
from pinwheel.console import Console
from pinwheel.errors import EnvironmentInstallError
from pinwheel.files import sha256_file
from pinwheel.inputs.fetch import fetch
from pinwheel.inputs.store import Store
from pinwheel.recipe.lock import Input, Lock, Role, SourceKind
from pinwheel.recipe.lockfile import read_lock
from pinwheel.settings import load_settings

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def lock() -> Lock:
    return read_lock(sorted(PROJECT.glob("recipes/*/lock.*.toml"))[0])


@pytest.fixture(scope="module")
def files(lock: Lock) -> dict[str, Path]:
    """The packages of the root and the tools, fetched and verified."""
    settings = load_settings(PROJECT)
    store = Store(settings.store)
    inputs = [*lock.with_role(Role.ROOT), *lock.with_role(Role.TOOL)]
    fetch(inputs, store, settings, Console(), snapshot=lock.debian_snapshot)
    return {i.sha256: store.get(i) for i in inputs}


@pytest.fixture(scope="module")
def root(lock: Lock, files: dict[str, Path]) -> Path:
    cache = load_settings(PROJECT).cache / "roots"
    return unpack_root(lock.with_role(Role.ROOT), files, cache, Console())


@pytest.fixture(scope="module", params=["locked", "host"])
def sandbox(request: pytest.FixtureRequest, root: Path) -> Sandbox:
    """Entered by the root's own bubblewrap, and by the host's where it has one."""
    if request.param == "host":
        if not shutil.which("bwrap"):
            pytest.skip("this host has no bubblewrap of its own")
        return Sandbox(root, ("bwrap",))
    return enter(root)


def inside(sandbox: Sandbox, code: str, **options: Any) -> Any:
    """Run Python inside; its last line is the answer, as JSON."""
    result = sandbox.run([PYTHON, "-c", textwrap.dedent(code)], **options)
    assert result.returncode == 0, result.output
    return json.loads(result.output.splitlines()[-1])


def test_the_roots_own_bubblewrap_is_taken_first(root: Path) -> None:
    entered = enter(root)
    if os.geteuid() == 0:
        assert entered.bwrap[0] == str(root / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
        assert entered.bwrap[-1] == str(root / "usr/bin/bwrap")
    assert entered.run(["/usr/bin/true"]).returncode == 0


# --- network ----------------------------------------------------------------------------------


@pytest.fixture
def listeners() -> Iterator[dict[str, Any]]:
    """Servers of the host that a process with its network could reach."""
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"\0pinwheel-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        named = stack.enter_context(socket.socket(socket.AF_UNIX))
        named.bind(str(folder / "socket"))
        named.listen()
        yield {"port": tcp.getsockname()[1], "abstract": name, "path": str(folder / "socket")}


REACH = """
import json, socket, sys
orders = json.load(sys.stdin)
def reach(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(3)
        try:
            s.connect(address)
        except OSError as error:
            return error.strerror or str(error)
        return "CONNECTED"
def resolve(name):
    try:
        return str(socket.getaddrinfo(name, 443))
    except OSError:
        return "no"
inet, inet6, unix = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
answers = {f"{a}:{p}": reach(inet, (a, p)) for a in orders["addresses"]
           for p in (orders["port"], 53, 80)}
answers["v6"] = reach(inet6, ("::1", orders["port"]))
answers["out6"] = reach(inet6, ("2606:4700:4700::1111", 53))
answers["abstract"] = reach(unix, orders["abstract"])
answers["path"] = reach(unix, orders["path"])
names = {n: resolve(n) for n in ("example.org", "dns.google", orders["host"])}
print(json.dumps({"answers": answers, "names": names,
                  "interfaces": [n for _, n in socket.if_nameindex()]}))
"""


def test_no_network_can_be_reached(sandbox: Sandbox, listeners: dict[str, Any]) -> None:
    addresses = {"127.0.0.1", "1.1.1.1", "10.0.0.1", "169.254.169.254", "192.168.0.1"}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # the host's own address; nothing is sent
        addresses.add(probe.getsockname()[0])
    orders = {**listeners, "addresses": sorted(addresses), "host": socket.gethostname()}
    # They can be reached from here, or the test would prove nothing.
    with socket.create_connection(("127.0.0.1", listeners["port"]), 3):
        pass
    for address in (listeners["abstract"], listeners["path"]):
        with socket.socket(socket.AF_UNIX) as local:
            local.connect(address)

    found = inside(sandbox, REACH, stdin=json.dumps(orders).encode())
    assert found["interfaces"] == ["lo"]
    assert "CONNECTED" not in found["answers"].values(), found["answers"]
    assert set(found["names"].values()) == {"no"}, found["names"]
    outside = {a: said for a, said in found["answers"].items() if a.startswith("1.1.1.1")}
    assert set(outside.values()) == {"Network is unreachable"}


# --- files and processes ----------------------------------------------------------------------


def test_no_file_of_the_host_can_be_reached(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = f"canary-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        places = []
        for folder in (tmp_path, Path("/tmp"), Path.home(), Path.cwd(), Path("/var/tmp")):
            if os.access(folder, os.W_OK):
                file = stack.enter_context(
                    tempfile.NamedTemporaryFile("w", dir=folder, prefix="pinwheel-canary-")
                )
                file.write(secret)
                file.flush()
                places.append(file.name)
        assert len(places) >= 3
        found = inside(
            sandbox,
            f"""
            import json, os, pathlib
            seen = []
            prefixes = ["", "/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../..",
                        "/build/../..", "/proc/2/cwd/.."]
            for place in {places!r}:
                for prefix in prefixes:
                    try:
                        seen.append([prefix, pathlib.Path(prefix + place).read_text()])
                    except OSError:
                        pass
            names = [os.path.join(top, f) for top, _, files in os.walk("/")
                     for f in files if f.startswith("pinwheel-canary-")]
            print(json.dumps([seen, names, os.listdir("/tmp"), os.listdir("/root")]))
            """,
        )
    assert found == [[], [], [], found[3]]
    assert {*found[3]} <= {path.name for path in (sandbox.root / "root").iterdir()}


def test_no_process_of_the_host_is_seen_or_signalled(sandbox: Sandbox) -> None:
    found = inside(
        sandbox,
        f"""
        import json, os
        pids = [int(p) for p in os.listdir("/proc") if p.isdigit()]
        try:
            os.kill({os.getpid()}, 0)
            reached = {os.getpid()} not in pids
        except ProcessLookupError:
            reached = False
        print(json.dumps([len(pids), max(pids), reached]))
        """,
    )
    assert found[0] <= 4
    assert found[1] < 20
    assert found[2] is False


def test_only_what_is_bound_writable_can_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "tool").mkdir()
    places = ["/", "/usr/bin", "/etc", "/opt", "/opt/tool", "/var/tmp", "/root", "/home", "/cache"]
    found = inside(
        sandbox,
        f"""
        import json, pathlib
        wrote = []
        for place in {[*places, "/out", "/build", "/build/tmp", "/tmp", "/build/home"]!r}:
            try:
                pathlib.Path(place, "written").write_text("x")
                wrote.append(place)
            except OSError:
                pass
        try:
            pathlib.Path("/usr/bin/gcc").unlink()
            wrote.append("gcc")
        except OSError:
            pass
        print(json.dumps(wrote))
        """,
        binds=[Bind(tmp_path / "out", "/out", writable=True), Bind(tmp_path / "tool", "/opt/tool")],
    )
    assert found == ["/out", "/build", "/build/tmp", "/tmp", "/build/home"]
    assert (tmp_path / "out/written").exists()
    assert not list((tmp_path / "tool").iterdir())
    assert not list(sandbox.root.rglob("written"))


# --- environment ------------------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D8: compilers and variables of the host that would lead a build astray."""
    for name in ("nvcc", "gcc", "g++", "cc", "python3", "cmake", "ld"):
        (tmp_path / name).write_text("#!/bin/sh\necho of the host\n")
        (tmp_path / name).chmod(0o755)
    for key, value in {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CUDA_HOME": str(tmp_path),
        "CC": f"{tmp_path}/gcc",
        "CXX": f"{tmp_path}/g++",
        "CUDACXX": f"{tmp_path}/nvcc",
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
        "NVCC_APPEND_FLAGS": "-arch=native",
        "CMAKE_PREFIX_PATH": str(tmp_path),
        "LC_ALL": "C",
        "TZ": "Asia/Tokyo",
        "PYTHONHASHSEED": "77",
        "BASH_ENV": f"{tmp_path}/gcc",
    }.items():
        monkeypatch.setenv(key, value)


@pytest.mark.usefixtures("hostile")
def test_environment_locale_zone_and_seed_are_fixed(sandbox: Sandbox) -> None:
    code = """
        import json, locale, os, platform, shutil, time
        mask = os.umask(0)
        print(json.dumps({"env": dict(os.environ), "umask": mask, "zone": time.tzname[0],
            "encoding": locale.getpreferredencoding(), "hash": hash("pinwheel"),
            "host": platform.node(), "nvcc": shutil.which("nvcc"), "gcc": shutil.which("gcc"),
            "cwd": os.getcwd()}))
        """
    before = os.umask(0o077)
    try:
        first, second = inside(sandbox, code), inside(sandbox, code)
    finally:
        os.umask(before)
    assert first == second
    assert first.pop("hash")
    env = first.pop("env")
    env.pop("PWD")
    env.pop("LC_CTYPE", None)  # Python sets it for itself
    assert env == dict(BASE_ENVIRONMENT)
    assert first == {
        "umask": 0o022,
        "zone": "UTC",
        "encoding": "UTF-8",
        "host": "pinwheel",
        "nvcc": None,
        "gcc": "/usr/bin/gcc",
        "cwd": "/build",
    }


@pytest.mark.usefixtures("hostile")
def test_the_locked_compiler_compiles(sandbox: Sandbox, lock: Lock, tmp_path: Path) -> None:
    (tmp_path / "a.cc").write_text("#include <cstdio>\nint main() { std::puts(__VERSION__); }\n")
    said = sandbox.run(
        ["/usr/bin/sh", "-c", "c++ -o a a.cc && ./a"],
        binds=[Bind(tmp_path, "/out", writable=True)],
        chdir="/out",
    )
    assert said.returncode == 0, said.output
    (version,) = (i.version for i in lock.with_role(Role.ROOT) if i.name.startswith("g++-"))
    assert said.output.split()[0] == version.rpartition("-")[0]


# --- ending, users ----------------------------------------------------------------------------

OUTER = """
import sys
from pathlib import Path
from pinwheel.buildroot.sandbox import enter
enter(Path(sys.argv[1])).run(["/usr/bin/python3", "-c",
    "import subprocess; subprocess.run(['/usr/bin/sleep', '" + sys.argv[2] + "'])"])
"""


def running(words: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(words.replace(" ", "\0").encode()):
                return True
    return False


def test_nothing_outlives_a_killed_build(root: Path) -> None:
    seconds = f"97531.{os.getpid()}"
    process = subprocess.Popen([sys.executable, "-c", OUTER, str(root), seconds])
    try:
        deadline = time.monotonic() + 60
        while not running(f"/usr/bin/sleep {seconds}"):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 20
    while running(f"/usr/bin/sleep {seconds}"):
        assert time.monotonic() < deadline, "what ran inside went on alone"
        time.sleep(0.1)


# Everything is imported before the user changes: this Python may lie where only root can read.
NOBODY = """
import ctypes, os, shutil, subprocess, sys
from pathlib import Path
import pinwheel.buildroot.sandbox as module
from pinwheel.process import run
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0  # mounts of our own: the cache may lie where only root can read
assert libc.mount(None, b"/", None, 0x40000 | 0x4000, None) == 0
assert libc.mount(sys.argv[1].encode(), sys.argv[2].encode(), None, 0x1000, None) == 0
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
os.environ["PATH"] = "/nonexistent"  # no bubblewrap of the host
os.chdir("/")
module.preflight()
sandbox = module.enter(Path(sys.argv[2]))
print(sandbox.bwrap[-1])
print(sandbox.run(["/usr/bin/sh", "-c", "id -u; cat /proc/net/dev | tail -n +3; touch /x"]).output)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="this user is unprivileged already")
def test_an_unprivileged_user_needs_no_bubblewrap_of_the_host(root: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place = Path(folder) / "root"
        place.mkdir()
        probe = subprocess.run(
            [
                *("setpriv", "--reuid", "65534", "--clear-groups", "--regid", "65534"),
                *("unshare", "--user", "true"),
            ],
            capture_output=True,
            check=False,
        )
        if probe.returncode != 0:
            pytest.skip(f"this kernel lets no user make namespaces: {probe.stderr!r}")
        said = subprocess.run(
            [sys.executable, "-c", NOBODY, str(root), str(place)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert said.returncode == 0, said
    lines = said.stdout.splitlines()
    assert lines[0] == f"{place}/usr/bin/bwrap"
    assert lines[1] == "65534"
    assert [line.split(":")[0].strip() for line in lines[2:3]] == ["lo"]
    assert "Read-only file system" in said.stdout


# --- the Python environments ------------------------------------------------------------------


def make_wheel(folder: Path) -> Path:
    """A wheel with one module and one command."""
    info = "pinned_thing-1.dist-info"
    content = {
        "pinned_thing.py": b"def main():\n    print('it runs')\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: pinned-thing\nVersion: 1\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nthing = pinned_thing:main\n",
    }
    record = f"{info}/RECORD"
    lines = []
    for name, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    path = folder / "pinned_thing-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.writestr(record, "\n".join([*lines, f"{record},,"]) + "\n")
    return path


def locked(path: Path) -> Input:
    return Input(
        roles=(Role.RUN,),
        source=SourceKind.INDEX,
        name="pinned-thing",
        version="1",
        path=path.name,
        size=path.stat().st_size,
        sha256=sha256_file(path),
    )


def test_an_environment_is_installed_offline_from_locked_wheels(
    root: Path, lock: Lock, files: dict[str, Path], tmp_path: Path
) -> None:
    sandbox = enter(root)
    tools = unpack_tools(lock.with_role(Role.TOOL), files, tmp_path / "tools")
    wheel = make_wheel(tmp_path)
    item = locked(wheel)

    def install(item: Input, **options: Any) -> Path:
        return install_environment(
            [item],
            {item.sha256: wheel},
            sandbox=sandbox,
            tools=tools,
            cache=tmp_path / "envs",
            label="test",
            console=Console(quiet=True),
            **options,
        )

    before = os.umask(0o077)
    try:
        made = install(item)
    finally:
        os.umask(before)
    assert install(item) == made
    # It is shown elsewhere than it was made.
    said = sandbox.run(["/opt/env/bin/thing"], binds=[Bind(made, "/opt/env")])
    assert said.output == "it runs\n"
    assert all(p.stat().st_mode & 0o044 == 0o044 for p in made.rglob("*.py"))

    changed = item.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(EnvironmentInstallError) as caught:
        install_environment(
            [changed],
            {changed.sha256: wheel},
            sandbox=sandbox,
            tools=tools,
            cache=tmp_path / "envs",
            label="test",
            console=Console(quiet=True),
        )
    assert any("ash" in line for line in caught.value.evidence), caught.value.evidence
    assert (
        len([p for p in (tmp_path / "envs").iterdir() if p.suffix == "" and p.name[0] != "."]) == 1
    )


# --- the root itself --------------------------------------------------------------------------


def tree_digest(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        digest.update(f"{path.relative_to(root)}\0{status.st_mode:o}\0".encode())
        if path.is_symlink():
            digest.update(os.fsencode(path.readlink()))
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def test_comparing_it_with_its_listing_takes_no_time(root: Path, lock: Lock) -> None:
    start = time.monotonic()
    again = unpack_root(lock.with_role(Role.ROOT), {}, root.parent, Console(quiet=True))
    assert time.monotonic() - start < 2
    assert again == root


def test_unpacked_again_by_another_umask_after_a_kill_it_is_the_same(
    root: Path, lock: Lock, files: dict[str, Path], tmp_path: Path
) -> None:
    debs = lock.with_role(Role.ROOT)
    code = """
import os, sys, json
from pathlib import Path
from pinwheel.buildroot.root import unpack_root
from pinwheel.console import Console
from pinwheel.recipe.lock import Input
os.umask(0o077)
inputs, files = json.load(sys.stdin)
print("started", flush=True)
unpack_root([Input.model_validate(i) for i in inputs], {k: Path(v) for k, v in files.items()},
            Path(sys.argv[1]), Console(quiet=True))
"""
    orders = json.dumps(
        [[i.model_dump(mode="json") for i in debs], {k: str(v) for k, v in files.items()}]
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    feeder = threading.Thread(target=lambda: (process.stdin.write(orders), process.stdin.close()))
    feeder.start()
    assert process.stdout.readline() == "started\n"
    feeder.join()
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*.partial/usr/bin/*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not [p for p in tmp_path.iterdir() if p.is_dir() and p.suffix != ".partial"]
    before = os.umask(0o077)
    try:
        again = unpack_root(debs, files, tmp_path, Console(quiet=True))
    finally:
        os.umask(before)
    assert again.name == root.name
    assert tree_digest(again) == tree_digest(root)

"""Entering the build root through bubblewrap: canonical paths, no network, no host environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinwheel.errors import SandboxError
from pinwheel.process import Result, run

HOSTNAME = "pinwheel"
UMASK = 0o022

# The whole environment a program inside sees, before a recipe adds to it. Locale, time zone and
# hash seed are fixed because compilers, sort orders and set iteration depend on them.
BASE_ENVIRONMENT: Mapping[str, str] = {
    "HOME": "/build/home",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TMPDIR": "/build/tmp",
    "TZ": "UTC",
}


# What bubblewrap says when a program or a bound path is missing, which is no refusal of the kernel.
_NOT_THERE = ("execvp ", "Can't find source path ", "Can't chdir to ")


@dataclass(frozen=True, slots=True)
class Bind:
    """A host file or directory shown inside at a canonical path, read-only unless said."""

    host: Path
    inside: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A locked root and the bubblewrap that enters it.

    Attributes:
        root: the unpacked root; shown read-only at ``/``.
        bwrap: the command that starts bubblewrap.
    """

    root: Path
    bwrap: tuple[str, ...]

    def command(
        self,
        args: Sequence[str],
        *,
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        chdir: str = "/build",
    ) -> list[str]:
        """The full host command line that runs ``args`` inside."""
        flags = [
            # New namespaces: nothing of the host's network, processes, host name or IPC.
            *("--unshare-net", "--unshare-pid", "--unshare-uts", "--unshare-ipc"),
            *("--hostname", HOSTNAME),
            # The sandbox ends with us: a killed build leaves no compiler behind.
            "--die-with-parent",
            # No way back to the terminal's input queue (TIOCSTI).
            "--new-session",
            *("--cap-drop", "ALL"),
            "--clearenv",
            *("--ro-bind", str(self.root), "/"),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--tmpfs", "/tmp", "--tmpfs", "/opt", "--tmpfs", "/build"),  # noqa: S108
            *("--dir", "/build/home", "--dir", "/build/tmp"),
        ]
        for bind in binds:
            flags += ["--bind" if bind.writable else "--ro-bind", str(bind.host), bind.inside]
        flags += ["--remount-ro", "/opt", "--chdir", chdir]
        for key, value in sorted({**BASE_ENVIRONMENT, **(env or {})}.items()):
            flags += ["--setenv", key, value]
        return [*self.bwrap, *flags, "--", *args]

    def run(
        self,
        args: Sequence[str],
        *,
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        chdir: str = "/build",
        log: Path | None = None,
        tick: Callable[[], None] | None = None,
        stdin: bytes | None = None,
    ) -> Result:
        """Run ``args`` inside and return how it ended.

        Raises:
            SandboxError: bubblewrap itself could not set the sandbox up, or found no such program.
        """
        result = run(
            self.command(args, binds=binds, env=env, chdir=chdir),
            env={"PATH": "/usr/bin:/bin"},
            log=log,
            tick=tick,
            stdin=stdin,
            umask=UMASK,
        )
        first = result.output.lstrip().splitlines()[:1]
        if result.returncode == 1 and first and first[0].startswith("bwrap: "):
            if any(words in first[0] for words in _NOT_THERE):
                raise SandboxError(
                    f"{args[0]} cannot be started in the build root: something is not there.",
                    evidence=[first[0], f"root: {self.root}"],
                    next_step="Something was taken out of the cache. Run the same command again: "
                    "what has changed there is made anew.",
                )
            raise refused(first[0])
        return result


def enter(root: Path) -> Sandbox:
    """The sandbox over ``root``: the root's own bubblewrap, else the host's.

    The locked bubblewrap runs with the locked loader and libraries, so the host needs none. Where
    the kernel lets only a privileged or profiled bubblewrap make namespaces (a setuid one, or
    an AppArmor rule for its path), the host's is used.

    Raises:
        SandboxError: neither may set up the namespaces; names the setting to change.
    """
    libraries = root / "usr/lib/x86_64-linux-gnu"
    locked = (
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        str(libraries),
        str(root / "usr/bin/bwrap"),
    )
    candidates: list[tuple[str, ...]] = [locked]
    host = shutil.which("bwrap")
    if host:
        candidates.append((host,))
    said: list[str] = []
    for bwrap in candidates:
        sandbox = Sandbox(root, bwrap)
        try:
            result = sandbox.run(["/usr/bin/true"])
        except SandboxError as error:
            said += error.evidence
            continue
        except OSError as error:
            said.append(f"{bwrap[-1]}: {error.strerror}")
            continue
        if result.returncode == 0:
            return sandbox
        said.append(f"{bwrap[-1]}: exit {result.returncode}: {result.output.strip()[-200:]}")
    raise refused(*said)


def preflight() -> None:
    """Ask the kernel whether it will let us in, before anything is downloaded.

    Raises:
        SandboxError: user namespaces are refused and we are not root.
    """
    flags = "CLONE_NEWNS|CLONE_NEWNET" if os.geteuid() == 0 else "CLONE_NEWUSER"
    values = {"CLONE_NEWNS": 0x20000, "CLONE_NEWNET": 0x40000000, "CLONE_NEWUSER": 0x10000000}
    mask = sum(values[name] for name in flags.split("|"))
    child = os.fork()
    if child == 0:  # unshare() cannot be undone, so a child tries it
        try:
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            code = 0 if libc.unshare(mask) == 0 else min(ctypes.get_errno(), 125)
            if code == 0 and os.geteuid() != 0 and not _maps_users():
                code = 126
        except BaseException:
            code = 127
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0 or (os.geteuid() != 0 and shutil.which("bwrap") and _host_bwrap_works()):
        return
    raise refused(f"unshare({flags}) answered {_errno_name(code)}")


def _maps_users() -> bool:
    """Whether a fresh user namespace has its capabilities (AppArmor may take them away)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.unshare(0x20000) == 0)  # CLONE_NEWNS needs CAP_SYS_ADMIN in the namespace


def _host_bwrap_works() -> bool:
    try:
        args = ["bwrap", "--unshare-net", "--unshare-pid", "--ro-bind", "/", "/", "true"]
        return run(args).returncode == 0
    except OSError:
        return False


def _errno_name(code: int) -> str:
    import errno

    if code == 126:
        return "yes, but without capabilities"
    return errno.errorcode.get(code, f"status {code}")


def refused(*evidence: str) -> SandboxError:
    """The one error for a kernel that does not let us in, with the settings that decide it."""
    lines = [*evidence]
    for name in (
        "kernel/apparmor_restrict_unprivileged_userns",
        "kernel/unprivileged_userns_clone",
        "user/max_user_namespaces",
    ):
        path = Path("/proc/sys") / name
        if path.exists():
            try:
                lines.append(f"{name.replace('/', '.')} = {path.read_text().strip()}")
            except OSError as error:
                lines.append(f"{name.replace('/', '.')}: {error.strerror}")
    if os.geteuid() == 0:
        step = (
            "Inside a container, start it with --privileged or --cap-add SYS_ADMIN and "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined; "
            "outside one, run as root with CAP_SYS_ADMIN."
        )
    else:
        step = (
            "Allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, "
            "kernel.unprivileged_userns_clone=1 or user.max_user_namespaces=15000, whichever "
            "is listed above with another value), or run as root."
        )
    return SandboxError(
        "The kernel does not let pinwheel set up its build root.", evidence=lines, next_step=step
    )

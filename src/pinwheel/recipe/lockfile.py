"""Reads and writes ``lock.<toolkit>.toml``: the same lock is always the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

from pinwheel.errors import LockError
from pinwheel.files import atomic_write
from pinwheel.recipe.load import lock_path
from pinwheel.recipe.lock import Input, Lock
from pinwheel.recipe.tomlfile import read_model

__all__ = ["lock_path", "lock_text", "read_lock", "write_lock"]


def lock_text(lock: Lock) -> str:
    """``lock`` as TOML: fixed order of keys, one block for each file, LF at each line's end."""
    head = [
        "# Every byte that goes into this build. Generated, do not edit; written by",
        f"# pinwheel lock --combo {lock.combo} --toolkit {lock.toolkit}",
        f"lock-version = {lock.lock_version}",
        f"combo = {_string(lock.combo)}",
        f"toolkit = {_string(lock.toolkit)}",
        f"recipe-sha256 = {_string(lock.recipe_sha256)}",
        f"matrix-sha256 = {_string(lock.matrix_sha256)}",
        f"data-sha256 = {_string(lock.data_sha256)}",
        f"debian-snapshot = {_string(lock.debian_snapshot)}",
        f"source-date-epoch = {lock.source_date_epoch}",
    ]
    return "\n".join(head) + "\n" + "".join(map(_block, lock.inputs))


def write_lock(lock: Lock, path: Path) -> bool:
    """Write ``lock`` in one step; a file that is already right is left alone.

    Returns:
        whether the file changed.

    Raises:
        DiskFullError: no space left.
        NotWritableError: the directory cannot be written.
    """
    data = lock_text(lock).encode()
    if path.is_file() and path.read_bytes() == data:
        return False
    atomic_write(path, data)
    return True


def read_lock(path: Path) -> Lock:
    """The lock at ``path``.

    Raises:
        LockError: there is none, or it is malformed; names file, line and key.
    """
    if not path.exists():
        raise LockError(
            f"there is no lock {path}",
            next_step="Write it: pinwheel lock --combo "
            f"{path.parent.name} --toolkit {path.name.removeprefix('lock.').removesuffix('.toml')}",
        )
    return read_model(
        path, Lock, LockError, next_step="Write the lock anew with `pinwheel lock`; never edit one."
    )


def _block(item: Input) -> str:
    roles = ", ".join(_string(role) for role in item.roles)
    return (
        "\n[[input]]\n"
        f"roles = [{roles}]\n"
        f"source = {_string(item.source)}\n"
        f"name = {_string(item.name)}\n"
        f"version = {_string(item.version)}\n"
        f"path = {_string(item.path)}\n"
        f"size = {item.size}\n"
        f"sha256 = {_string(item.sha256)}\n"
    )


def _string(text: str) -> str:
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(str(text), ensure_ascii=False).replace("\x7f", "\\u007F")

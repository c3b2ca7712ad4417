"""TOML that people write: what cannot be read ends at once, and in one kind of fault."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from pinwheel import toml


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "{b=" * 5000,
        "a = " + "9" * 5000,
        "a = 2024-02-31",
    ],
)
def test_every_fault_is_a_decode_error(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        toml.loads(text)


def test_a_pipe_never_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="plain file"):
        toml.read_text(tmp_path / "pipe")


def test_a_device_without_end(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="plain file"):
        toml.read_text(tmp_path / "link")


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"#" * 11)
    assert toml.read_text(path, 11) == "#" * 11
    with pytest.raises(OSError, match="larger than 10"):
        toml.read_text(path, 10)

"""Provider ``debian``: takes Debian's CUDA packages apart without installing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pinwheel.inputs.deb import unpack_deb


def unpack(archive: Path, into: Path, keep: Callable[[str], bool]) -> list[str]:
    """Unpack the kept files of one .deb; returns their names."""
    return unpack_deb(archive, into, keep=keep, usr_merge=True)

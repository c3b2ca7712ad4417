"""Provider ``wheels``: takes NVIDIA's CUDA 13 wheels apart without installing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pinwheel.inputs.archive import unpack_wheel

# Unpacked, NVIDIA's wheels are at most 6 times their size; far more is no CUDA wheel.
MAX_RATIO = 40


def unpack(archive: Path, into: Path, keep: Callable[[str], bool]) -> list[str]:
    """Unpack the kept files of one wheel; returns their names."""
    limit = max(64 << 20, archive.stat().st_size * MAX_RATIO)
    return unpack_wheel(archive, into, keep=keep, max_bytes=limit)

"""Which libraries another package or the driver brings: needed by a wheel, never in it."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources


@cache
def elsewhere() -> tuple[str, ...]:
    """Shell patterns of their file names, from ``data/elsewhere.toml``."""
    text = (resources.files("pinwheel.data") / "elsewhere.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["patterns"])

"""The flagship combo, and the command run on it as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMBO = "cu121-torch2.3-vllm0.6.3"
ARCHS = "8.0"
PROJECT = Path(__file__).parents[2]


def pinwheel(*arguments: str, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run the command as a user would, ``prefix`` before it; its JSON report."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "pinwheel.cli.main", *arguments, "--json"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    report: dict[str, Any] = json.loads(done.stdout)
    return report

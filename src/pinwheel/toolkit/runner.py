"""What checks and proofs need of whoever runs programs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Completed(Protocol):
    """How a program ended; :class:`pinwheel.process.Result` is one."""

    @property
    def returncode(self) -> int:
        """Exit status."""

    @property
    def output(self) -> str:
        """What it wrote, stdout and stderr together."""


class Runner(Protocol):
    """Runs a program where the toolkit will be used: in the sandbox, or for tests on the host.

    ``argv`` and ``cwd`` are paths as seen there. A non-zero exit is returned, not raised.
    """

    def __call__(self, argv: Sequence[str], *, cwd: str) -> Completed:
        """Run to the end and return."""

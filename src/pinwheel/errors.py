"""Every error a user can meet: one class each, with its own exit code and what to do about it.

Exit codes are documented in ``docs/exit-codes.md``; a test keeps the two equal.
``0`` is success, ``1`` a check that answered "no", ``2`` wrong usage, ``70`` a bug in pinwheel,
``130`` an interrupt. Everything else is one of the classes below.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class PinwheelError(Exception):
    """An error meant for a person: which input, which rule, the evidence, what to do next.

    Args:
        what: one sentence naming the input that is wrong.
        evidence: what was seen, a line each (paths, lines, hashes, versions).
        next_step: what the user can do about it, one or two sentences.

    Attributes:
        exit_code: the process exit status, own to each class.
        rule: stable identifier of the rule that was broken.
    """

    exit_code: ClassVar[int] = 70
    rule: ClassVar[str] = "internal"

    def __init__(self, what: str, *, evidence: Iterable[str] = (), next_step: str) -> None:
        super().__init__(what)
        self.what = what
        self.evidence = (evidence,) if isinstance(evidence, str) else tuple(evidence)
        self.next_step = next_step

    def as_dict(self) -> dict[str, object]:
        """The error as plain data, for ``--json`` output."""
        return {
            "error": self.what,
            "rule": self.rule,
            "evidence": list(self.evidence),
            "next": self.next_step,
            "exit_code": self.exit_code,
        }


# --- 10-19: what a person wrote -------------------------------------------------------------


class MatrixError(PinwheelError):
    """``arch_matrix.toml`` cannot be read or has a wrong shape."""

    exit_code = 10
    rule = "matrix-malformed"


class UnknownComboError(PinwheelError):
    """No combo of that name; the nearest ones are offered."""

    exit_code = 11
    rule = "unknown-combo"


class RecipeError(PinwheelError):
    """A recipe cannot be read or has a wrong shape."""

    exit_code = 12
    rule = "recipe-malformed"


class LockError(PinwheelError):
    """A lock cannot be read or has a wrong shape."""

    exit_code = 13
    rule = "lock-malformed"


class CapabilityError(PinwheelError):
    """A capability list cannot be parsed, or the toolkit cannot target it."""

    exit_code = 14
    rule = "capability-refused"


class ContradictionError(PinwheelError):
    """Two statements of matrix and recipes exclude each other."""

    exit_code = 15
    rule = "matrix-contradiction"


class LockStaleError(PinwheelError):
    """A lock no longer follows from its recipe, matrix or patches."""

    exit_code = 16
    rule = "lock-stale"


class SettingsError(PinwheelError):
    """``pinwheel.toml`` or an environment variable is wrong, or a source has no URL."""

    exit_code = 17
    rule = "settings"


class ToolchainError(PinwheelError):
    """Compiler and CUDA line exclude each other (gcc newer than nvcc takes, say)."""

    exit_code = 18
    rule = "toolchain-refused"


# --- 20-29: inputs -------------------------------------------------------------------------


class FetchError(PinwheelError):
    """An input could not be had from any of its places."""

    exit_code = 20
    rule = "input-unreachable"


class HashMismatchError(PinwheelError):
    """Bytes differ from what the lock names."""

    exit_code = 21
    rule = "hash-mismatch"


class MissingInputsError(PinwheelError):
    """Offline, and inputs are not in the store; all of them are listed."""

    exit_code = 22
    rule = "input-missing-offline"


class DiskFullError(PinwheelError):
    """No space left where something had to be written."""

    exit_code = 23
    rule = "disk-full"


class NotWritableError(PinwheelError):
    """A directory that has to be written cannot be."""

    exit_code = 24
    rule = "not-writable"


class ResolveError(PinwheelError):
    """A lock could not be resolved."""

    exit_code = 25
    rule = "lock-unresolvable"


# --- 30-39: root, toolkit, environment, patches --------------------------------------------


class SandboxError(PinwheelError):
    """The kernel refuses the sandbox, or the sandbox could not be entered."""

    exit_code = 30
    rule = "sandbox-refused"


class UnpackError(PinwheelError):
    """An archive could not be unpacked, or holds what it must not."""

    exit_code = 31
    rule = "unpack-refused"


class EnvironmentInstallError(PinwheelError):
    """The locked Python environment could not be installed."""

    exit_code = 32
    rule = "environment-install"


class ToolkitError(PinwheelError):
    """The CUDA toolkit could not be assembled or does not do what it must."""

    exit_code = 33
    rule = "toolkit"


class PatchError(PinwheelError):
    """A patch has no proper header or does not apply exactly."""

    exit_code = 34
    rule = "patch-refused"


# --- 40-49: compiling ----------------------------------------------------------------------


class CompileError(PinwheelError):
    """A source did not compile; its command, log and cause are shown."""

    exit_code = 40
    rule = "compile-failed"


class OutOfMemoryError(PinwheelError):
    """A compiler was killed for memory."""

    exit_code = 41
    rule = "out-of-memory"


class BusyError(PinwheelError):
    """Another pinwheel works on the same thing."""

    exit_code = 42
    rule = "busy"


# --- 50-59: the finished wheel -------------------------------------------------------------


class WheelError(PinwheelError):
    """A wheel cannot be read, or finishing it would make a false statement."""

    exit_code = 50
    rule = "wheel-refused"


class PlatformTagError(PinwheelError):
    """The symbols a wheel needs fit no platform tag."""

    exit_code = 51
    rule = "platform-tag"


class ProofError(PinwheelError):
    """The finished wheel does not do what the recipe expects of it."""

    exit_code = 52
    rule = "proof-failed"


class GateError(PinwheelError):
    """The finished wheel breaks a rule of verify."""

    exit_code = 53
    rule = "gate-failed"


# --- 60-69: what somebody else made ---------------------------------------------------------


class ArtifactError(PinwheelError):
    """A wheel or library that is to be inspected is damaged, or made so that readers differ."""

    exit_code = 60
    rule = "artifact-unreadable"


class SnapshotError(PinwheelError):
    """What pinwheel itself knows of a torch build, its snapshot, is missing or damaged."""

    exit_code = 61
    rule = "snapshot-unreadable"

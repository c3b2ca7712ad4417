"""Compute capabilities: reading a list a person wrote, and which code runs on which GPU.

Rules of compatibility come from NVIDIA's CUDA C++ Programming Guide, "Application
Compatibility" (binary compatibility, PTX compatibility, architecture- and family-specific
targets). Which capabilities exist, and which belong to Tegra parts, is data of the matrix and
handed in as :class:`KnownCapabilities`; a capability the matrix does not know is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pinwheel.errors import CapabilityError

Variant = Literal["", "a", "f"]

_DOTTED = re.compile(r"([0-9]{1,2})\.([0-9])([af]?)(\+PTX)?")
_COMPACT = re.compile(r"([0-9]{1,2})([0-9])([af]?)(\+PTX)?")
_VARIANTS: dict[str, Variant] = {"": "", "a": "a", "f": "f"}
_SEPARATOR = re.compile(r"[ \t\n]*[;,][ \t\n]*|[ \t\n]+")

#: Longest list read, in characters; the whole known set takes a quarter of it.
_LONGEST = 1000

#: Names PyTorch's cpp_extension expands, differently from release to release.
_NAMED = re.compile(
    "kepler|tesla|maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell|thor|orin|xavier"
)
_NEXT = (
    "Write capabilities one by one, for example 8.0;8.6;8.9;9.0 "
    "(9.0a and 10.0f are variants, 9.0+PTX adds PTX)."
)


@dataclass(frozen=True, slots=True)
class Capability:
    """One target: compute capability X.Y, its variant, and whether PTX is embedded too.

    Attributes:
        major, minor: X and Y; Y is a single digit.
        variant: ``a`` architecture-specific, ``f`` family-specific, empty for plain code.
        ptx: PTX goes in beside the machine code (``9.0+PTX``).
    """

    major: int
    minor: int
    variant: Variant = ""
    ptx: bool = False

    def __post_init__(self) -> None:
        if not (1 <= self.major <= 99 and 0 <= self.minor <= 9):
            raise ValueError(f"{self.major}.{self.minor} is no compute capability")
        if self.variant not in ("", "a", "f"):
            raise ValueError(f"{self.variant!r} is no variant of a compute capability")

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.variant}{'+PTX' if self.ptx else ''}"

    def __lt__(self, other: Capability) -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[int, int, str, bool]:
        return (self.major, self.minor, self.variant, self.ptx)

    @property
    def sm(self) -> str:
        """The machine-code target as nvcc names it, ``sm_90a``."""
        return f"sm_{self.major}{self.minor}{self.variant}"

    @property
    def compute(self) -> str:
        """The PTX target as nvcc names it, ``compute_90a``."""
        return f"compute_{self.major}{self.minor}{self.variant}"

    @property
    def base(self) -> tuple[int, int]:
        """``(X, Y)``, the capability a GPU reports."""
        return (self.major, self.minor)

    @property
    def code(self) -> Capability:
        """The same target without PTX."""
        return Capability(self.major, self.minor, self.variant)

    @property
    def gencode(self) -> tuple[str, ...]:
        """nvcc's ``-gencode`` arguments for this target."""
        flags = [f"-gencode=arch={self.compute},code={self.sm}"]
        if self.ptx:
            flags.append(f"-gencode=arch={self.compute},code={self.compute}")
        return tuple(flags)


@dataclass(frozen=True, slots=True)
class KnownCapabilities:
    """The capabilities a matrix knows.

    Attributes:
        accepted: every target that may be asked for, variants included, without PTX.
        tegra: ``(X, Y)`` of the capabilities that belong to Tegra parts (Jetson, Drive).
    """

    accepted: frozenset[Capability]
    tegra: frozenset[tuple[int, int]]

    def __contains__(self, capability: object) -> bool:
        return isinstance(capability, Capability) and capability.code in self.accepted


def format_capabilities(capabilities: Iterable[Capability]) -> str:
    """The list as ``TORCH_CUDA_ARCH_LIST`` takes it: ``8.0;8.6;9.0a``."""
    return ";".join(str(c) for c in capabilities)


def parse_capability(text: str, *, known: KnownCapabilities) -> Capability:
    """Read one capability: ``8.0``, ``80``, ``9.0a``, ``10.0f``, ``9.0+PTX``.

    Raises:
        CapabilityError: it is none, or the matrix does not know it; says why.
    """
    match = _DOTTED.fullmatch(text) or _COMPACT.fullmatch(text)
    if match is None:
        raise _refused(text, _why_not(text))
    major, minor, letter, ptx_marker = match.groups()
    if major.startswith("0"):
        raise _refused(text, f"no compute capability starts with {major!r}")
    variant = _VARIANTS[letter]
    capability = Capability(int(major), int(minor), variant, ptx_marker is not None)
    if capability not in known:
        raise _unknown(text, capability, known)
    return capability


def parse_capabilities(
    value: str | Iterable[str | Capability], *, known: KnownCapabilities
) -> tuple[Capability, ...]:
    """Read a capability list and normalize it: sorted, each target once.

    Args:
        value: one string with ``;``, ``,`` or blanks between the entries, or the entries.
        known: what the matrix knows.

    Raises:
        CapabilityError: empty, a word such as ``native`` or ``all``, an entry twice, an entry
            that is no capability, or one the matrix does not know. The reason is given.
    """
    if isinstance(value, str):
        if len(value) > _LONGEST:
            raise _refused(value, f"it is longer than {_LONGEST} characters")
        text = value.strip(" \t\n")
        if not text:
            raise _refused(value, "it is empty; what is built must be said, never guessed")
        entries: list[str | Capability] = list(_SEPARATOR.split(text))
        if "" in entries:
            raise _refused(value, "an entry is empty (two separators in a row, or one at an end)")
    else:
        entries = list(value)
        if not entries:
            raise _refused("", "it is empty; what is built must be said, never guessed")

    found: dict[Capability, Capability] = {}
    for entry in entries:
        if isinstance(entry, Capability):
            capability = entry
            if capability not in known:
                raise _unknown(str(entry), capability, known)
        elif isinstance(entry, str):
            capability = parse_capability(entry, known=known)
        else:
            raise _refused(repr(entry), "entries must be strings")
        if (earlier := found.get(capability.code)) is not None:
            raise CapabilityError(
                f"capability list is refused: {capability.code} is named twice",
                evidence=(
                    f"{earlier} and {capability} in {_show(' '.join(map(str, entries[:50])))}",
                ),
                next_step="Name each capability once.",
            )
        found[capability.code] = capability
    return tuple(sorted(found.values()))


def _show(value: str) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _refused(text: str, why: str) -> CapabilityError:
    return CapabilityError(f"capability {_show(text)} is refused: {why}", next_step=_NEXT)


def _unknown(text: str, capability: Capability, known: KnownCapabilities) -> CapabilityError:
    plain = Capability(capability.major, capability.minor)
    if capability.variant and plain in known.accepted:
        why = f"{plain} has no variant {capability.variant!r} in the matrix"
    else:
        why = "the matrix knows no such capability"
    return CapabilityError(
        f"capability {_show(text)} is refused: {why}",
        evidence=("known: " + " ".join(str(c) for c in sorted(known.accepted)),),
        next_step="Choose a known one, or add it to arch_matrix.toml [capabilities] with its "
        "source.",
    )


def _why_not(text: str) -> str:
    """Why a text that is no capability looks like none."""
    lower = text.lower()
    if lower == "native":
        return "it means the GPU of the machine that builds, so no two machines build the same"
    if lower in ("all", "all-major", "common"):
        return "it means other targets with every toolkit, and more than anyone tested"
    if any(_NAMED.fullmatch(word) for word in re.split(r"[^a-z]+", lower)):
        return "architecture names stand for other lists in every PyTorch release"
    if re.fullmatch(r"[0-9]+\.[0-9]{2,}[af]?(\+PTX)?", text):
        return "the minor number of a capability is a single digit"
    if re.fullmatch(r"[0-9.]+\([0-9.]+\)", text):
        return "two capabilities in one (code for one, features of another) are not built"
    if re.fullmatch(r"[0-9.]+[af]?\+ptx", text, re.IGNORECASE):
        return "PTX is asked for with exactly +PTX"
    if re.match(r"(sm|compute|lto)_?[0-9]", lower) or re.fullmatch(r"[0-9]+-(real|virtual)", lower):
        return "that is a compiler target; the list takes the capability itself"
    if any(c.isspace() or c in ";," for c in text):
        return "it is several entries in one"
    return "it is not of the form X.Y"


# --- which code runs on which GPU -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether code runs on a GPU, and the rule that decides it."""

    runs: bool
    reason: str

    def __bool__(self) -> bool:
        return self.runs


class Cover(StrEnum):
    """How a GPU is served by a set of targets, best first."""

    NATIVE = "native"
    SAME_MAJOR = "same-major"
    PTX = "ptx"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How a GPU is served, by which target, and why."""

    cover: Cover
    by: Capability | None
    reason: str


def sass(code: Capability, device: Capability, *, known: KnownCapabilities) -> Verdict:
    """Whether machine code built for ``code`` runs on a GPU of capability ``device``.

    Args:
        code: the target; its ``ptx`` is not looked at.
        device: what the GPU reports; a variant on it is a usage error.
        known: for telling Tegra parts from the others.

    Raises:
        CapabilityError: the answer depends on a capability the matrix does not know.
    """
    if device.variant:
        raise ValueError(f"a GPU reports X.Y without variant, not {device}")
    if code.base == device.base:
        return Verdict(True, f"{code.sm} is this GPU's own machine code")
    if code.variant == "a":
        return Verdict(False, f"{code.sm} runs on {code.major}.{code.minor} only")
    if code.major != device.major:
        return Verdict(False, f"{code.sm} is of another major capability than {device}")
    if code.minor > device.minor:
        return Verdict(False, f"{code.sm} needs a newer GPU than {device}")
    if mixed := _tegra_mixed(code, device, known):
        return Verdict(False, mixed)
    kind = "family" if code.variant == "f" else "major capability"
    return Verdict(True, f"{code.sm} runs on {device}: same {kind}, lower minor")


def ptx(code: Capability, device: Capability, *, known: KnownCapabilities) -> Verdict:
    """Whether PTX for ``code`` can be compiled by the driver for a GPU of ``device``.

    The driver must also be new enough for the PTX (minor-version compatibility gives no PTX
    compilation); that is the driver's question, not asked here.

    Raises:
        CapabilityError: the answer depends on a capability the matrix does not know.
    """
    if device.variant:
        raise ValueError(f"a GPU reports X.Y without variant, not {device}")
    if code.base == device.base:
        return Verdict(True, f"{code.compute} PTX is for this capability")
    if code.variant == "a":
        return Verdict(False, f"{code.compute} PTX is for {code.major}.{code.minor} only")
    if code.base > device.base:
        return Verdict(False, f"{code.compute} PTX needs a newer GPU than {device}")
    if code.variant == "f":
        if code.major != device.major:
            return Verdict(False, f"{code.compute} PTX is for its own family, {device} is not")
        if mixed := _tegra_mixed(code, device, known):
            return Verdict(False, mixed)
    return Verdict(True, f"the driver compiles {code.compute} PTX for {device}")


def sass_runs_on(code: Capability, device: Capability, *, known: KnownCapabilities) -> bool:
    """:func:`sass` as yes or no."""
    return sass(code, device, known=known).runs


def ptx_runs_on(code: Capability, device: Capability, *, known: KnownCapabilities) -> bool:
    """:func:`ptx` as yes or no."""
    return ptx(code, device, known=known).runs


def coverage(
    targets: Iterable[Capability], device: Capability, *, known: KnownCapabilities
) -> Coverage:
    """How a GPU is served by a set of targets: own code, same-major code, PTX, or not at all.

    Own code counts before same-major code of the nearest minor, that before PTX of the newest
    target; judge every library by its own targets, never a package by its declared list.

    Raises:
        CapabilityError: the answer depends on a capability the matrix does not know.
    """
    newest_first = sorted(targets, reverse=True)
    own = [t for t in newest_first if t.base == device.base]
    if own:
        return Coverage(Cover.NATIVE, own[-1], sass(own[-1], device, known=known).reason)
    for target in newest_first:
        if verdict := sass(target, device, known=known):
            return Coverage(Cover.SAME_MAJOR, target, verdict.reason)
    for target in newest_first:
        if target.ptx and (verdict := ptx(target, device, known=known)):
            return Coverage(Cover.PTX, target, verdict.reason)
    shown = " ".join(str(t) for t in sorted(newest_first)) or "nothing"
    return Coverage(
        Cover.NONE,
        None,
        f"{device} is missing: {shown} holds no machine code of its major capability that runs "
        "on it, and no PTX it could be compiled from",
    )


def _tegra_mixed(code: Capability, device: Capability, known: KnownCapabilities) -> str:
    """Why two different capabilities exclude each other as Tegra and desktop; empty if not."""
    for capability in (code, device):
        if Capability(*capability.base) not in known.accepted:
            raise _unknown(str(capability), capability, known)
    if (code.base in known.tegra) == (device.base in known.tegra):
        return ""
    part = "a Tegra part" if device.base in known.tegra else "no Tegra part"
    other = "Tegra parts" if code.base in known.tegra else "other GPUs"
    return f"{device} is {part} and {code.sm} is code for {other}; they exclude each other"

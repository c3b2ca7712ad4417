"""Combo ids and artifact versions: one grammar each, read and printed here and nowhere else."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from pinwheel.errors import UnknownComboError, WheelError

_CUDA = re.compile(r"[1-9][0-9][0-9]")
_TORCH = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_PACKAGE = re.compile(r"[a-z](?:[a-z0-9-]*[a-z])?")
_RELEASE = r"[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?"
_COMBO = re.compile(
    rf"cu(?P<cuda>{_CUDA.pattern})-torch(?P<torch>[0-9]+\.[0-9]+)-"
    rf"(?P<package>[a-z](?:[a-z0-9-]*?[a-z])??)(?P<release>{_RELEASE})"
)
_VERSION = re.compile(
    rf"(?P<release>{_RELEASE})\+cu(?P<cuda>{_CUDA.pattern})\.torch(?P<torch>[0-9]+\.[0-9]+)"
    rf"(?:\.ctk(?P<ctk>{_CUDA.pattern}))?"
)
#: Longest id or version read, in characters.
_LONGEST = 200
_FORM = "cu<CUDA line>-torch<minor>-<package><release>, for example cu121-torch2.3-vllm0.6.3"


def line_to_tag(line: str) -> str:
    """``12.1`` to ``121``.

    Raises:
        ValueError: ``line`` is no CUDA line.
    """
    if not re.fullmatch(r"[1-9][0-9]\.[0-9]", line):
        raise ValueError(f"{line!r} is no CUDA line; one reads like 12.4")
    return line.replace(".", "")


def tag_to_line(tag: str) -> str:
    """``121`` to ``12.1``.

    Raises:
        ValueError: ``tag`` is no CUDA tag.
    """
    if not _CUDA.fullmatch(tag):
        raise ValueError(f"{tag!r} is no CUDA tag; one reads like 124")
    return f"{tag[:-1]}.{tag[-1]}"


def _check(cuda: str, torch: str, release: str) -> None:
    tag_to_line(cuda)
    if not _TORCH.fullmatch(torch):
        raise ValueError(f"{torch!r} is no torch minor; one reads like 2.3")
    if not re.fullmatch(_RELEASE, release):
        raise ValueError(f"{release!r} is no release")
    try:
        normal = str(Version(release))
    except InvalidVersion as error:  # pragma: no cover - the pattern admits versions only
        raise ValueError(str(error)) from error
    if normal != release:
        raise ValueError(f"release {release!r} is written {normal!r} in normal form")


@dataclass(frozen=True, slots=True, order=True)
class ComboId:
    """One combo: CUDA line of the torch build, torch minor, package and its release.

    Attributes:
        cuda: CUDA tag of the torch build, ``121``.
        torch: torch minor, ``2.3``.
        package: project name, lower case, ending in a letter.
        release: its release in PEP 440's normal form.
    """

    cuda: str
    torch: str
    package: str
    release: str

    def __post_init__(self) -> None:
        _check(self.cuda, self.torch, self.release)
        match = _COMBO.fullmatch(str(self))
        # A name such as "x0rc" with release "1" would be read back as another pair.
        if not _PACKAGE.fullmatch(self.package) or not match or match["package"] != self.package:
            raise ValueError(f"package {self.package!r} cannot be part of a combo id")

    def __str__(self) -> str:
        return f"cu{self.cuda}-torch{self.torch}-{self.package}{self.release}"

    @property
    def cuda_line(self) -> str:
        """The CUDA line, ``12.1``."""
        return tag_to_line(self.cuda)

    @classmethod
    def parse(cls, text: str) -> ComboId:
        """Read a combo id.

        Raises:
            UnknownComboError: it is not of the form.
        """
        match = _COMBO.fullmatch(text) if len(text) <= _LONGEST else None
        try:
            if match is None:
                raise ValueError(f"it is not of the form {_FORM}")
            return cls(**match.groupdict())
        except ValueError as error:
            shown = repr(text if len(text) <= 80 else text[:77] + "...")
            raise UnknownComboError(
                f"{shown} is no combo id",
                evidence=(str(error),),
                next_step="Name a combo that `pinwheel matrix` lists.",
            ) from error


@dataclass(frozen=True, slots=True)
class ArtifactVersion:
    """Version of an artifact, a PEP 440 local version: ``0.6.3+cu121.torch2.3.ctk124``.

    Attributes:
        release: the package's own release.
        cuda: CUDA tag of the torch build.
        torch: torch minor.
        ctk: CUDA tag of the toolkit that compiled it, only where it is of another line.
    """

    release: str
    cuda: str
    torch: str
    ctk: str | None = None

    def __post_init__(self) -> None:
        _check(self.cuda, self.torch, self.release)
        if self.ctk is not None:
            tag_to_line(self.ctk)
            if self.ctk == self.cuda:
                raise ValueError(f"ctk{self.ctk} is named only where it differs from cu{self.cuda}")

    def __str__(self) -> str:
        suffix = f".ctk{self.ctk}" if self.ctk else ""
        return f"{self.release}+cu{self.cuda}.torch{self.torch}{suffix}"

    @classmethod
    def of(cls, combo: ComboId, toolkit_line: str) -> ArtifactVersion:
        """The version of ``combo`` compiled by a toolkit of ``toolkit_line`` (``12.4``)."""
        tag = line_to_tag(toolkit_line)
        return cls(combo.release, combo.cuda, combo.torch, tag if tag != combo.cuda else None)

    @classmethod
    def parse(cls, text: str) -> ArtifactVersion:
        """Read an artifact's version.

        Raises:
            WheelError: it is not of the form.
        """
        match = _VERSION.fullmatch(text) if len(text) <= _LONGEST else None
        try:
            if match is None:
                raise ValueError(
                    "it is not of the form <release>+cu<line>.torch<minor>[.ctk<line>]"
                )
            return cls(**match.groupdict())
        except ValueError as error:
            shown = repr(text if len(text) <= 80 else text[:77] + "...")
            raise WheelError(
                f"{shown} is no artifact version",
                evidence=(str(error),),
                next_step="Use a wheel that pinwheel built.",
            ) from error


def nearest(text: str, combos: Iterable[str], *, most: int = 3) -> tuple[str, ...]:
    """The combos most like ``text``: first by fields in common, then by spelling."""
    text = text[:_LONGEST]
    match = _COMBO.fullmatch(text)
    wanted = match.groupdict() if match else {}

    def likeness(candidate: str) -> tuple[int, float]:
        have = _COMBO.fullmatch(candidate)
        fields = have.groupdict() if have else {}
        common = sum(1 for key, value in wanted.items() if fields.get(key) == value)
        return (common, difflib.SequenceMatcher(None, text.lower(), candidate).ratio())

    ranked = sorted(sorted(combos), key=likeness, reverse=True)
    return tuple(ranked[:most])


def find_combo(text: str, combos: Iterable[str]) -> ComboId:
    """The offered combo called ``text``.

    Raises:
        UnknownComboError: none is called that; offers the nearest.
    """
    offered = sorted(combos)
    if text in offered:
        return ComboId.parse(text)
    shown = text if len(text) <= 80 else text[:77] + "..."
    near = nearest(text, offered)
    evidence = [f"nearest: {name}" for name in near] or ["the matrix offers no combo at all"]
    if not _COMBO.fullmatch(text[: _LONGEST + 1]):
        evidence.insert(0, f"a combo id has the form {_FORM}")
    raise UnknownComboError(
        f"{shown!r} is no combo of the matrix",
        evidence=evidence,
        next_step=f"Did you mean {near[0]}? `pinwheel matrix` lists every combo."
        if near
        else "Add it to arch_matrix.toml [combos].",
    )

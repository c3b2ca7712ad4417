"""The platform tag a wheel really has: the oldest policy that brings every symbol it needs.

The policies are auditwheel's (PEP 600; each is what one glibc's distributions all have). Only its
data is used: its own walk over dependencies asks the loader of the machine it runs on, and the
answer must not depend on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import PurePosixPath
from typing import Protocol

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import Policy, WheelPolicies

from pinwheel.errors import PlatformTagError

_ARCHITECTURES = {"EM_X86_64": Architecture.x86_64, "EM_AARCH64": Architecture.aarch64}


class Need(Protocol):
    """A symbol version that a library needs of another."""

    @property
    def library(self) -> str:
        """SONAME of the one that has to bring it."""

    @property
    def version(self) -> str:
        """``GLIBC_2.34``, say."""


class Undefined(Protocol):
    """A symbol that another library has to bring."""

    @property
    def name(self) -> str:
        """As in the symbol table."""

    @property
    def weak(self) -> bool:
        """The library can do without it."""


class Library(Protocol):
    """What is asked of an ELF library, whichever reader read it."""

    @property
    def name(self) -> str:
        """Path within the wheel."""

    @property
    def machine(self) -> str:
        """``EM_X86_64``, say."""

    @property
    def soname(self) -> str:
        """DT_SONAME or empty."""

    @property
    def needed(self) -> tuple[str, ...]:
        """DT_NEEDED."""

    @property
    def version_needs(self) -> Sequence[Need]:
        """Every symbol version it needs."""

    @property
    def undefined(self) -> Sequence[Undefined]:
        """Undefined dynamic symbols."""

    @property
    def isa(self) -> tuple[str, ...]:
        """Instruction-set levels beyond the baseline."""

    def symbols_of(self, version: str) -> tuple[str, ...]:
        """Names of the undefined symbols that need ``version``."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One reason why a library does not fit a policy.

    Attributes:
        library: path within the wheel.
        needs: a symbol version (``GLIBC_2.34``), a library name or a symbol.
        of: the library that would have to bring it.
        symbols: names of symbols that need it, at most a few.
    """

    library: str
    needs: str
    of: str
    symbols: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = f" ({', '.join(self.symbols)})" if self.symbols else ""
        return f"{self.library} needs {self.needs} of {self.of}{names}"


@dataclass(frozen=True, slots=True)
class Platform:
    """The verdict.

    Attributes:
        tag: ``manylinux_2_34_x86_64``.
        reasons: what keeps the wheel from the next older policy; empty when there is none older.
    """

    tag: str
    reasons: tuple[Misfit, ...]


def comes_from_elsewhere(soname: str, patterns: Iterable[str]) -> bool:
    """Whether a library is brought by something else (torch, the driver), by shell pattern."""
    return any(fnmatchcase(soname, pattern) for pattern in patterns)


@cache
def _policies(machine: str) -> tuple[Policy, ...]:
    """Policies for an ELF machine, the oldest system first, plain ``linux`` left out."""
    policies = WheelPolicies(libc=Libc.GLIBC, arch=_ARCHITECTURES[machine])
    return tuple(sorted((p for p in policies if p.priority > 0), reverse=True))


def _machine(libraries: Sequence[Library]) -> str:
    machines = {lib.machine for lib in libraries}
    if len(machines) != 1 or not machines <= _ARCHITECTURES.keys():
        raise PlatformTagError(
            "the wheel's libraries are not all of one machine that has a platform tag",
            evidence=[f"{lib.name}: {lib.machine}" for lib in libraries],
            next_step="Build every library with the build root's own compiler.",
        )
    return machines.pop()


def misfits(
    libraries: Sequence[Library], policy: Policy, elsewhere: Sequence[str]
) -> tuple[Misfit, ...]:
    """Everything that keeps ``libraries`` from ``policy``; empty when they fit.

    A version node of a kind that the policy does not know counts as a misfit: unknown is not ok.
    """
    found: list[Misfit] = []
    inside = {PurePosixPath(lib.name).name for lib in libraries} | {
        lib.soname for lib in libraries if lib.soname
    }
    for lib in libraries:
        for soname in lib.needed:
            if _is_loader(soname) or soname in inside or soname in policy.whitelist:
                continue
            if not comes_from_elsewhere(soname, elsewhere):
                found.append(Misfit(lib.name, soname, "the system"))
        for need in lib.version_needs:
            if need.library in inside or comes_from_elsewhere(need.library, elsewhere):
                continue
            kind, _, number = need.version.partition("_")
            if number not in policy.symbol_versions.get(kind, frozenset()):
                symbols = lib.symbols_of(need.version)[:3]
                found.append(Misfit(lib.name, need.version, need.library, symbols))
        strong = {s.name for s in lib.undefined if not s.weak}
        for soname, private in policy.blacklist.items():
            if soname in lib.needed and private & strong:
                symbols = tuple(sorted(private & strong)[:3])
                found.append(Misfit(lib.name, "private symbols", soname, symbols))
        found.extend(Misfit(lib.name, level, "the processor") for level in lib.isa)
    return tuple(found)


def _is_loader(soname: str) -> bool:
    return soname.startswith("ld-linux")


def platform_of(libraries: Sequence[Library], elsewhere: Sequence[str]) -> Platform:
    """The oldest policy that ``libraries`` fit.

    Args:
        libraries: all ELF libraries of the wheel; at least one.
        elsewhere: shell patterns of library names that torch, the CUDA wheels or the driver
            bring.

    Raises:
        PlatformTagError: no policy fits; names the symbols or libraries.
    """
    machine = _machine(libraries)
    reasons: tuple[Misfit, ...] = ()
    for policy in _policies(machine):
        found = misfits(libraries, policy, elsewhere)
        if not found:
            return Platform(policy.name, reasons)
        reasons = found
    newest = _policies(machine)[-1].name
    raise PlatformTagError(
        f"no platform tag fits the wheel, not even {newest}",
        evidence=[str(m) for m in reasons],
        next_step="Build in an older build root, link the library statically, or name it among "
        "those that another package brings.",
    )


def require(libraries: Sequence[Library], tag: str, elsewhere: Sequence[str]) -> None:
    """Refuse a platform tag that claims more than is true.

    Args:
        libraries: all ELF libraries of the wheel.
        tag: the tag the wheel carries; compressed sets (``a.b``) have to hold for each part.
        elsewhere: as in :func:`platform_of`.

    Raises:
        PlatformTagError: the tag is unknown or the libraries need more; names the symbol and the
            right tag.
    """
    by_name = {n: p for p in _policies(_machine(libraries)) for n in (p.name, *p.aliases)}
    for part in tag.split("."):
        policy = by_name.get(part)
        if policy is not None and not (found := misfits(libraries, policy, elsewhere)):
            continue
        right = platform_of(libraries, elsewhere)
        raise PlatformTagError(
            f"the platform tag {part} is not true of this wheel",
            evidence=["auditwheel knows no such policy"]
            if policy is None
            else [str(m) for m in found],
            next_step=f"The right tag is {right.tag}.",
        )


def version_floor(library: Library, elsewhere: Sequence[str]) -> dict[str, str]:
    """Newest version needed of each kind, system libraries only: ``{"GLIBC": "2.32", ...}``."""
    floor: dict[str, str] = {}
    for need in library.version_needs:
        if comes_from_elsewhere(need.library, elsewhere):
            continue
        kind, _, number = need.version.partition("_")
        if kind not in floor or _ordered(number) > _ordered(floor[kind]):
            floor[kind] = number
    return dict(sorted(floor.items()))


def _ordered(number: str) -> tuple[tuple[int, int | str], ...]:
    return tuple((1, int(p)) if p.isdigit() else (0, p) for p in number.split("."))

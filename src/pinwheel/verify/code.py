"""Machine code against what is declared: of the wheel, per library and per kernel.

Rules: SASS for X.y runs on X.z with z >= y, desktop and Tegra parts apart, ``a`` variants on their
own capability alone; PTX is compiled by the driver for any later capability. Judged from the code
that is there, never from membership in a list (CUDA C++ programming guide, binary and PTX
compatibility; :mod:`pinwheel.matrix.capability` has the rules themselves).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from pinwheel.matrix.capability import (
    Capability,
    Cover,
    Coverage,
    KnownCapabilities,
    format_capabilities,
    ptx,
    sass,
)
from pinwheel.verify.model import Checked, Problem

#: How many kernels a message names; the report has all of them.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Targets:
    """What code there is: capabilities with machine code, and with PTX."""

    sass: frozenset[Capability] = frozenset()
    ptx: frozenset[Capability] = frozenset()

    def __or__(self, other: Targets) -> Targets:
        return Targets(self.sass | other.sass, self.ptx | other.ptx)

    def __str__(self) -> str:
        names = [c.sm for c in sorted(self.sass)] + [c.compute for c in sorted(self.ptx)]
        return " ".join(names) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCode:
    """The code of one library.

    Attributes:
        name: path within the wheel, or the library's file name.
        cubins: capability -> number of cubins.
        ptx: capability -> number of PTX texts.
        kernels: kernel (mangled) -> where it has code; empty when kernels were not read.
        serving: capabilities with an image that holds a kernel; None when kernels were not read.
    """

    name: str
    cubins: Mapping[Capability, int]
    ptx: Mapping[Capability, int] = field(default_factory=dict)
    kernels: Mapping[str, Targets] = field(default_factory=dict)
    serving: Targets | None = None

    @property
    def images(self) -> Targets:
        """What there is an image for, with a kernel in it or not."""
        return Targets(frozenset(self.cubins), frozenset(self.ptx))

    @property
    def targets(self) -> Targets:
        """What its kernels have code for.

        nvcc writes an image for every capability it is told, also of a source without a kernel:
        such a one serves nobody. Where kernels were not read, each image counts.
        """
        return self.images if self.serving is None else self.serving

    @property
    def idle(self) -> bool:
        """It holds images, and no kernel in any of them: no GPU can miss anything."""
        return self.targets == Targets()


#: What nvcc has the host side of a library call for each kernel of its own (CUDA Runtime API,
#: "Execution Control"; crt/host_runtime.h). Who binds to it without a kernel can run nothing.
LAUNCHES = frozenset({"__cudaRegisterFunction", "cudaLaunchKernel", "cudaLaunchKernelExC"})


class CodeFault(StrEnum):
    """What an exception of a recipe may allow."""

    MISSING = "missing"
    PTX_ONLY = "ptx-only"
    KERNELS = "kernels"
    UNDECLARED = "undeclared"


_RULE = {
    CodeFault.MISSING: "code-libraries",
    CodeFault.PTX_ONLY: "code-native",
    CodeFault.KERNELS: "code-kernels",
    CodeFault.UNDECLARED: "code-declared",
}
_NOT_READ = "kernels were not read (--no-kernels)"
CODE_RULES = ("code-present", *_RULE.values(), "code-exceptions")


@dataclass(frozen=True, slots=True)
class CodeException:
    """A fault that a recipe announces, with its reason.

    Attributes:
        library: path within the wheel.
        capability: which one it concerns.
        fault: what is allowed.
        reason: why, for people.
    """

    library: str
    capability: Capability
    fault: CodeFault
    reason: str


def cover(targets: Targets, device: Capability, *, known: KnownCapabilities) -> Coverage:
    """How one GPU capability is served: own code, same-major code, PTX, or not at all.

    Raises:
        CapabilityError: the answer depends on a capability the matrix does not know.
    """
    newest_first = sorted(targets.sass, reverse=True)
    for target in newest_first:
        if target.base == device.base:
            return Coverage(Cover.NATIVE, target, sass(target, device, known=known).reason)
    for target in newest_first:
        if verdict := sass(target, device, known=known):
            return Coverage(Cover.SAME_MAJOR, target, verdict.reason)
    for target in sorted(targets.ptx, reverse=True):
        if verdict := ptx(target, device, known=known):
            return Coverage(Cover.PTX, target, verdict.reason)
    return Coverage(Cover.NONE, None, f"{targets} holds no code that runs on {device}")


def check_code(
    libraries: Sequence[LibraryCode],
    declared: Sequence[Capability],
    *,
    known: KnownCapabilities,
    expected: Iterable[str] = (),
    launching: Iterable[str] = (),
    exceptions: Iterable[CodeException] = (),
    kernels: bool = True,
    ptx_driver: Callable[[Capability], str] = lambda _: "",
    built: Sequence[Capability] | None = None,
) -> Checked:
    """Hold the code that is there against the declared capabilities.

    Args:
        libraries: those with device code.
        declared: the capability list the wheel claims; ``9.0+PTX`` declares PTX beside its code.
        known: the matrix's capabilities.
        expected: libraries that somebody says hold device code.
        launching: libraries that register or launch kernels of their own, by :data:`LAUNCHES`.
        exceptions: what the recipe announces; one that nothing needs is a problem itself.
        kernels: the libraries' kernels were read; otherwise nothing is known of them.
        ptx_driver: the driver that compiling PTX for a capability takes, for messages.
        built: what it was compiled for, where ``declared`` is only what it must serve; empty when
            nobody says, None when they are the same.

    Raises:
        CapabilityError: a library holds code for a capability the matrix does not know.
    """
    facts = {"code": _facts(libraries)}
    images, libraries = libraries, [library for library in libraries if not library.idle]
    expected = set(expected)
    empty = sorted({*launching} - {library.name for library in libraries} - expected)
    if not declared and not libraries and not empty:
        why = "no image of device code holds a kernel" if images else "no library holds device code"
        return Checked(skipped=dict.fromkeys(CODE_RULES, why), facts=facts if images else {})
    if not declared:
        why = "nothing says which capabilities it is for: name them with --archs"
        return Checked(unsure=dict.fromkeys(CODE_RULES, why), facts=facts)
    announced = {
        (e.library, e.capability.code, e.fault): e
        for e in exceptions
        if kernels or e.fault is not CodeFault.KERNELS
    }
    used: set[tuple[str, Capability, CodeFault]] = set()
    problems = list(_check_wheel(libraries, declared, known))
    missing = {p.subject for p in problems if p.rule == "code-present"}
    problems += (
        Problem(
            rule="code-present",
            subject=name,
            what=f"{name} launches kernels and holds none: they fail on every GPU",
            evidence=("it binds to one of " + ", ".join(sorted(LAUNCHES)),),
            next_step="Find out what took its device code away: a section that was renamed or "
            "stripped, or a build that never compiled it.",
        )
        for name in empty
    )
    problems += (
        Problem(
            rule="code-libraries",
            subject=name,
            what=f"{name} holds no kernel at all"
            if any(library.name == name for library in images)
            else f"{name} holds no device code at all",
            next_step=_NEXT[CodeFault.MISSING],
        )
        for name in sorted(expected - {library.name for library in libraries})
    )

    by_library: dict[tuple[CodeFault, str], list[_Fault]] = {}
    faults = [
        *_faults(libraries, declared, known, ptx_driver),
        *(f for lib in images for f in _check_declared(lib, declared, built, known)),
    ]
    for fault in faults:
        key = (fault.library, fault.capability.code, fault.fault)
        if key in announced:
            used.add(key)
        elif fault.fault is not CodeFault.MISSING or str(fault.capability) not in missing:
            by_library.setdefault((fault.fault, fault.library), []).append(fault)
    problems += (_problem(fault, name, of) for (fault, name), of in by_library.items())
    problems.extend(
        Problem(
            rule="code-exceptions",
            subject=library,
            what=f"the exception {fault.value} for {capability} in {library} is stale: "
            "nothing needs it",
            evidence=(f"reason given: {announced[library, capability, fault].reason}",),
            next_step="Take it out of the recipe.",
        )
        for library, capability, fault in sorted(announced.keys() - used)
    )
    return Checked(
        looked={
            "code-present": f"declared: {format_capabilities(declared)}",
            "code-libraries": f"{len(libraries)} with kernels"
            if kernels
            else f"{len(libraries)} with device code",
            "code-native": "by machine code",
            "code-kernels": f"{sum(len(library.kernels) for library in libraries)} kernels",
            "code-declared": "",
            "code-exceptions": f"{len(used)} in use",
        },
        # An image proves that code is missing, never that a kernel is there.
        unsure={} if kernels else dict.fromkeys(("code-present", "code-kernels"), _NOT_READ),
        problems=tuple(problems),
        facts=facts,
    )


def _check_wheel(
    libraries: Sequence[LibraryCode], declared: Sequence[Capability], known: KnownCapabilities
) -> Iterator[Problem]:
    """What no library has at all, by capability."""
    together = Targets()
    for library in libraries:
        together |= library.targets
    for capability in declared:
        found = cover(together, plain(capability), known=known)
        wants = capability.variant and capability.code not in together.sass
        if found.cover is Cover.NONE or wants:
            yield Problem(
                rule="code-present",
                subject=str(capability),
                what=f"no library has code for {capability.code}, which is declared",
                evidence=tuple(f"{lib.name} holds {lib.targets}" for lib in libraries)
                or ("no library holds device code",),
                next_step=_NEXT[CodeFault.MISSING],
            )
        elif capability.ptx and capability.code not in together.ptx:
            yield Problem(
                rule="code-libraries",
                subject=str(capability),
                what=f"no library holds PTX for {capability.code}, which {capability} declares",
                evidence=tuple(f"{lib.name} holds {lib.targets}" for lib in libraries),
                next_step=f"Declare {capability.code}, or find what takes the PTX away.",
            )


_NEXT = {
    CodeFault.MISSING: "Build it with this capability, or state the exception with its reason.",
    CodeFault.PTX_ONLY: "Compile machine code for it: PTX needs a driver at least as new as the "
    "toolkit that wrote it.",
    CodeFault.KERNELS: "Correct that kernel's capability list in CMake, or state the exception.",
    CodeFault.UNDECLARED: "Declare the capability, or take it out of the build.",
}

_WHAT = {
    CodeFault.MISSING: "{library} has no code that runs on {capabilities}",
    CodeFault.PTX_ONLY: "{library} serves {capabilities} by PTX alone",
    CodeFault.KERNELS: "{count} kernels of {library} have no machine code for {capabilities}, "
    "though others have",
    CodeFault.UNDECLARED: "{library} holds code for {capabilities}, which is not declared",
}


@dataclass(frozen=True, slots=True)
class _Fault:
    """What one library lacks of one capability; ``lines`` is the evidence."""

    fault: CodeFault
    library: str
    capability: Capability
    lines: tuple[str, ...]


def _problem(fault: CodeFault, library: str, found: Sequence[_Fault]) -> Problem:
    """One problem for all capabilities with that fault."""
    lines = list(dict.fromkeys(line for one in found for line in one.lines))
    shown = lines[:SHOWN]
    if len(lines) > SHOWN:
        shown.append(f"and {len(lines) - SHOWN} more")
    return Problem(
        rule=_RULE[fault],
        subject=library,
        what=_WHAT[fault].format(
            library=library,
            capabilities=" ".join(str(one.capability.code) for one in found),
            count=len(lines),
        ),
        evidence=tuple(shown),
        next_step=_NEXT[fault],
    )


def _faults(
    libraries: Sequence[LibraryCode],
    declared: Sequence[Capability],
    known: KnownCapabilities,
    ptx_driver: Callable[[Capability], str],
) -> Iterator[_Fault]:
    for library in libraries:
        yield from _check_library(library, declared, known, ptx_driver)
        yield from _check_kernels(library, declared, known)


def _check_library(
    library: LibraryCode,
    declared: Sequence[Capability],
    known: KnownCapabilities,
    ptx_driver: Callable[[Capability], str],
) -> Iterator[_Fault]:
    holds = f"it holds {library.targets}"
    for capability in declared:
        found = cover(library.targets, plain(capability), known=known)
        if found.cover is Cover.NONE:
            yield _Fault(CodeFault.MISSING, library.name, capability, (holds,))
        elif found.cover is Cover.PTX:
            driver = ptx_driver(found.by) if found.by else ""
            lines = (holds, f"compiling that PTX takes driver {driver}") if driver else (holds,)
            yield _Fault(CodeFault.PTX_ONLY, library.name, capability, lines)


def _check_kernels(
    library: LibraryCode, declared: Sequence[Capability], known: KnownCapabilities
) -> Iterator[_Fault]:
    @cache
    def falls_short(targets: Targets, device: Capability) -> bool:
        served = cover(targets, device, known=known).cover in (Cover.NONE, Cover.PTX)
        return served and meant_for(targets, device, known=known)

    for capability in declared:
        device = plain(capability)
        whole = cover(library.targets, device, known=known).cover
        if whole in (Cover.NONE, Cover.PTX):
            continue  # said of the library already
        short = sorted(n for n, of in library.kernels.items() if falls_short(of, device))
        if short:
            lines = tuple(f"{name}: {library.kernels[name]}" for name in short)
            yield _Fault(CodeFault.KERNELS, library.name, capability, lines)


def meant_for(targets: Targets, device: Capability, *, known: KnownCapabilities) -> bool:
    """Whether code is meant to run on that GPU at all, so that it is missed where it does not.

    Code that begins at a newer capability was written for that (Hopper's TMA, say), and code for
    one architecture or family alone for these; callers choose it there only. Plain code, once
    begun, is meant for every later GPU.
    """
    return any(
        t.base <= device.base if not t.variant else bool(sass(t, device, known=known))
        for t in targets.sass | targets.ptx
    )


def _check_declared(
    library: LibraryCode,
    declared: Sequence[Capability],
    built: Sequence[Capability] | None,
    known: KnownCapabilities,
) -> Iterator[_Fault]:
    bases = {c.base for c in (*declared, *(built or ()))}
    if built is not None and not built:  # nobody says: what serves a declared one is meant
        used = (cover(library.targets, plain(c), known=known).by for c in declared)
        bases |= {c.base for c in used if c is not None}
    serving = library.targets.sass | library.targets.ptx
    for target in sorted(library.images.sass | library.images.ptx):
        # 9.0a under a declared 9.0 is how CUTLASS's Hopper kernels are compiled.
        if target.base not in bases:
            count = library.cubins.get(target, 0) + library.ptx.get(target, 0)
            empty = "" if target in serving else ", without a kernel"
            line = f"{count} for {target}{empty}; declared: {format_capabilities(declared)}"
            yield _Fault(CodeFault.UNDECLARED, library.name, target, (line,))


def plain(capability: Capability) -> Capability:
    """The capability a GPU reports: without variant and PTX."""
    return Capability(*capability.base)


def _facts(libraries: Sequence[LibraryCode]) -> dict[str, Any]:
    return {
        library.name: {
            "cubins": {c.sm: n for c, n in sorted(library.cubins.items())},
            "ptx": {c.compute: n for c, n in sorted(library.ptx.items())},
            "kernels": len(library.kernels),
        }
        for library in libraries
    }

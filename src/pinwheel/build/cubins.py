"""Counts the cubins and PTX of a library we built, with the toolkit's own cuobjdump."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pinwheel.buildroot.sandbox import Bind, Sandbox
from pinwheel.errors import WheelError
from pinwheel.matrix.capability import (
    Capability,
    Cover,
    KnownCapabilities,
    coverage,
    format_capabilities,
    parse_capability,
)

_ELF = re.compile(r"^ELF file\s+\d+:\s+\S*?\.(sm_\d+[af]?)\.cubin", re.MULTILINE)
_PTX = re.compile(r"^PTX file\s+\d+:\s+\S*?\.(sm_\d+[af]?)\.ptx", re.MULTILINE)


def count_cubins(library: Path, sandbox: Sandbox, toolkit: Path) -> dict[str, int]:
    """Cubins per target (``sm_80``), and PTX per target (``ptx sm_80``).

    Raises:
        WheelError: cuobjdump cannot read the library.
    """
    counts: Counter[str] = Counter()
    for flag, pattern, prefix in (("--list-elf", _ELF, ""), ("--list-ptx", _PTX, "ptx ")):
        result = sandbox.run(
            ["/opt/cuda/bin/cuobjdump", flag, f"/out/{library.name}"],
            binds=[Bind(library.parent, "/out"), Bind(toolkit, "/opt/cuda")],
        )
        if result.returncode != 0 and "does not contain" not in result.output:
            raise WheelError(
                f"cuobjdump cannot read {library.name}",
                evidence=result.output.splitlines()[-5:],
                next_step="The library is damaged: look into the build's link step.",
            )
        counts.update(prefix + target for target in pattern.findall(result.output))
    return dict(sorted(counts.items()))


def require_code(
    counts: Mapping[str, Mapping[str, int]],
    capabilities: Sequence[Capability],
    *,
    known: KnownCapabilities,
) -> None:
    """Refuse a wheel whose name would promise a capability that none of its libraries has.

    A package's build may drop a target it does not know, or compile for an older one instead:
    vLLM 0.6.3 asked for 8.7 makes code for 8.6, which an Orin does not run, and drops PTX.

    Args:
        counts: library -> what :func:`count_cubins` says of it; libraries with device code only.
        capabilities: what was asked for.
        known: what the matrix knows.

    Raises:
        WheelError: names every capability without code, and what each library holds.
    """
    code: set[Capability] = set()
    virtual: set[Capability] = set()
    for name in {target for library in counts.values() for target in library}:
        target = parse_capability(name.rpartition("sm_")[2], known=known)
        (virtual if name.startswith("ptx ") else code).add(target)
    missing = [
        f"no machine code for {wanted.code}: {found.reason}"
        for wanted in capabilities
        if (found := coverage(code, Capability(*wanted.base), known=known)).cover is Cover.NONE
        or (wanted.variant and wanted.code not in code)
    ]
    missing += [
        f"no PTX for {wanted.code}"
        for wanted in capabilities
        if wanted.ptx and wanted.code not in virtual
    ]
    if missing:
        raise WheelError(
            "the wheel has no code for a capability it was built for",
            evidence=[
                *missing,
                *(f"{name}: {' '.join(library) or 'none'}" for name, library in counts.items()),
            ],
            next_step="The package's own build left it out. Build for capabilities that this "
            f"release knows; asked for: {format_capabilities(capabilities)}.",
        )

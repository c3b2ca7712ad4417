"""What torch and the wheel together mean for each GPU: native, runs, JIT, does not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pinwheel.matrix.capability import Capability, Cover, KnownCapabilities
from pinwheel.verify.code import LibraryCode, cover, meant_for, plain
from pinwheel.verify.model import Checked, Problem


def check_torch_code(
    torch: LibraryCode | None,
    declared: Sequence[Capability],
    *,
    build: str,
    known: KnownCapabilities,
) -> Checked:
    """Whether torch's own kernels run on every declared capability.

    Args:
        torch: code of torch's CUDA library; None when it is unknown.
        declared: what the wheel claims.
        build: torch build, for messages.
        known: the matrix's capabilities.
    """
    rule = "torch-code"
    if torch is None:
        why = f"what code torch {build} holds is unknown" if build else "no torch build to look at"
        return Checked(unsure={rule: why})
    if not declared:
        why = "nothing says which capabilities it is for: name them with --archs"
        return Checked(unsure={rule: why})
    problems = []
    for capability in declared:
        found = cover(torch.targets, plain(capability), known=known)
        if found.cover is Cover.NONE:
            problems.append(
                Problem(
                    rule=rule,
                    subject=f"torch {build}",
                    what=f"torch {build} itself does not run on {capability.code}",
                    evidence=(f"{torch.name} holds {torch.targets}",),
                    next_step="Choose a torch build with code for it, or drop the capability.",
                )
            )
    return Checked(looked={rule: f"{torch.name} holds {torch.targets}"}, problems=tuple(problems))


def gpu_table(
    libraries: Sequence[LibraryCode], torch: LibraryCode | None, *, known: KnownCapabilities
) -> list[dict[str, Any]]:
    """For every GPU capability there is: native, runs, JIT, does not run; the worst decides.

    A library whose code is for other GPUs alone (:func:`~pinwheel.verify.code.meant_for`) limits
    nothing, as long as some library of the wheel serves the GPU; it is named under ``without``.
    Torch counts too: code of ours that runs is worth nothing on a GPU where torch has none.
    An image without a kernel is code for nobody, and a library without any limits nothing.

    Each row: ``gpu``, ``verdict``, ``limited-by`` (library), ``reason``, ``without``.
    """
    libraries = [library for library in libraries if not library.idle]
    if not libraries:
        return []
    return [
        _row(libraries, torch, device, known)
        for device in sorted(c for c in known.accepted if not c.variant)
    ]


def _row(
    libraries: Sequence[LibraryCode],
    torch: LibraryCode | None,
    device: Capability,
    known: KnownCapabilities,
) -> dict[str, Any]:
    meant, without = [], []
    for code in libraries:
        coverage = cover(code.targets, device, known=known)
        if coverage.cover is Cover.NONE and not meant_for(code.targets, device, known=known):
            without.append((coverage, code.name))
        else:
            meant.append((coverage, code.name))
    if not any(coverage.cover is not Cover.NONE for coverage, _ in meant):
        meant, without = [*meant, *without], []
    if torch is not None:
        meant.append((cover(torch.targets, device, known=known), torch.name))
    worst, name = max(meant, key=lambda item: _WORST.index(item[0].cover))
    return {
        "gpu": str(device),
        "verdict": _VERDICT[worst.cover],
        "limited-by": "" if worst.cover is Cover.NATIVE else name,
        "reason": worst.reason,
        "without": [name for _, name in without],
    }


_WORST = (Cover.NATIVE, Cover.SAME_MAJOR, Cover.PTX, Cover.NONE)
_VERDICT = {
    Cover.NATIVE: "native",
    Cover.SAME_MAJOR: "runs",
    Cover.PTX: "JIT",
    Cover.NONE: "does not run",
}

"""Refusals that must come before anything compiles: targets a toolkit lacks, a gcc too new."""

from __future__ import annotations

from collections.abc import Iterable

from pinwheel.errors import CapabilityError, ToolchainError
from pinwheel.matrix.capability import Capability, format_capabilities
from pinwheel.matrix.findings import MATRIX_FILE
from pinwheel.matrix.models import Matrix


def require_targets(matrix: Matrix, line: str, capabilities: Iterable[Capability]) -> None:
    """Refuse capabilities that toolkits of a CUDA line cannot target.

    Raises:
        CapabilityError: names every such capability, the line's own targets and their source.
        MatrixError: the matrix does not have the line.
    """
    row = matrix.line(line)
    targets = matrix.parse_capabilities(row.targets)
    missing = [c for c in capabilities if c.code not in targets]
    if not missing:
        return
    able = [
        name
        for name, other in matrix.cuda.items()
        if all(c.code in matrix.parse_capabilities(other.targets) for c in missing)
    ]
    raise CapabilityError(
        f"CUDA {line} cannot target {' '.join(str(c) for c in missing)}",
        evidence=(
            f"CUDA {line} targets {format_capabilities(targets)} [{row.targets_source}]",
            "lines that can: " + (", ".join(able) or "none in the matrix"),
        ),
        next_step="Leave it out of the capability list, or build with a toolkit of a line "
        "that can.",
    )


def require_gcc(
    matrix: Matrix, line: str, major: int, *, available: Iterable[int] = (), what: str = "gcc"
) -> None:
    """Refuse a host compiler newer than nvcc of a CUDA line takes.

    Args:
        matrix: where the limit stands.
        line: CUDA line of the toolkit, ``12.4``.
        major: major version of the gcc that would compile.
        available: other gcc majors that could be had; the newest that fits is named.
        what: how messages call the compiler.

    Raises:
        ToolchainError: it is too new, or the line's limit is unknown.
        MatrixError: the matrix does not have the line.
    """
    row = matrix.line(line)
    if row.newest_gcc is None:
        raise ToolchainError(
            f"the newest gcc that CUDA {line} takes is unknown, so {what} {major} is refused",
            next_step=f'Write newest-gcc with its source into {MATRIX_FILE} [cuda."{line}"].',
        )
    if major <= row.newest_gcc:
        return
    fitting = [m for m in available if m <= row.newest_gcc]
    best = max(fitting, default=row.newest_gcc)
    raise ToolchainError(
        f"{what} {major} is too new for CUDA {line}, which takes gcc up to {row.newest_gcc}",
        evidence=(f"limit {row.newest_gcc} [{row.gcc_source}]",),
        next_step=f"Compile with gcc {best} (g++-{best}), or with any gcc up to {row.newest_gcc}.",
    )

"""The faults of machine code that a recipe announces, as the rules want them."""

from __future__ import annotations

from collections.abc import Iterable

from pinwheel.matrix.capability import KnownCapabilities, parse_capability
from pinwheel.recipe.models import CodeExceptionRow
from pinwheel.verify.code import CodeException, CodeFault
from pinwheel.verify.manifest import ManifestException


def code_exceptions(
    rows: Iterable[CodeExceptionRow | ManifestException], *, known: KnownCapabilities
) -> tuple[CodeException, ...]:
    """``[[code-exceptions]]`` of a recipe, or what a manifest has copied from it.

    Raises:
        CapabilityError: one is for a capability that the matrix does not know.
    """
    return tuple(
        CodeException(
            library=row.library,
            capability=parse_capability(row.capability, known=known),
            fault=CodeFault(row.fault),
            reason=row.reason,
        )
        for row in rows
    )

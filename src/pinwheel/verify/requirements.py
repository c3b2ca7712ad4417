"""What a requirement of METADATA asks for: an exact pin or not, and where its marker holds."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import Requirement


def environment(python: str) -> dict[str, str]:
    """Marker environment of CPython on Linux x86_64, without extras; ``python`` is ``3.11``."""
    return {
        "extra": "",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def on_linux(requirement: Requirement, pythons: Iterable[str]) -> bool:
    """Whether it is asked for on Linux x86_64 by any of these Pythons, without extras.

    One whose marker cannot be evaluated counts as asked for.
    """
    marker = requirement.marker
    if marker is None:
        return True
    try:
        return any(marker.evaluate(environment(python)) for python in pythons)
    except (UndefinedEnvironmentName, ValueError):
        return True


def exact_pin(requirement: Requirement) -> str:
    """The version it pins with ``==`` alone, or empty."""
    specifiers = list(requirement.specifier)
    if requirement.url or len(specifiers) != 1:
        return ""
    (only,) = specifiers
    if only.operator not in ("==", "===") or only.version.endswith(".*"):
        return ""
    return only.version

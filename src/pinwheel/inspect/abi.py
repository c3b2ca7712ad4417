"""Which ABI a library relies on, by the names of the symbols it needs: torch's and Python's.

torch: from 2.9 on it has a stable C ABI (``aoti_torch_*`` and ``torch_*``, "LibTorch Stable ABI");
everything in the C++ namespaces at, c10 and torch may change with each release and build. Which
release brought which function is torch-abi-audit's data. Its classification is not used: it
demangles, and a mangled name of 300 bytes can stand for gigabytes.

Python: which functions and data belong to the limited API, and since when, is abi3info's data,
the rule is abi3audit's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from abi3info import DATAS, FUNCTIONS
from abi3info.models import Symbol as PythonSymbol
from torch_abi_audit.torch_versions import minimum_version

from pinwheel.inspect.elf_dynamic import Symbol

_SHIM = re.compile(r"(?:aoti_torch_|torch_)\w")
# A nested name that starts in one of the namespaces (Itanium C++ ABI, "Mangling"): N, qualifiers,
# then length and name of each part. Also the C names of libtorch_python.
_UNSTABLE = re.compile(r"N[rVKRO]*(?:2at|3c10|5torch)|^THC?P[A-Z]")
# Header-only parts, which every extension brings itself.
_HEADER_ONLY = re.compile(r"N[rVKRO]*5torch(?:6stable|10headeronly)")
_PYTHON = re.compile(r"_?Py[A-Z_]")


class TorchAbi(StrEnum):
    """How a library relies on torch."""

    NONE = "none"
    STABLE = "stable"
    UNKNOWN = "unknown"  # stable, with functions that the data does not have yet
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchVerdict:
    """How a library relies on torch, and what says so.

    Attributes:
        abi: the verdict.
        unstable: C++ symbols of torch that it needs, sorted.
        shims: functions of the stable ABI that it needs, sorted.
        unknown: those among them that no known torch brings, sorted.
        minimum: the oldest torch with all known ones, ``(2, 10, 0)``; None without any.
        because: the functions that need that torch; empty for the first with a stable ABI.
    """

    abi: TorchAbi
    unstable: tuple[str, ...]
    shims: tuple[str, ...]
    unknown: tuple[str, ...]
    minimum: tuple[int, int, int] | None
    because: tuple[str, ...]


class PythonAbi(StrEnum):
    """How a library relies on Python."""

    NONE = "none"
    LIMITED = "limited"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonVerdict:
    """How a library relies on Python, and what says so.

    Attributes:
        abi: the verdict.
        outside: symbols that are not in the limited API, sorted.
        minimum: the oldest Python with all that are, ``(3, 8)``; None without any.
        because: the symbols that need that Python, sorted.
    """

    abi: PythonAbi
    outside: tuple[str, ...]
    minimum: tuple[int, int] | None
    because: tuple[str, ...]


def torch_abi(symbols: Iterable[Symbol]) -> TorchVerdict:
    """Classify a library by its undefined symbols.

    Args:
        symbols: its dynamic symbols; defined ones do not count.
    """
    names = sorted({s.name for s in symbols if not s.defined})
    shims = tuple(name for name in names if _SHIM.match(name))
    unstable = tuple(name for name in names if is_unstable(name))
    minimum, because, unknown = minimum_version(shims)
    if unstable:
        abi = TorchAbi.UNSTABLE
    elif unknown:
        abi = TorchAbi.UNKNOWN
    else:
        abi = TorchAbi.STABLE if shims else TorchAbi.NONE
    return TorchVerdict(
        abi=abi,
        unstable=unstable,
        shims=shims,
        unknown=tuple(unknown),
        minimum=minimum,
        because=tuple(because),
    )


def is_unstable(name: str) -> bool:
    """Whether a mangled name refers to torch's C++ namespaces, in its own name or its types."""
    return bool(_UNSTABLE.search(_HEADER_ONLY.sub("", name)))


def python_abi(symbols: Iterable[Symbol]) -> PythonVerdict:
    """Classify a library by its undefined symbols; arguments as for :func:`torch_abi`."""
    outside: list[str] = []
    since: dict[str, tuple[int, int]] = {}
    for name in sorted({s.name for s in symbols if not s.defined}):
        if not _PYTHON.match(name):
            continue
        symbol = PythonSymbol(name)
        known = FUNCTIONS.get(symbol) or DATAS.get(symbol)
        if known is None:
            outside.append(name)
        else:
            since[name] = (known.added.major, known.added.minor)
    minimum = max(since.values(), default=None)
    limited = PythonAbi.LIMITED if since else PythonAbi.NONE
    return PythonVerdict(
        abi=PythonAbi.FULL if outside else limited,
        outside=tuple(outside),
        minimum=minimum,
        because=tuple(name for name, version in since.items() if version == minimum),
    )

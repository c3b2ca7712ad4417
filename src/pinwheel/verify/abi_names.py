"""What a name alone tells of where it comes from: torch, the driver, Python."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from packaging.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """``data/torch/names.toml``, read.

    Attributes:
        namespaces: outermost namespaces of libtorch's own C++ API.
        stable: how the C functions of torch's stable ABI begin.
        stable_since: torch release from which on they keep their meaning.
        standard: namespaces of the C++ library.
        header_only: C++ namespaces that no library has to bring.
        driver: driver library -> names it brings.
        python: names the interpreter brings.
        python_library: names of its library.
        loader: names of the dynamic loader.
    """

    namespaces: frozenset[str]
    stable: tuple[str, ...]
    stable_since: Version
    standard: frozenset[str]
    header_only: tuple[tuple[str, ...], ...]
    driver: Mapping[str, re.Pattern[str]]
    python: re.Pattern[str]
    python_library: re.Pattern[str]
    loader: re.Pattern[str]

    def driver_of(self, name: str) -> str:
        """The driver's library that has a function of that name, or empty."""
        return next((lib for lib, names in self.driver.items() if names.fullmatch(name)), "")

    def is_python(self, name: str) -> bool:
        """The interpreter brings it."""
        return bool(self.python.fullmatch(name))

    def is_stable(self, name: str) -> bool:
        """It is a C function of torch's stable ABI, by its name."""
        return name.startswith(self.stable)

    def is_header_only(self, path: tuple[str, ...]) -> bool:
        """The qualified C++ name is of a part of torch that no library has to bring."""
        return any(path[: len(prefix)] == prefix for prefix in self.header_only)

    def is_standard(self, path: tuple[str, ...]) -> bool:
        """The qualified C++ name is of the C++ library; a bare operator is, ``new`` say."""
        return not path or path[0] in self.standard

    def is_torch(self, path: tuple[str, ...]) -> bool:
        """The qualified C++ name is one of libtorch's API."""
        return path[:1] != () and path[0] in self.namespaces


@cache
def names() -> Names:
    """The data file."""
    text = resources.files("pinwheel.data").joinpath("torch", "names.toml").read_text("utf-8")
    data = tomllib.loads(text)
    return Names(
        namespaces=frozenset(data["torch"]["namespaces"]),
        stable=tuple(data["stable"]["prefixes"]),
        stable_since=Version(data["stable"]["since"]),
        standard=frozenset(data["standard"]["namespaces"]),
        header_only=tuple(tuple(n.split("::")) for n in data["stable"]["header-only"]),
        driver={row["library"]: re.compile(row["pattern"]) for row in data["driver"]},
        python=re.compile(data["python"]["pattern"]),
        python_library=re.compile(data["python"]["library"]),
        loader=re.compile(data["loader"]["library"]),
    )

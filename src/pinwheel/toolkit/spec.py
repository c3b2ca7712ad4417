"""Reads what a toolkit is made of: ``data/toolkits/<name>.toml`` and its provider's layout."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from pinwheel.errors import ToolkitError

PROVIDERS = ("debian", "wheels")


@dataclass(frozen=True, slots=True)
class Rule:
    """Where files of a part go: ``source`` is a file, a directory or a pattern with ``*``."""

    source: str
    target: str

    def apply(self, name: str) -> str | None:
        """The path in CUDA_HOME for ``name``, empty to drop it, None when the rule is silent."""
        if "*" in self.source:
            if not fnmatchcase(name, self.source):
                return None
            return f"{self.target}/{name.rsplit('/', 1)[-1]}" if self.target else ""
        if name == self.source:
            return self.target
        if name.startswith(self.source + "/"):
            return self.target + name[len(self.source) :] if self.target else ""
        return None


@dataclass(frozen=True, slots=True)
class Part:
    """One package of a toolkit, with the upstream version the toolkit's data file states."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class ToolkitSpec:
    """A toolkit as data.

    Attributes:
        name: ``<provider>-<nvcc version>``.
        provider: ``debian`` or ``wheels``.
        line: CUDA line, ``12.4``.
        version: nvcc's version, ``12.4.131``.
        parts: its packages, in the order they are laid out.
        rules: where their files go; the first that matches wins.
        system_includes: header directories below CUDA_HOME besides ``include``.
    """

    name: str
    provider: str
    line: str
    version: str
    parts: tuple[Part, ...]
    rules: tuple[Rule, ...]
    system_includes: tuple[str, ...]

    def place(self, name: str) -> str | None:
        """Where the file ``name`` of a part goes in CUDA_HOME; empty: dropped, None: unknown."""
        for rule in self.rules:
            target = rule.apply(name)
            if target is not None:
                return target
        return None


def known_toolkits() -> tuple[str, ...]:
    """Names of all toolkits there is a data file for, sorted."""
    folder = files("pinwheel.data") / "toolkits"
    return tuple(sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".toml")))


def load_spec(name: str) -> ToolkitSpec:
    """Read the toolkit ``name``.

    Raises:
        ToolkitError: there is no such toolkit, or its data contradict each other.
    """
    if name not in known_toolkits():
        raise ToolkitError(
            f"There is no toolkit {name!r}.",
            evidence=[f"known: {known}" for known in known_toolkits()],
            next_step="Name one of these in the recipe's [toolkits], or add a data file for it.",
        )
    provider = _read(f"toolkits/{name}.toml").get("toolkit", {}).get("provider")
    layout = _read(f"toolkit_layouts/{provider}.toml") if provider in PROVIDERS else {}
    return parse_spec(name, _read(f"toolkits/{name}.toml"), layout)


def _read(path: str) -> dict[str, Any]:
    return tomllib.loads((files("pinwheel.data") / path).read_text(encoding="utf-8"))


def parse_spec(name: str, data: dict[str, Any], layout: dict[str, Any]) -> ToolkitSpec:
    """Make a spec of the two data files, already parsed. Errors as in :func:`load_spec`."""
    try:
        head = data["toolkit"]
        spec = ToolkitSpec(
            name=str(head["name"]),
            provider=str(head["provider"]),
            line=str(head["line"]),
            version=str(head["version"]),
            parts=tuple(Part(str(p["name"]), str(p["version"])) for p in data["package"]),
            rules=tuple(Rule(str(a), str(b)) for a, b in layout["layout"]["rules"]),
            system_includes=tuple(str(i) for i in layout["layout"]["system_includes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong(name, f"{type(error).__name__}: {error}") from error
    if spec.provider not in PROVIDERS:
        raise _wrong(name, f"provider {spec.provider!r} is none of {', '.join(PROVIDERS)}")
    if name != spec.name or spec.name != f"{spec.provider}-{spec.version}":
        raise _wrong(name, f"name {spec.name!r} is not provider and version")
    if not spec.version.startswith(spec.line + "."):
        raise _wrong(name, f"version {spec.version} does not belong to line {spec.line}")
    names = [part.name for part in spec.parts]
    if len(set(names)) != len(names):
        raise _wrong(name, "a package is listed twice")
    return spec


def _wrong(name: str, why: str) -> ToolkitError:
    return ToolkitError(
        f"The data of toolkit {name!r} have a wrong shape.",
        evidence=[why],
        next_step="Correct the toolkit's data file.",
    )

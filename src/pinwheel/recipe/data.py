"""The data files a lock is resolved from: build root, toolkits, tools."""

from __future__ import annotations

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field

from pinwheel.errors import RecipeError
from pinwheel.recipe.models import Strict, Text
from pinwheel.recipe.tomlfile import canonical_sha256, read_model

# The build root every combo uses.
ROOT = "debian12"

_M = TypeVar("_M", bound=Strict)


class Suite(Strict):
    """A part of a Debian archive and the keys that may sign it."""

    name: Text
    suite: Text
    components: Annotated[tuple[Text, ...], Field(min_length=1)]
    architecture: Text
    keyring: Text


class Seed(Strict):
    """A package the closure starts from."""

    name: Text
    why: Text


class RootSuite(Suite):
    """The suite the build root comes from; ``glibc`` is its C library's version."""

    glibc: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]
    essential: bool


class RootLayout(Strict):
    """What maintainer scripts would make: ``links`` and ``copies`` (to = from), ``files``."""

    links: dict[str, str]
    copies: dict[str, str]
    files: dict[str, str]


class RootData(Strict):
    """``data/buildroot/<name>.toml``."""

    root: RootSuite
    layout: RootLayout
    seed: Annotated[tuple[Seed, ...], Field(min_length=1)]


class ToolkitHead(Strict):
    """Which toolkit it is; the Debian keys are there for provider ``debian`` only."""

    name: Text
    provider: Literal["debian", "wheels"]
    line: Text
    version: Text
    suite: str = ""
    components: tuple[Text, ...] = ()
    architecture: str = ""
    keyring: str = ""


class Part(Strict):
    """A package of a toolkit. ``version`` is upstream's, with which a Debian version begins."""

    name: Text
    version: Text
    source: Literal["debian", "index"]
    component: str = ""
    why: str = ""


class ToolkitData(Strict):
    """``data/toolkits/<name>.toml``; ``layout`` belongs to the stage that assembles it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    toolkit: ToolkitHead
    package: Annotated[tuple[Part, ...], Field(min_length=1)]


class Tool(Strict):
    """A program used while building that leaves no byte in the result."""

    name: Text
    version: Text
    source: Literal["index"]
    why: Text


class ToolsData(Strict):
    """``data/tools.toml``."""

    tool: Annotated[tuple[Tool, ...], Field(min_length=1)]


def root_data() -> RootData:
    """The build root's data file."""
    return _read(f"buildroot/{ROOT}.toml", RootData)


def tools_data() -> ToolsData:
    """The tools' data file."""
    return _read("tools.toml", ToolsData)


def toolkit_data(name: str) -> ToolkitData:
    """The data file of toolkit ``name``.

    Raises:
        RecipeError: there is none; lists those there are.
    """
    known = toolkit_names()
    if name not in known:
        raise RecipeError(
            f"there is no toolkit {name!r}",
            evidence=[f"known: {', '.join(known)}"],
            next_step="Name one of these in the recipe's [toolkits].",
        )
    return _read(f"toolkits/{name}.toml", ToolkitData)


def toolkit_names() -> tuple[str, ...]:
    """Toolkits that have a data file."""
    directory = _data().joinpath("toolkits")
    names = (entry.name for entry in directory.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def keyring_bytes(path: str) -> bytes:
    """A keyring, by its path below ``data``."""
    return _data().joinpath(path).read_bytes()


def data_digest(toolkit: str) -> str:
    """SHA-256 of what the data files mean that a lock for ``toolkit`` is resolved from.

    Reasons (``why``) and a toolkit's ``layout`` choose no input and do not count.
    """
    toolkit_data(toolkit)
    names = (f"buildroot/{ROOT}.toml", f"toolkits/{toolkit}.toml", "tools.toml")
    return canonical_sha256([_meaning(tomllib.loads(_text(name))) for name in names])


def _meaning(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _meaning(v) for k, v in value.items() if k not in ("why", "layout")}
    if isinstance(value, list):
        return [_meaning(item) for item in value]
    return value


def _data() -> Traversable:
    return resources.files("pinwheel.data")


def _text(name: str) -> str:
    return _data().joinpath(name).read_text("utf-8")


def _read(name: str, model: type[_M]) -> _M:
    with resources.as_file(_data().joinpath(name)) as path:
        return read_model(
            Path(path),
            model,
            RecipeError,
            next_step="Correct the data file, or reinstall.",
        )

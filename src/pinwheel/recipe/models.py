"""The shape of ``recipes/<combo>/recipe.toml``: what a person writes about one combo."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)


def _rule(holds: Callable[[str], object], otherwise: str) -> AfterValidator:
    def check(value: str) -> str:
        if not holds(value):
            raise ValueError(f"{value[:80]!r} {otherwise}")
        return value

    return AfterValidator(check)


def _one_line(value: str) -> bool:
    # Surrogates cannot be written to a file; DEL and the like drive a terminal.
    return value.isprintable()


def _inside(value: str) -> bool:
    path = PurePosixPath(value)
    return not (path.is_absolute() or ".." in path.parts or "\\" in value) and _one_line(value)


def _is_requirement(value: str) -> bool:
    try:
        return Pep508(value).url is None and _one_line(value)
    except InvalidRequirement:
        return False


Text = Annotated[str, Field(min_length=1)]
Word = Annotated[Text, _rule(_one_line, "has a character that cannot be printed")]
PlainPath = Annotated[str, _rule(_inside, "must be a relative path without '..'")]
RequirementLine = Annotated[Text, _rule(_is_requirement, "is no requirement (PEP 508, no URL)")]
# What a compiler, CMake or the sandbox is handed by name must be able to be one.
EnvironmentName = Annotated[
    str, _rule(re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch, "is no name of a variable")
]
CMakeName = Annotated[
    str, _rule(re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*").fullmatch, "is no name of a CMake variable")
]
DirectoryName = Annotated[
    str, _rule(re.compile(r"[a-z0-9][a-z0-9._-]*").fullmatch, "is no name of a directory")
]
ModuleName = Annotated[
    str, _rule(lambda v: all(part.isidentifier() for part in v.split(".")), "is no module")
]
Minor = Annotated[
    str, _rule(re.compile(r"3\.(0|[1-9][0-9]?)").fullmatch, "is no Python such as 3.11")
]
TrueOrFalse = Annotated[bool, Field(strict=True)]

#: Directories below ``/opt`` in the build root that are not a dependency's.
RESERVED = frozenset({"cuda", "env", "envs", "pinwheel", "tools", "wheels"})


class Strict(BaseModel):
    """Base of all recipe models: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Source(Strict):
    """Where the package's own source comes from: an sdist on the index."""

    source: Literal["index"] = "index"
    package: Word
    version: Word


class Dependency(Strict):
    """A source-level dependency taken from an index wheel and unpacked at ``/opt/<name>``.

    ``upstream`` says where upstream pins the same thing; ``files`` maps a path inside the
    wheel to a path below ``/opt/<name>``.
    """

    source: Literal["index"] = "index"
    package: Word
    version: Word
    upstream: Text
    files: dict[PlainPath, PlainPath] = Field(default_factory=dict)


class Toolkits(Strict):
    """Toolkits the recipe may be built with; each one is a lock of its own."""

    default: Text
    offered: tuple[Text, ...]


class Driver(Strict):
    """Driver versions the artifact needs with one toolkit, as the matrix states them."""

    native: Text
    minimum: Text


class Feature(Strict):
    """An optional part of upstream: on or off, and why."""

    state: Literal["on", "off"]
    reason: Text


class Requirement(Strict):
    """One requirement line to rewrite; building fails when ``old`` is no longer there."""

    old: RequirementLine
    new: RequirementLine
    reason: Text


class BuildSettings(Strict):
    """How the source is built: build requirements, environment, CMake cache, memory per job.

    ``options`` go to the back end's wheel command, ``job-memory-gib`` is what one compiler may
    take at its peak.
    """

    requires: tuple[RequirementLine, ...]
    options: tuple[Word, ...] = ()
    env: dict[EnvironmentName, Annotated[str, _rule(_one_line, "is not one line")]] = Field(
        default_factory=dict
    )
    cmake: dict[CMakeName, Annotated[str, _rule(_one_line, "is not one line")]] = Field(
        default_factory=dict
    )
    job_memory_gib: Annotated[float, Field(strict=True, ge=0.1, le=64, alias="job-memory-gib")] = (
        4.0
    )


class RunSettings(Strict):
    """What runs beside the wheel: resolved as of a date, with exact companions."""

    # A time without zone would mean another moment on another machine.
    as_of: Annotated[AwareDatetime, Field(alias="as-of")]
    companions: tuple[RequirementLine, ...]
    constraints: tuple[RequirementLine, ...] = ()

    @field_validator("as_of")
    @classmethod
    def _reached(cls, value: AwareDatetime) -> AwareDatetime:
        if not 2000 <= value.year < 9999:
            raise ValueError("must be a date after 2000")
        return value


class Extension(Strict):
    """One compiled library of the wheel and what it must register when loaded.

    Attributes:
        operators: all that it registers itself.
        after: libraries of the wheel that the package has loaded before it, in that order: those
            whose classes its own schemas name.
    """

    operators: tuple[Word, ...] = ()
    after: tuple[PlainPath, ...] = ()
    namespace: str = ""
    machine_code: Annotated[TrueOrFalse, Field(alias="machine-code")] = True


class Proof(Strict):
    """What must be true of the installed wheel."""

    module: ModuleName
    entry_points: Annotated[
        tuple[Annotated[tuple[Word, ...], Field(min_length=1)], ...], Field(alias="entry-points")
    ] = ()
    official: Annotated[
        str, _rule(lambda v: not v or _is_requirement(v), "is no requirement such as vllm==0.6.3")
    ] = ""
    official_absent: Annotated[dict[str, str], Field(alias="official-absent")] = Field(
        default_factory=dict
    )


class CodeExceptionRow(Strict):
    """A fault of one library's machine code that is meant; it fails once nothing needs it.

    ``fault`` is what :mod:`pinwheel.verify.code` would find: no code for the capability
    (``missing``), PTX alone (``ptx-only``), kernels without it (``kernels``), or code for one that
    is not declared (``undeclared``).
    """

    library: PlainPath
    capability: Text
    fault: Literal["missing", "ptx-only", "kernels", "undeclared"]
    reason: Text


class KernelsFor(Strict):
    """Operators whose kernels are for one capability alone: without it they are declared only.

    ``capability`` is plain, ``9.0``, also where the code is for a variant of it.
    """

    library: PlainPath
    capability: Text
    operators: tuple[Text, ...]
    reason: Text


class Recipe(Strict):
    """One recipe, whole."""

    recipe_version: Annotated[Literal[1], Field(alias="recipe-version")]
    combo: Text
    native: TrueOrFalse
    reason: str = ""
    python: Minor
    capabilities: tuple[Text, ...]
    source: Source
    toolkits: Toolkits
    driver: dict[str, Driver]
    patches: str = ""
    features: dict[str, Feature] = Field(default_factory=dict)
    dependencies: dict[DirectoryName, Dependency] = Field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()
    build: BuildSettings
    run: RunSettings
    extensions: dict[PlainPath, Extension]
    code_exceptions: Annotated[
        tuple[CodeExceptionRow, ...], Field(alias="code-exceptions", default=())
    ]
    kernels_for: Annotated[tuple[KernelsFor, ...], Field(alias="kernels-for", default=())]
    proof: Proof

    @field_validator("extensions")
    @classmethod
    def _after_one_of_them(cls, value: dict[str, Extension]) -> dict[str, Extension]:
        for name, extension in value.items():
            for other in extension.after:
                if other not in value:
                    raise ValueError(f"{name} comes after {other}, which is no extension")
                if other == name or name in value[other].after:
                    raise ValueError(f"{name} and {other} each come after the other")
        return value

    @field_validator("dependencies")
    @classmethod
    def _own_place(cls, value: dict[str, Dependency]) -> dict[str, Dependency]:
        if taken := RESERVED.intersection(value):
            raise ValueError(f"/opt/{min(taken)} is pinwheel's own: choose another name")
        return value

    @model_validator(mode="after")
    def _exceptions_meet_a_library(self) -> Recipe:
        seen: set[tuple[str, str, str]] = set()
        for row in self.code_exceptions:
            if row.library not in self.extensions:
                raise ValueError(f"code-exceptions: {row.library} is none of [extensions]")
            key = (row.library, row.capability, row.fault)
            if key in seen:
                raise ValueError(f"code-exceptions: {' '.join(key)} is there twice")
            seen.add(key)
        return self

    @model_validator(mode="after")
    def _kernels_meet_an_operator(self) -> Recipe:
        for row in self.kernels_for:
            if row.library not in self.extensions:
                raise ValueError(f"kernels-for: {row.library} is none of [extensions]")
            listed = {o.rsplit("::", 1)[-1] for o in self.extensions[row.library].operators}
            if unknown := sorted(set(row.operators) - listed):
                raise ValueError(f"kernels-for: {row.library} lists no operator {unknown[0]}")
        return self

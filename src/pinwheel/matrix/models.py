"""The shape of ``arch_matrix.toml``: the axes, their sources, and the combos offered."""

from __future__ import annotations

import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pinwheel import toml
from pinwheel.errors import CapabilityError, MatrixError, UnknownComboError
from pinwheel.matrix.capability import Capability, KnownCapabilities, parse_capabilities
from pinwheel.matrix.combo import ComboId, find_combo
from pinwheel.matrix.toml_lines import dotted, line_of, line_of_syntax_error

#: Faults looked up and listed at once.
_SHOWN = 100


def _pattern(pattern: str, what: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return AfterValidator(check)


def _specifier(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier as error:
        raise ValueError(f"{value!r} is no version specifier") from error
    return value


def _combo_key(value: str) -> str:
    try:
        ComboId.parse(value)
    except UnknownComboError as error:
        raise ValueError(f"{error.what}: {error.evidence[0]}") from error
    return value


Text = Annotated[str, Field(min_length=1)]
Source = Annotated[str, Field(min_length=4)]
Line = Annotated[str, _pattern(r"[1-9][0-9]\.[0-9]", "a CUDA line such as 12.4")]
DriverVersion = Annotated[
    str, _pattern(r"[1-9][0-9]{2}(\.[0-9]{2,3}){0,2}", "a driver version such as 550.54.14")
]
NvccVersion = Annotated[
    str, _pattern(r"[1-9][0-9]\.[0-9]\.[0-9]{1,3}", "an nvcc version such as 12.4.131")
]
PythonVersion = Annotated[str, _pattern(r"3\.[0-9]{1,2}", "a Python version such as 3.11")]
Release = Annotated[str, _pattern(r"[0-9]+(\.[0-9]+)*[a-z0-9.]*", "a release such as 0.6.3")]
CapabilityKey = Annotated[
    str, _pattern(r"[1-9][0-9]?\.[0-9]", "a compute capability such as 8.0 (no variant)")
]
TorchKey = Annotated[
    str, _pattern(r"[0-9]+\.[0-9]+\.[0-9]+\+cu[1-9][0-9]{2}", "a torch build such as 2.3.0+cu121")
]
ToolkitKey = Annotated[
    str,
    _pattern(
        r"[a-z][a-z-]*-[1-9][0-9]\.[0-9]\.[0-9]{1,3}",
        "a toolkit such as debian-12.4.131 (<provider>-<nvcc version>)",
    ),
]
PackageKey = Annotated[str, _pattern(r"[a-z]([a-z0-9-]*[a-z])?", "a project name in lower case")]
ComboKey = Annotated[str, AfterValidator(_combo_key)]
PythonRange = Annotated[str, Field(min_length=1), AfterValidator(_specifier)]


class Row(BaseModel):
    """Base of all matrix models: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, ignored_types=(cached_property,)
    )


class CapabilityRow(Row):
    """A compute capability: what it is, which variants exist, whether a Tegra part has it."""

    name: Text
    tegra: bool = False
    variants: tuple[Literal["a", "f"], ...] = ()
    source: Source


class CudaLine(Row):
    """A CUDA line (major.minor).

    Attributes:
        native_driver: oldest Linux x86_64 driver of the line's own release; absent if unknown.
        minor_driver: oldest driver that runs it by minor-version compatibility.
        newest_gcc: newest gcc major nvcc takes as host compiler; absent if unknown.
        targets: what ptxas of the line assembles for, of the capabilities in the matrix.
        nvcc: compiler versions of the line that are known to exist.
        releases: toolkit release to nvcc version, where a redistributable manifest says so.
        update_drivers: native driver of an update release, where it is newer than the line's.
    """

    native_driver: Annotated[DriverVersion | None, Field(alias="native-driver")] = None
    minor_driver: Annotated[DriverVersion, Field(alias="minor-driver")]
    driver_source: Annotated[Source, Field(alias="driver-source")]
    newest_gcc: Annotated[int | None, Field(alias="newest-gcc", ge=4, le=99)] = None
    gcc_source: Annotated[str, Field(alias="gcc-source")] = ""
    targets: Annotated[tuple[Text, ...], Field(min_length=1)]
    targets_source: Annotated[Source, Field(alias="targets-source")]
    nvcc: Annotated[tuple[NvccVersion, ...], Field(min_length=1)]
    releases: dict[Release, NvccVersion] = Field(default_factory=dict)
    update_drivers: Annotated[
        dict[Release, DriverVersion], Field(alias="update-drivers", default_factory=dict)
    ]

    def native_driver_for(self, nvcc: str) -> str | None:
        """The native driver of the release that brought this nvcc, ``12.4.131``.

        An update release may ask for a newer driver than the line's first one. None where the
        line has such updates and which release brought the compiler is not known.
        """
        for release, version in self.releases.items():
            if version == nvcc:
                return self.update_drivers.get(release, self.native_driver)
        return None if self.update_drivers else self.native_driver


class TorchBuild(Row):
    """One torch build as an index serves it. What is not known is absent.

    Attributes:
        version: public version, as its METADATA says (``2.3.0``).
        cuda: its CUDA line.
        cxx11_abi: ``_GLIBCXX_USE_CXX11_ABI`` it was compiled with.
        cudnn, nccl, triton: the versions (or ranges) it requires.
        pythons: CPython versions it has wheels for.
        capabilities: machine code it says it carries (``torch.cuda.get_arch_list()``).
    """

    version: Release
    cuda: Line
    cxx11_abi: Annotated[bool | None, Field(alias="cxx11-abi", strict=True)] = None
    cudnn: Text | None = None
    nccl: Text | None = None
    triton: Text | None = None
    pythons: Annotated[tuple[PythonVersion, ...], Field(min_length=1)]
    capabilities: tuple[Text, ...] | None = None
    source: Source

    @property
    def minor(self) -> str:
        """Its minor, ``2.3``."""
        return ".".join(self.version.split(".")[:2])


class Toolkit(Row):
    """A CUDA toolkit a recipe may offer; its key is ``<provider>-<nvcc version>``."""

    line: Line
    source: Source


def nvcc_of(toolkit: str) -> str:
    """The nvcc version that a toolkit's key ends in, ``debian-12.4.131`` gives ``12.4.131``."""
    return toolkit.rpartition("-")[2]


class ReleaseRow(Row):
    """A package's release: what upstream pins. What upstream leaves open is absent.

    Attributes:
        torch: public torch version upstream pins exactly.
        cuda: CUDA line of that torch on the package index.
        python: upstream's ``Requires-Python``.
        capabilities: capability list upstream builds its own wheel for.
    """

    torch: Release | None = None
    cuda: Line | None = None
    python: PythonRange | None = None
    capabilities: tuple[Text, ...] | None = None
    source: Source


class ComboRow(Row):
    """A combo offered: the torch build its id abbreviates."""

    torch: TorchKey
    source: Source


class Matrix(Row):
    """``arch_matrix.toml``, whole. Shape only; :mod:`pinwheel.matrix.check` checks the rules."""

    matrix_version: Annotated[Literal[1], Field(alias="matrix-version")]
    capabilities: Annotated[dict[CapabilityKey, CapabilityRow], Field(min_length=1)]
    cuda: Annotated[dict[Line, CudaLine], Field(min_length=1)]
    torch: dict[TorchKey, TorchBuild] = Field(default_factory=dict)
    toolkits: dict[ToolkitKey, Toolkit] = Field(default_factory=dict)
    releases: dict[PackageKey, dict[Release, ReleaseRow]] = Field(default_factory=dict)
    combos: dict[ComboKey, ComboRow] = Field(default_factory=dict)

    @cached_property
    def known(self) -> KnownCapabilities:
        """The capabilities this matrix knows, for reading lists and judging code."""
        accepted, tegra = set(), set()
        for key, row in self.capabilities.items():
            major, minor = (int(part) for part in key.split("."))
            accepted.add(Capability(major, minor))
            accepted.update(Capability(major, minor, variant) for variant in row.variants)
            if row.tegra:
                tegra.add((major, minor))
        return KnownCapabilities(frozenset(accepted), frozenset(tegra))

    def combo(self, text: str) -> ComboId:
        """The offered combo called ``text``.

        Raises:
            UnknownComboError: none is; offers the nearest.
        """
        return find_combo(text, self.combos)

    def torch_of(self, combo: ComboId) -> TorchBuild:
        """The torch build of an offered combo.

        Raises:
            MatrixError: the combo names a build that is not in the matrix.
        """
        key = self.combos[str(combo)].torch
        if key not in self.torch:
            raise MatrixError(
                f"combo {combo} names torch build {key}, which the matrix does not have",
                evidence=(f'combos."{combo}".torch = "{key}"', "known: " + ", ".join(self.torch)),
                next_step=f'Add [torch."{key}"] to arch_matrix.toml, or correct the combo.',
            )
        return self.torch[key]

    def toolkit(self, name: str) -> Toolkit:
        """The toolkit called ``name``.

        Raises:
            MatrixError: the matrix has none of that name; lists those it has.
        """
        if name not in self.toolkits:
            raise MatrixError(
                f"the matrix has no toolkit {name!r}",
                evidence=("known: " + (", ".join(self.toolkits) or "none"),),
                next_step="Name one of these, or add it to arch_matrix.toml [toolkits].",
            )
        return self.toolkits[name]

    def line(self, name: str) -> CudaLine:
        """The CUDA line called ``name``.

        Raises:
            MatrixError: the matrix does not have it; lists those it has.
        """
        if name not in self.cuda:
            raise MatrixError(
                f"the matrix has no CUDA line {name!r}",
                evidence=("known: " + ", ".join(self.cuda),),
                next_step="Name one of these, or add it to arch_matrix.toml [cuda].",
            )
        return self.cuda[name]

    def parse_capabilities(self, value: Any) -> tuple[Capability, ...]:
        """:func:`pinwheel.matrix.capability.parse_capabilities` with what this matrix knows."""
        return parse_capabilities(value, known=self.known)


def load_matrix(path: Path) -> Matrix:
    """Read a matrix.

    Raises:
        MatrixError: it cannot be read, is no TOML, or has a wrong shape; every fault is listed
            with file, line and key.
    """
    try:
        if not path.is_file():
            raise FileNotFoundError("no such file" if not path.exists() else "not a file")
        text = toml.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise MatrixError(
            f"{path}: cannot be read",
            evidence=(str(error),),
            next_step="Run inside a project that holds arch_matrix.toml, or set PINWHEEL_PROJECT.",
        ) from error
    return parse_matrix(text, str(path))


def parse_matrix(text: str, name: str) -> Matrix:
    """Read a matrix from its text; ``name`` is how errors call it.

    Raises:
        MatrixError: as :func:`load_matrix`.
    """
    try:
        data = toml.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MatrixError(
            f"{name}:{line_of_syntax_error(error)}: not valid TOML",
            evidence=(str(error),),
            next_step="Correct the syntax there; docs/matrix.md describes the file.",
        ) from error
    try:
        matrix = Matrix.model_validate(data)
    except ValidationError as error:
        raw = error.errors(include_url=False)
        faults = sorted(_fault(fault, text, name) for fault in raw[:_SHOWN])
        first = faults[0][1]
        rest = len(raw) - len(faults)
        raise MatrixError(
            first,
            evidence=[line for _, line in faults[1:]] + [f"... and {rest} more"] * (rest > 0),
            next_step="Correct that line; docs/matrix.md describes every key.",
        ) from error
    _check_lists(matrix, text, name)
    return matrix


def _fault(fault: Any, text: str, name: str) -> tuple[int, str]:
    # pydantic names a bad key of a mapping by the key itself and a marker behind it.
    path = tuple(part for part in fault["loc"] if part != "[key]")
    line = line_of(text, path)
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        message = "unknown key"
    elif fault["type"] == "missing":
        message = "this key is missing"
    return line, f"{name}:{line}: {dotted(path)}: {message}"


def _check_lists(matrix: Matrix, text: str, name: str) -> None:
    """Capability lists inside the matrix are read once, so that later use cannot fail."""
    for path, value in capability_lists(matrix):
        try:
            matrix.parse_capabilities(value)
        except CapabilityError as error:
            raise MatrixError(
                f"{name}:{line_of(text, path)}: {dotted(path)}: {error.what}",
                evidence=error.evidence,
                next_step="Correct that list, or add the capability to [capabilities].",
            ) from error


def capability_lists(matrix: Matrix) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Every capability list of the matrix with the path of its key."""
    found: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("cuda", key, "targets"), line.targets) for key, line in matrix.cuda.items()
    ]
    for key, build in matrix.torch.items():
        if build.capabilities is not None:
            found.append((("torch", key, "capabilities"), build.capabilities))
    for package, rows in matrix.releases.items():
        for key, row in rows.items():
            if row.capabilities is not None:
                found.append((("releases", package, key, "capabilities"), row.capabilities))
    return found

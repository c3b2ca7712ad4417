"""The matrix as tables for people and as plain data for programs; pure, prints nothing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from packaging.version import Version

from pinwheel.matrix.check import on_pin
from pinwheel.matrix.combo import ComboId
from pinwheel.matrix.models import Matrix, nvcc_of

#: Version of the ``--json`` form; grows when a field changes its meaning or goes away.
SCHEMA = 1

_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Table:
    """One table: the axis it shows, a title, column names, rows of text."""

    axis: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def as_data(matrix: Matrix) -> dict[str, object]:
    """The whole matrix as plain data; absent fields are unknown. docs/matrix.md describes it."""
    data: dict[str, object] = matrix.model_dump(mode="json", by_alias=True, exclude_none=True)
    data.pop("matrix-version")
    data["schema"] = SCHEMA
    combos = {}
    for name, row in matrix.combos.items():
        combo = ComboId.parse(name)
        build = matrix.torch.get(row.torch)
        release = matrix.releases.get(combo.package, {}).get(combo.release)
        combos[name] = {
            "cuda": combo.cuda_line,
            "torch": row.torch,
            "package": combo.package,
            "release": combo.release,
            "upstream-torch": release.torch if release else None,
            "on-pin": on_pin(build, release) if build and release else None,
            "source": row.source,
        }
    data["combos"] = combos
    return data


def tables(matrix: Matrix) -> tuple[Table, ...]:
    """Every axis as a table, combos first."""
    return (
        _combos(matrix),
        _cuda(matrix),
        _torch(matrix),
        *(_releases(matrix, package) for package in matrix.releases),
        _toolkits(matrix),
        _capabilities(matrix),
    )


AXES = ("combos", "cuda", "torch", "releases", "toolkits", "capabilities")


def _combos(matrix: Matrix) -> Table:
    rows = []
    for name, row in matrix.combos.items():
        combo = ComboId.parse(name)
        build = matrix.torch.get(row.torch)
        release = matrix.releases.get(combo.package, {}).get(combo.release)
        if build is None or release is None:
            pin = _UNKNOWN
        elif on_pin(build, release):
            pin = "upstream's"
        else:
            pin = f"off: upstream pins {release.torch}"
        rows.append((name, combo.package, combo.release, row.torch, pin))
    return Table(
        "combos", "Combos", ("combo", "package", "release", "torch build", "pin"), tuple(rows)
    )


def _cuda(matrix: Matrix) -> Table:
    rows = tuple(
        (
            name,
            line.native_driver or _UNKNOWN,
            ", ".join(f"{v} from {release}" for release, v in line.update_drivers.items()),
            line.minor_driver,
            str(line.newest_gcc or _UNKNOWN),
            line.nvcc[-1],
            " ".join(line.targets),
        )
        for name, line in matrix.cuda.items()
    )
    columns = (
        *("CUDA", "native driver", "of updates", "minor-compatible"),
        *("gcc up to", "newest nvcc", "targets"),
    )
    return Table("cuda", "CUDA lines", columns, rows)


def _torch(matrix: Matrix) -> Table:
    rows = tuple(
        (
            name,
            build.cuda,
            _UNKNOWN if build.cxx11_abi is None else str(int(build.cxx11_abi)),
            build.cudnn or _UNKNOWN,
            build.nccl or _UNKNOWN,
            build.triton or _UNKNOWN,
            f"{build.pythons[0]} to {build.pythons[-1]}",
            " ".join(build.capabilities) if build.capabilities else _UNKNOWN,
        )
        for name, build in matrix.torch.items()
    )
    columns = ("build", "CUDA", "CXX11 ABI", "cuDNN", "NCCL", "Triton", "Python", "capabilities")
    return Table("torch", "torch builds", columns, rows)


def _releases(matrix: Matrix, package: str) -> Table:
    """Releases with equal pins that follow each other are one row."""
    ordered = sorted(matrix.releases[package].items(), key=lambda item: Version(item[0]))
    rows = []
    for pins, group in groupby(
        ordered, key=lambda item: (item[1].torch, item[1].cuda, item[1].python)
    ):
        names = [name for name, _ in group]
        span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        rows.append((span, *(value or "any" for value in pins)))
    columns = ("release", "torch pin", "its CUDA", "Python")
    return Table("releases", f"{package} releases", columns, tuple(rows))


def _toolkits(matrix: Matrix) -> Table:
    rows = tuple(
        (name, row.line, _driver_of(matrix, name, row.line), row.source)
        for name, row in matrix.toolkits.items()
    )
    return Table("toolkits", "Toolkits", ("toolkit", "CUDA", "native driver", "source"), rows)


def _driver_of(matrix: Matrix, toolkit: str, line: str) -> str:
    """The native driver of the release that brought a toolkit's nvcc, updates counted."""
    row = matrix.cuda.get(line)
    return (row and row.native_driver_for(nvcc_of(toolkit))) or _UNKNOWN


def _capabilities(matrix: Matrix) -> Table:
    rows = tuple(
        (
            key,
            row.name,
            "Tegra" if row.tegra else "",
            " ".join(f"{key}{variant}" for variant in row.variants),
        )
        for key, row in matrix.capabilities.items()
    )
    return Table(
        "capabilities", "Compute capabilities", ("capability", "GPUs", "part", "variants"), rows
    )

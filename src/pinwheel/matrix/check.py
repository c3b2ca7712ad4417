"""The rules between the rows of a matrix: what contradicts what, with both sides' sources."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from pinwheel.matrix.combo import ComboId, line_to_tag
from pinwheel.matrix.findings import MATRIX_FILE, Finding, raise_findings, side
from pinwheel.matrix.models import CudaLine, Matrix, ReleaseRow, TorchBuild, nvcc_of
from pinwheel.matrix.require import require_gcc, require_targets

__all__ = [
    "Finding",
    "check_matrix",
    "driver_version",
    "on_pin",
    "raise_findings",
    "require_gcc",
    "require_targets",
]


def driver_version(text: str) -> tuple[int, ...]:
    """A dotted driver version for numeric comparison (570.26 is older than 570.124.06)."""
    return tuple(int(part) for part in text.split("."))


# --- the rules of the matrix ----------------------------------------------------------------


def on_pin(build: TorchBuild, release: ReleaseRow) -> bool:
    """Whether a torch build is the one upstream pins; a release without a pin takes any."""
    if release.torch is None:
        return True
    return build.version == release.torch and release.cuda in (None, build.cuda)


def check_matrix(matrix: Matrix) -> list[Finding]:
    """Every contradiction inside the matrix, in the order of the file."""
    findings: list[Finding] = []
    for name, line in matrix.cuda.items():
        findings += _check_line(matrix, name, line)
    for key, build in matrix.torch.items():
        findings += _check_torch(matrix, key, build)
    for key, toolkit in matrix.toolkits.items():
        findings += _check_toolkit(matrix, key, toolkit.line, toolkit.source)
    for package, rows in matrix.releases.items():
        for key, row in rows.items():
            findings += _check_release(matrix, f'releases.{package}."{key}"', row)
    for name in matrix.combos:
        findings += _check_combo(matrix, ComboId.parse(name))
    return findings


def _check_line(matrix: Matrix, name: str, line: CudaLine) -> list[Finding]:
    where = f'cuda."{name}"'
    findings = []
    if line.native_driver and driver_version(line.native_driver) < driver_version(
        line.minor_driver
    ):
        findings.append(
            Finding(
                "driver-order",
                where,
                "its native driver is older than its oldest minor-version-compatible one",
                (
                    side(where, f"native-driver {line.native_driver}", line.driver_source),
                    side(where, f"minor-driver {line.minor_driver}", line.driver_source),
                ),
                "Correct one of the two.",
            )
        )
    for release, driver in line.update_drivers.items():
        native = line.native_driver
        if native is None or driver_version(driver) <= driver_version(native):
            findings.append(
                Finding(
                    "driver-order",
                    where,
                    f"the driver of update {release} is not newer than the line's own",
                    (
                        side(where, f"update-drivers {release} = {driver}", line.driver_source),
                        side(where, f"native-driver {native or 'unknown'}", line.driver_source),
                    ),
                    "Name only updates with a newer driver.",
                )
            )
    for other_name, other in matrix.cuda.items():
        if (
            other_name.split(".")[0] == name.split(".")[0]
            and other_name < name
            and other.minor_driver != line.minor_driver
        ):
            findings.append(
                Finding(
                    "minor-driver-differs",
                    where,
                    "lines of one major have one minor-version-compatible driver",
                    (
                        side(where, line.minor_driver, line.driver_source),
                        side(f'cuda."{other_name}"', other.minor_driver, other.driver_source),
                    ),
                    "Correct one of the two.",
                )
            )
    for version in (*line.nvcc, *line.releases.values(), *line.releases, *line.update_drivers):
        if not version.startswith(f"{name}."):
            findings.append(
                Finding(
                    "version-of-another-line",
                    where,
                    f"{version} is not of CUDA {name}",
                    (
                        side(where, f"is CUDA {name}", MATRIX_FILE),
                        side(where, f"names {version}", MATRIX_FILE),
                    ),
                    "Move it to its own line.",
                )
            )
    for release, version in line.releases.items():
        if version not in line.nvcc:
            findings.append(
                Finding(
                    "nvcc-unknown",
                    where,
                    f"release {release} brings nvcc {version}, which nvcc does not list",
                    (
                        side(where, f"releases {release} = {version}", MATRIX_FILE),
                        side(where, f"nvcc {', '.join(line.nvcc)}", MATRIX_FILE),
                    ),
                    "Add it to nvcc, or correct the release.",
                )
            )
    if line.newest_gcc is not None and not line.gcc_source:
        findings.append(
            Finding(
                "no-source",
                where,
                "newest-gcc stands without gcc-source",
                (side(where, f"newest-gcc {line.newest_gcc}", "no source"),),
                "Name where the limit is written.",
            )
        )
    return findings


def _check_torch(matrix: Matrix, key: str, build: TorchBuild) -> list[Finding]:
    where = f'torch."{key}"'
    findings = []
    if key != f"{build.version}+cu{line_to_tag(build.cuda)}":
        findings.append(
            Finding(
                "torch-key",
                where,
                "its key and its fields name different builds",
                (
                    side(where, f"key {key}", MATRIX_FILE),
                    side(where, f"version {build.version}, cuda {build.cuda}", build.source),
                ),
                "Name the key <version>+cu<line without dot>.",
            )
        )
    if build.cuda not in matrix.cuda:
        findings.append(_missing("cuda-line-unknown", where, f"CUDA {build.cuda}", build.source))
    elif build.capabilities is not None:
        line = matrix.cuda[build.cuda]
        targets = matrix.parse_capabilities(line.targets)
        beyond = [
            str(c) for c in matrix.parse_capabilities(build.capabilities) if c.code not in targets
        ]
        if beyond:
            findings.append(
                Finding(
                    "capability-not-targetable",
                    where,
                    f"it carries {' '.join(beyond)}, which its CUDA line cannot target",
                    (
                        side(where, " ".join(build.capabilities), build.source),
                        side(f'cuda."{build.cuda}"', " ".join(line.targets), line.targets_source),
                    ),
                    "Read the build's list again, or the line's targets.",
                )
            )
    return findings


def _check_toolkit(matrix: Matrix, key: str, line: str, source: str) -> list[Finding]:
    where = f'toolkits."{key}"'
    nvcc = nvcc_of(key)
    if line not in matrix.cuda:
        return [_missing("cuda-line-unknown", where, f"CUDA {line}", source)]
    row = matrix.cuda[line]
    findings = [
        Finding(
            f"{name}-unknown",
            where,
            f"the {name} of CUDA {line} is unknown, and a toolkit of it needs one",
            (
                side(where, f"line {line}", source),
                side(f'cuda."{line}"', f"no {name}", "no source"),
            ),
            f"Add {name} with its source to the line, or drop the toolkit.",
        )
        for name, value in (("native-driver", row.native_driver), ("newest-gcc", row.newest_gcc))
        if value is None
    ]
    if nvcc not in row.nvcc:
        findings.append(
            Finding(
                "nvcc-unknown",
                where,
                f"CUDA {line} has no nvcc {nvcc}",
                (
                    side(where, f"line {line}, nvcc {nvcc} by its name", source),
                    side(f'cuda."{line}"', f"nvcc {', '.join(row.nvcc)}", MATRIX_FILE),
                ),
                "Correct the toolkit's line or name, or add the version to the line's nvcc.",
            )
        )
    return findings


def _check_release(matrix: Matrix, where: str, row: ReleaseRow) -> list[Finding]:
    if row.cuda is not None and row.torch is None:
        return [
            Finding(
                "cuda-without-torch",
                where,
                "it names a torch build's CUDA line but pins no torch",
                (side(where, f"cuda {row.cuda}, no torch", row.source),),
                "Name the torch version, or leave cuda out.",
            )
        ]
    if row.torch is None:
        return []
    builds = {k: b for k, b in matrix.torch.items() if b.version == row.torch}
    if not builds:
        return [_missing("torch-unknown", where, f"torch {row.torch}", row.source)]
    if row.cuda is not None and row.cuda not in {b.cuda for b in builds.values()}:
        return [
            Finding(
                "torch-cuda",
                where,
                f"no build of torch {row.torch} in the matrix is of CUDA {row.cuda}",
                (
                    side(where, f"torch {row.torch} with CUDA {row.cuda}", row.source),
                    *(side(f'torch."{k}"', f"CUDA {b.cuda}", b.source) for k, b in builds.items()),
                ),
                "Correct cuda; it is the CUDA line of the torch build an index serves.",
            )
        ]
    if row.python is not None and not any(
        list(SpecifierSet(row.python).filter(b.pythons)) for b in builds.values()
    ):
        return [
            Finding(
                "no-common-python",
                where,
                f"no Python suits both it and torch {row.torch}",
                (
                    side(where, f"Python {row.python}", row.source),
                    *(
                        side(f'torch."{k}"', f"Python {', '.join(b.pythons)}", b.source)
                        for k, b in builds.items()
                    ),
                ),
                "Read both again.",
            )
        ]
    return []


def _check_combo(matrix: Matrix, combo: ComboId) -> list[Finding]:
    row = matrix.combos[str(combo)]
    where = f'combos."{combo}"'
    findings = []
    build = matrix.torch.get(row.torch)
    if build is None:
        findings.append(_missing("torch-unknown", where, f"torch build {row.torch}", row.source))
    else:
        if build.cuda != combo.cuda_line:
            findings.append(
                Finding(
                    "combo-cuda",
                    str(combo),
                    f"its id says CUDA {combo.cuda_line}, its torch build is of CUDA {build.cuda}",
                    (
                        side(where, f"cu{combo.cuda}, torch {row.torch}", row.source),
                        side(f'torch."{row.torch}"', f"CUDA {build.cuda}", build.source),
                    ),
                    "Name the combo after its torch build, or choose another build.",
                )
            )
        if build.minor != combo.torch:
            findings.append(
                Finding(
                    "combo-torch",
                    str(combo),
                    f"its id says torch {combo.torch}, its torch build is {build.version}",
                    (
                        side(where, f"torch{combo.torch}, torch {row.torch}", row.source),
                        side(f'torch."{row.torch}"', build.version, build.source),
                    ),
                    "Name the combo after its torch build, or choose another build.",
                )
            )
    if combo.release not in matrix.releases.get(combo.package, {}):
        findings.append(
            _missing(
                "release-unknown",
                where,
                f"{combo.package} {combo.release}",
                row.source,
                nearest=sorted(matrix.releases.get(combo.package, {}), key=_release_order),
            )
        )
    return findings


def _release_order(text: str) -> Version:
    return Version(text)


def _missing(rule: str, where: str, what: str, source: str, nearest: Iterable[str] = ()) -> Finding:
    known = " ".join(nearest)
    return Finding(
        rule,
        where,
        f"{what} is not in the matrix",
        (
            side(where, f"names {what}", source),
            side(MATRIX_FILE, f"has {known or 'no such row'}", MATRIX_FILE),
        ),
        f"Add a row for {what} with its source, or name another.",
    )

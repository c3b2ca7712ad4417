"""Reads one wheel and answers every rule; what a command and a build both call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.version import Version

from pinwheel.console import Console
from pinwheel.errors import CapabilityError
from pinwheel.files import sha256_file
from pinwheel.inputs.store import Store
from pinwheel.inspect.elsewhere import elsewhere
from pinwheel.inspect.wheel import WheelReader, open_wheel
from pinwheel.matrix.capability import Capability
from pinwheel.matrix.models import Matrix, load_matrix
from pinwheel.settings import MATRIX, Settings
from pinwheel.verify.claim import Claim, Request, make_claim
from pinwheel.verify.code import (
    CODE_RULES,
    LAUNCHES,
    CodeException,
    CodeFault,
    LibraryCode,
    check_code,
)
from pinwheel.verify.exceptions import code_exceptions
from pinwheel.verify.files import check_manifest, check_statements
from pinwheel.verify.gpus import check_torch_code, gpu_table
from pinwheel.verify.library import (
    ReadLibrary,
    build_paths,
    check_libraries,
    check_vendored,
    read_libraries,
)
from pinwheel.verify.loaded import check_loaded
from pinwheel.verify.manifest import read_manifest
from pinwheel.verify.model import Checked, Profile, Report, merge
from pinwheel.verify.parity_rule import check_parity
from pinwheel.verify.pins import check_pins
from pinwheel.verify.platform_rule import check_platform
from pinwheel.verify.release import check_release
from pinwheel.verify.rules import judge
from pinwheel.verify.snapshot import Snapshot
from pinwheel.verify.torch_rules import check_abi, load_snapshot, torch_code

__all__ = ["Request", "verify_wheel"]


def verify_wheel(path: Path, request: Request, settings: Settings, console: Console) -> Report:
    """Read a wheel, run none of it, and answer every rule of :mod:`pinwheel.verify.rules`.

    Raises:
        ArtifactError: the wheel or a library in it cannot be read.
        MatrixError, UnknownComboError, RecipeError, LockError, CapabilityError: what it is to be
            held against cannot be read.
        WheelError, PatchError, HashMismatchError: the same of the official wheel and the patches.
        DiskFullError, NotWritableError: there is no room to unpack its libraries.
    """
    matrix = load_matrix(settings.project / MATRIX)
    scratch = settings.work
    with ThreadPoolExecutor(1) as pool, open_wheel(path, scratch) as reader:
        # Hashing leaves the interpreter free, so beside reading it costs no time.
        digest = pool.submit(sha256_file, path)
        claim = make_claim(reader, read_manifest(reader), request, matrix, settings)
        # What hangs on no library comes before them: the first is still being unpacked.
        snapshot = load_snapshot(claim.torch, claim.torch_from)
        libraries = _read(reader, claim, console, kernels=request.kernels)
        sha256 = digest.result()
        parts = [
            *_judged(reader, claim, libraries, snapshot, matrix, kernels=request.kernels),
            check_parity(
                path,
                sha256,
                request.official,
                claim,
                Store(settings.store),
                scratch,
                targets={lib.name: lib.counts for lib in libraries if lib.counts},
            ),
            check_loaded(path, sha256, claim, request.loaded),
        ]
        checked = merge(parts)
        checked = merge([checked, check_release(claim, checked, matrix)])
        return Report(
            wheel=path.name,
            sha256=sha256,
            size=path.stat().st_size,
            profile=claim.profile,
            claim=claim.as_dict(),
            outcomes=judge(checked, claim.profile),
            facts=checked.facts,
        )


def _read(
    reader: WheelReader, claim: Claim, console: Console, *, kernels: bool
) -> tuple[ReadLibrary, ...]:
    total = sum(member.size for member in reader.members)
    with console.progress(total, "bytes", f"reading {reader.path.name}") as progress:

        def seen(library: ReadLibrary) -> None:
            progress.describe(library.name)
            progress.advance(library.size)

        paths = build_paths(claim.ours)
        libraries = read_libraries(reader, kernels=kernels, paths=paths, seen=seen)
        progress.advance(total - sum(library.size for library in libraries))
    return libraries


def _judged(
    reader: WheelReader,
    claim: Claim,
    libraries: Sequence[ReadLibrary],
    known: tuple[Snapshot | None, Checked],
    matrix: Matrix,
    *,
    kernels: bool,
) -> list[Checked]:
    tags = reader.file_name.tags
    outside = elsewhere()
    host = [library.elf for library in libraries if library.host]
    used = bool(host) or bool(claim.torch)
    snapshot, torch_known = known
    if not used:
        torch_known = Checked(skipped={"torch-known": "it neither uses nor requires torch"})
    return [
        check_statements(reader),
        check_manifest(reader, claim, libraries, matrix, outside),
        check_pins(reader.metadata, claim, libraries),
        check_platform(libraries, tags, outside),
        check_libraries(libraries, tags),
        check_vendored(reader.sha256, libraries, outside),
        torch_known,
        check_abi(host, snapshot),
        *_code(claim, libraries, snapshot, matrix, kernels=kernels),
        Checked(facts={"libraries": {lib.name: lib.as_dict(outside) for lib in libraries}}),
    ]


def _code(
    claim: Claim,
    libraries: Sequence[ReadLibrary],
    snapshot: Snapshot | None,
    matrix: Matrix,
    *,
    kernels: bool,
) -> list[Checked]:
    """The rules on machine code, torch's among them, and the table of GPUs."""
    codes = [code for library in libraries if (code := library.code) is not None]
    known = matrix.known
    try:
        built = _built(claim, matrix)
        exceptions = _exceptions(claim, claim.capabilities if built is None else built, matrix)
        ours = check_code(
            codes,
            claim.capabilities,
            known=known,
            expected=_expected(claim),
            launching=[
                library.name
                for library in libraries
                if library.host and LAUNCHES.intersection(s.name for s in library.elf.undefined)
            ],
            exceptions=exceptions,
            kernels=kernels,
            ptx_driver=_ptx_driver(libraries, matrix),
            built=built,
        )
        torch = torch_code(snapshot, known=known)
        return [ours, *_torch(torch, codes, claim, matrix)]
    except CapabilityError as error:
        why = dict.fromkeys(
            (*CODE_RULES, "torch-code"), " ".join((error.what, *error.evidence[:1]))
        )
        return [Checked(unsure=why)]


def _built(claim: Claim, matrix: Matrix) -> tuple[Capability, ...] | None:
    """What the wheel was compiled for, where ``--archs`` names what it must serve.

    Raises:
        CapabilityError: the manifest's list cannot be read.
    """
    if not claim.asked:
        return None
    return matrix.parse_capabilities(claim.manifest.capabilities) if claim.manifest else ()


def _exceptions(claim: Claim, built: Sequence[Capability], matrix: Matrix) -> list[CodeException]:
    """Those of the recipe that can apply: of a wheel for part of its capabilities, not all do.

    Raises:
        CapabilityError: one is for a capability that the matrix does not know.
    """
    if claim.project is not None:
        recipe = claim.project.loaded.recipe
        whole = matrix.parse_capabilities(recipe.capabilities)
        found = code_exceptions(recipe.code_exceptions, known=matrix.known)
    elif claim.manifest is not None and claim.profile is not Profile.RELEASE:
        # A release is excused by its recipe alone, never by what the wheel says of itself.
        whole = matrix.parse_capabilities(claim.manifest.capabilities_of_recipe)
        found = code_exceptions(claim.manifest.code_exceptions, known=matrix.known)
    else:
        return []
    left_out = {c.code for c in whole} - {c.code for c in built}
    return [e for e in found if e.fault is CodeFault.UNDECLARED or e.capability not in left_out]


def _torch(
    torch: LibraryCode | None, codes: Sequence[LibraryCode], claim: Claim, matrix: Matrix
) -> list[Checked]:
    rows = [
        {**row, "name": matrix.capabilities[row["gpu"]].name}
        for row in gpu_table(codes, torch, known=matrix.known)
    ]
    table = Checked(facts={"gpus": rows})
    if all(code.idle for code in codes):
        why = "no library holds a kernel" if codes else "no library holds device code"
        return [Checked(skipped={"torch-code": why}), table]
    checked = check_torch_code(torch, claim.capabilities, build=claim.torch, known=matrix.known)
    return [checked, table]


def _expected(claim: Claim) -> list[str]:
    """Libraries that recipe or manifest say hold device code."""
    if claim.project is not None:
        extensions = claim.project.loaded.recipe.extensions
        return [name for name, extension in extensions.items() if extension.machine_code]
    if claim.manifest is not None:
        return [name for name, lib in claim.manifest.libraries.items() if lib.device_code]
    return []


def _ptx_driver(libraries: Sequence[ReadLibrary], matrix: Matrix) -> Callable[[Capability], str]:
    """The driver that takes PTX of the toolkits that compiled these libraries; empty if unknown."""
    lines = {toolkit for library in libraries for toolkit in library.toolkits}
    known = [matrix.cuda[line] for line in sorted(lines, key=Version) if line in matrix.cuda]
    newest = known[-1].native_driver if known else None

    def driver(_: Capability) -> str:
        return f"{newest} or newer" if newest else ""

    return driver

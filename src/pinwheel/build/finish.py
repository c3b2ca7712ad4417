"""Turns the raw wheel of a build back end into the finished one in ``dist/``.

Nothing appears in ``dist/`` before everything has been checked. ``docs/wheel.md`` describes the
result and says what its byte identity rests on.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinwheel.build import elf, manifest, metadata, zipping
from pinwheel.build.elf import Library
from pinwheel.build.placing import enough_space, place, workplace
from pinwheel.build.rawwheel import RawWheel, names_below, read_raw, record_of, wheel_error
from pinwheel.errors import WheelError
from pinwheel.files import human_bytes, make_directory, sha256_file, writing
from pinwheel.inputs.archive import unpack_wheel
from pinwheel.inspect import pathscan, platform
from pinwheel.recipe.models import Requirement

if TYPE_CHECKING:
    from pinwheel.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishPlan:
    """What to finish, and what it has to come out as.

    Attributes:
        raw: wheel as the build back end wrote it.
        out_dir: ``dist/<combo>``.
        distribution: project name, ``vllm``.
        version: full version, ``0.6.3+cu121.torch2.3.ctk124``.
        requirements: requirement lines to rewrite.
        build_paths: paths no file may contain; one that ends in a slash stands for all below it.
            The directories of ``raw`` and ``out_dir`` are always among them.
        reported_paths: paths that may be there and are counted: the build root's canonical ones,
            which are the same for everybody.
        source_date_epoch: seconds since 1970, the time of every file in the wheel.
        strip: strips the given libraries in place; the build root's own binutils, so that the
            bytes do not depend on the host.
        pack: :func:`pinwheel.build.zipping.pack`, or the same run in the build root.
        extensions: library path within the wheel -> whether it has to hold device code. The wheel
            must hold exactly these libraries.
        facts: for the manifest: combo, lock digest, toolkit, capabilities and so on.
        describe: more facts on one library (cubins per capability), from its path in the wheel and
            on disk.
        package: directory of the import package; by default the distribution's name.
        version_file: write ``<package>/_version.py``.
        built_for: constants of ``<package>/_pinwheel.py`` (TORCH, CUDA, CXX11_ABI); None writes
            no such file.
        excluded_libraries: shell patterns of libraries that come from elsewhere, which may be
            needed and must not be in the wheel.
        locked: distribution -> version of the run environment, which METADATA must admit; None
            leaves that out.
        python: ``3.11``, for the markers of that comparison.
        replace: overwrite a wheel of the same name and other bytes.
    """

    raw: Path
    out_dir: Path
    distribution: str
    version: str
    source_date_epoch: int
    strip: Callable[[list[Path]], None]
    extensions: Mapping[str, bool]
    facts: Mapping[str, Any]
    excluded_libraries: tuple[str, ...]
    build_paths: tuple[str, ...]
    reported_paths: tuple[str, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    pack: Callable[[Path, Path, int], None] = zipping.pack
    describe: Callable[[str, Path], Mapping[str, Any]] | None = None
    package: str = ""
    version_file: bool = False
    built_for: Mapping[str, str | bool] | None = None
    locked: Mapping[str, str] | None = None
    python: str = "3.11"
    replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedWheel:
    """The wheel in ``dist/``.

    Attributes:
        path: the wheel.
        sha256: of the wheel.
        size: of the wheel, in bytes.
        platform_tag: ``manylinux_2_34_x86_64``.
        manifest: what ``pinwheel.json`` in it says.
        paths_inside: file within the wheel -> canonical path -> how often it begins there.
        unchanged: the same bytes were there already.
    """

    path: Path
    sha256: str
    size: int
    platform_tag: str
    manifest: Mapping[str, Any]
    paths_inside: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unchanged: bool = False


def finish(plan: FinishPlan, console: Console) -> FinishedWheel:
    """Finish one wheel; ``dist/`` is as it was when this raises.

    Raises:
        UnpackError: the raw wheel is damaged or leads out of its directory.
        WheelError: the raw wheel contradicts itself or the plan, or another wheel of this name is
            there.
        PlatformTagError: no platform tag is true of it.
        NotWritableError: ``out_dir`` cannot be written.
        DiskFullError: no space for it.
    """
    make_directory(plan.out_dir)
    enough_space(plan.raw, plan.out_dir)
    with workplace(plan.out_dir.parent) as work:
        tree = work / "tree"
        unpack_wheel(plan.raw, tree)
        raw = read_raw(tree, plan.raw.name, plan.distribution)
        with writing(plan.out_dir):
            info = _rewrite(plan, tree, raw)
            libraries = _libraries(plan, tree, raw, console)
            tag = _platform(plan, libraries)
            build = raw.build or metadata.WHOLE_BUILD
            _write_wheel_file(tree / info, raw, build, tag)
            stated = _manifest(plan, tree, libraries, tag)
            (tree / info / manifest.NAME).write_bytes(manifest.as_json(stated))
            record = record_of(tree, info)
            (tree / info / "RECORD").write_bytes(record)
            inside = _paths(plan, tree)
            name = _file_name(plan, raw, build, tag)
            console.say(f"packing {name}")
            packed = work / name
            _pack(plan, tree, packed)
        sha256, size = sha256_file(packed), packed.stat().st_size
        beside = {
            **stated,
            "paths-inside": inside,
            "wheel": {"name": name, "sha256": sha256, "size": size},
        }
        unchanged = place(
            packed, plan.out_dir, sha256, manifest.as_json(beside), replace=plan.replace
        )
    console.say(f"{name}: {human_bytes(size)}, {'unchanged, ' if unchanged else ''}sha256 {sha256}")
    return FinishedWheel(
        path=plan.out_dir / name,
        sha256=sha256,
        size=size,
        platform_tag=tag.tag if tag else "any",
        manifest=stated,
        paths_inside=inside,
        unchanged=unchanged,
    )


def _rewrite(plan: FinishPlan, tree: Path, raw: RawWheel) -> str:
    """METADATA, version modules and directory names; returns the new dist-info name."""
    stem = f"{raw.name}-{plan.version}"
    old_stem = raw.dist_info.removesuffix(".dist-info")
    for suffix in (".dist-info", ".data"):
        if old_stem != stem and (tree / f"{old_stem}{suffix}").is_dir():
            (tree / f"{old_stem}{suffix}").rename(tree / f"{stem}{suffix}")
    info = f"{stem}.dist-info"
    path = tree / info / "METADATA"
    data = metadata.rewrite_metadata(
        path.read_bytes(), version=plan.version, requirements=plan.requirements
    )
    if plan.locked is not None:
        metadata.check_against_lock(data, plan.locked, python=plan.python)
    path.write_bytes(data)

    modules: dict[str, str] = {}
    if plan.version_file:
        modules["_version.py"] = metadata.version_module(plan.version)
    if plan.built_for is not None:
        modules["_pinwheel.py"] = metadata.built_for_module(plan.built_for)
    package = plan.package or plan.distribution.replace("-", "_")
    if modules and not (tree / package / "__init__.py").is_file():
        raise wheel_error(f"{plan.raw.name} has no package {package}")
    for name, text in modules.items():
        (tree / package / name).write_text(text, encoding="utf-8")
    return info


def _libraries(plan: FinishPlan, tree: Path, raw: RawWheel, console: Console) -> list[Library]:
    """Strip the libraries and check what they have become."""
    names = names_below(tree)
    compiled = [n for n in names if n.endswith((".pyc", ".pyo"))]
    if compiled:
        raise wheel_error(f"{plan.raw.name} holds compiled Python, not the same twice", *compiled)
    found = [n for n in names if elf.is_elf(tree / n)]
    foreign = [
        n
        for n in names
        if (n in found or ".so" in n)
        and platform.comes_from_elsewhere(n.rpartition("/")[2], plan.excluded_libraries)
    ]
    if foreign:
        raise WheelError(
            f"{plan.raw.name} carries libraries that another package or the driver brings",
            evidence=foreign,
            next_step="Leave them out of the build's install step: two copies in one process "
            "corrupt each other's state.",
        )
    if set(found) != set(plan.extensions):
        raise WheelError(
            f"{plan.raw.name} does not hold the libraries that the recipe expects",
            evidence=[
                *(f"missing: {n}" for n in sorted(set(plan.extensions) - set(found))),
                *(f"not expected: {n}" for n in sorted(set(found) - set(plan.extensions))),
            ],
            next_step="Look for a source that CMake left out, or correct [extensions] in "
            "recipe.toml.",
        )
    if not found:
        return []
    if raw.purelib:
        raise wheel_error("WHEEL says Root-Is-Purelib: true, the wheel holds libraries", *found)
    before = {n: elf.read_library(tree / n, n) for n in found}
    console.say(f"stripping {len(found)} libraries")
    plan.strip([tree / n for n in found])
    after = [elf.read_library(tree / n, n) for n in found]
    for library in after:
        _check_library(library, before[library.name], plan.extensions[library.name])
    return after


def _check_library(library: Library, before: Library, machine_code: bool) -> None:
    wrong: list[str] = []
    for kind, value in library.search_paths:
        wrong.append(f"{kind} {value!r}: libraries would be looked for in that directory")
    if library.executable_stack:
        wrong.append("its stack is executable (PT_GNU_STACK)")
    if library.symbol_table:
        wrong.append("it is not stripped: .symtab or .debug_* is still there")
    if bool(library.device_code) != machine_code:
        size = f"{library.device_code} bytes of device code"
        wrong.append(f"{size}, the recipe expects {'some' if machine_code else 'none'}")
    for what in ("needed", "soname", "undefined", "defined", "device_code"):
        if getattr(library, what) != getattr(before, what):
            wrong.append(f"strip changed it: {what} differs")
    if wrong:
        raise WheelError(
            f"{library.name} in the raw wheel cannot be shipped",
            evidence=wrong,
            next_step="Correct the flags it is linked with (CMAKE_SKIP_RPATH, -z noexecstack) or "
            "[extensions] in recipe.toml, then build again.",
        )


def _platform(plan: FinishPlan, libraries: Sequence[Library]) -> platform.Platform | None:
    return platform.platform_of(libraries, plan.excluded_libraries) if libraries else None


def _write_wheel_file(info: Path, raw: RawWheel, build: str, tag: platform.Platform | None) -> None:
    path = info / "WHEEL"
    platforms = [tag.tag if tag else "any"]
    data = metadata.rewrite_wheel_file(
        path.read_bytes(), build=build, tags=raw.tags, platforms=platforms
    )
    path.write_bytes(data)


def _file_name(plan: FinishPlan, raw: RawWheel, build: str, tag: platform.Platform | None) -> str:
    platform_tag = tag.tag if tag else "any"
    return "-".join([raw.name, plan.version, build, raw.python_abi, platform_tag]) + ".whl"


def _manifest(
    plan: FinishPlan,
    tree: Path,
    libraries: Sequence[Library],
    tag: platform.Platform | None,
) -> dict[str, Any]:
    facts: dict[str, dict[str, Any]] = {}
    for library in libraries:
        path = tree / library.name
        facts[library.name] = {
            **(plan.describe(library.name, path) if plan.describe else {}),
            **manifest.library_facts(
                library,
                sha256=sha256_file(path),
                size=path.stat().st_size,
                machine_code=plan.extensions[library.name],
                elsewhere=plan.excluded_libraries,
            ),
        }
    return manifest.build_manifest(
        plan.facts,
        distribution=plan.distribution,
        version=plan.version,
        platform=tag,
        libraries=facts,
    )


def _paths(plan: FinishPlan, tree: Path) -> dict[str, dict[str, int]]:
    """Refuse paths that must not be inside; count those that may."""
    refused = [*plan.build_paths, *(f"{d}/" for d in _host_directories(plan))]
    counted = [p for p in plan.reported_paths if p not in refused]
    bad: list[pathscan.Find] = []
    inside: dict[str, dict[str, int]] = {}
    for name in names_below(tree):
        finds = pathscan.scan(tree / name, name, [*refused, *counted])
        bad += [f for f in finds if f.path in refused]
        counts = Counter(f.path for f in finds if f.path in counted)
        if counts:
            inside[name] = dict(sorted(counts.items()))
    if bad:
        more = [f"and {len(bad) - 20} more"] if len(bad) > 20 else []
        raise WheelError(
            f"{plan.raw.name} contains paths of the machine it was built on",
            evidence=[*(str(f) for f in bad[:20]), *more],
            next_step="Build at the build root's canonical paths, or map the prefix away "
            "(-ffile-prefix-map) for the source that is named.",
        )
    return inside


def _host_directories(plan: FinishPlan) -> Iterator[str]:
    for path in (plan.raw.absolute().parent, plan.out_dir.absolute().parent):
        # "/out" is as short as words in a text get; a path of two names is meant as one.
        if len(path.parts) > 2:
            yield str(path)


def _pack(plan: FinishPlan, tree: Path, packed: Path) -> None:
    """Pack, then compare every byte: the packer may have run elsewhere."""
    try:
        plan.pack(tree, packed, plan.source_date_epoch)
    except ValueError as error:
        raise wheel_error(f"{packed.name} cannot be packed", str(error)) from error
    names = zipping.entry_order(names_below(tree))
    try:
        with zipfile.ZipFile(packed) as archive:
            if archive.namelist() != names:
                raise wheel_error(f"{packed.name} was not packed in order, or not whole")
            for name in names:
                with archive.open(name) as entry:
                    # ZipExtFile reads like a file; typeshed asks for more than file_digest does.
                    digest = hashlib.file_digest(entry, "sha256").hexdigest()  # type: ignore[arg-type]
                if digest != sha256_file(tree / name):
                    raise wheel_error(f"{packed.name}: {name} was packed wrongly")
    except (zipfile.BadZipFile, FileNotFoundError) as error:
        raise wheel_error(f"{packed.name} was not packed", str(error)) from error

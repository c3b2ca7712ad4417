"""Rules on the wheel as a file: its names, its RECORD, its tags, and our manifest in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from packaging.utils import canonicalize_name
from packaging.version import Version

from pinwheel.errors import CapabilityError, WheelError
from pinwheel.inspect.platform import version_floor
from pinwheel.inspect.region import printable
from pinwheel.inspect.wheel import WheelReader, WheelRule
from pinwheel.matrix.combo import ArtifactVersion, tag_to_line
from pinwheel.matrix.models import Matrix
from pinwheel.recipe.models import CodeExceptionRow
from pinwheel.verify.claim import Claim
from pinwheel.verify.library import ReadLibrary
from pinwheel.verify.manifest import NAME, Manifest, ManifestException, ManifestLibrary
from pinwheel.verify.model import Checked, Problem

_NAMES, _TAGS, _RECORD = "names-agree", "tags-agree", "record-true"
_RULES: Mapping[WheelRule, tuple[str, str]] = {
    WheelRule.NAME: (_NAMES, "the wheel's places name different projects"),
    WheelRule.VERSION: (_NAMES, "the wheel's places name different versions"),
    WheelRule.BUILD: (_NAMES, "file name and WHEEL have different build tags"),
    WheelRule.PYTHON_TAGS: (_TAGS, "file name and WHEEL have different Python or ABI tags"),
    WheelRule.PLATFORM_TAGS: (_TAGS, "file name and WHEEL have different platform tags"),
    WheelRule.NOT_RECORDED: (_RECORD, "not in RECORD"),
    WheelRule.NOT_THERE: (_RECORD, "in RECORD, but not in the wheel"),
    WheelRule.RECORDED_TWICE: (_RECORD, "in RECORD twice"),
    WheelRule.WEAK_HASH: (_RECORD, "without a hash that counts in RECORD"),
    WheelRule.WRONG_HASH: (_RECORD, "not what RECORD has the hash of"),
    WheelRule.WRONG_SIZE: (_RECORD, "not of the size that RECORD has"),
    WheelRule.CASE: (_RECORD, "the same path as another where case does not count"),
}
_NEXT = {
    _NAMES: "Take the wheel from where it was built; never rename one.",
    _TAGS: "Name it by its own WHEEL, or write the tags that are true with `wheel tags`.",
    _RECORD: "Take the wheel from where it was built; it was changed afterwards.",
}


def check_statements(reader: WheelReader) -> Checked:
    """``names-agree``, ``record-true`` and ``tags-agree``, which opening the wheel has judged."""
    problems = []
    for found in reader.problems:
        rule, what = _RULES[found.rule]
        subject = found.path or reader.path.name
        problems.append(
            Problem(
                rule=rule,
                subject=subject,
                what=f"{subject}: {what}" if rule == _RECORD else what,
                evidence=(found.detail,) if found.detail else (),
                next_step=_NEXT[rule],
            )
        )
    version = f"{reader.metadata.name} {reader.metadata.version}"
    return Checked(
        looked={
            _NAMES: printable(version),
            _RECORD: f"{len(reader.record)} lines, {len(reader.members)} files",
            _TAGS: printable(" ".join(sorted({t.platform for t in reader.file_name.tags}))),
        },
        problems=tuple(problems),
    )


def check_manifest(
    reader: WheelReader,
    claim: Claim,
    libraries: Sequence[ReadLibrary],
    matrix: Matrix,
    elsewhere: Sequence[str],
) -> Checked:
    """``manifest-agrees``: our manifest against the wheel, the matrix, and recipe and lock."""
    rule = "manifest-agrees"
    read, manifest = claim.read, claim.manifest
    if not read.present and not claim.ours:
        return Checked(skipped={rule: "the wheel carries no manifest of ours"})
    if not read.present:
        wrong = [("it is missing", f"no {reader.dist_info}/{NAME}")]
    elif manifest is None:
        wrong = [("it cannot be read", fault) for fault in read.faults]
    else:
        wrong = [
            *_statements(reader, manifest),
            *_against_matrix(manifest, matrix),
            *_against_project(manifest, claim),
            *_libraries(reader, manifest, libraries, elsewhere),
        ]
    combo = manifest.combo if manifest else ""
    return Checked(
        looked={rule: f"{combo}, {len(libraries)} libraries"},
        problems=tuple(
            Problem(
                rule=rule,
                subject=NAME,
                what=printable(f"{NAME}: {what}"),
                evidence=(printable(evidence, 600),),
                next_step="Take the wheel from where `pinwheel build` put it, or build it again.",
            )
            for what, evidence in wrong
        ),
    )


_Wrong = Iterator[tuple[str, str]]


def _differ(what: str, stated: object, found: object) -> _Wrong:
    if stated != found:
        yield what, f"manifest: {stated}, found: {found}"


def _statements(reader: WheelReader, manifest: Manifest) -> _Wrong:
    metadata = reader.metadata
    name = canonicalize_name(manifest.distribution)
    yield from _differ("another distribution", name, canonicalize_name(metadata.name))
    yield from _differ("another version", _normal(manifest.version), str(metadata.version))
    tags = {tag.platform for tag in reader.file_name.tags}
    if tags != {manifest.platform_tag}:
        yield "another platform tag", f"manifest: {manifest.platform_tag}, name: {_list(tags)}"
    try:
        version = ArtifactVersion.parse(manifest.version)
    except WheelError as error:
        yield "its version is none of an artifact", error.evidence[0] if error.evidence else ""
        return
    combo = f"cu{version.cuda}-torch{version.torch}-{name}{version.release}"
    yield from _differ("combo and version disagree", manifest.combo, combo)
    line = tag_to_line(version.ctk or version.cuda)
    yield from _differ("toolkit and version disagree", manifest.toolkit.line, line)


def _normal(version: str) -> str:
    try:
        return str(Version(version))
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return version


def _list(values: object) -> str:
    return " ".join(sorted(map(str, values))) if isinstance(values, set) else str(values)


def _against_matrix(manifest: Manifest, matrix: Matrix) -> _Wrong:
    torch = manifest.torch
    builds = [
        b for b in matrix.torch.values() if (b.version, b.cuda) == (torch.version, torch.cuda)
    ]
    if not builds:
        yield "its torch build is none of the matrix", f"torch {torch.version}, CUDA {torch.cuda}"
    for build in builds:
        if None not in (build.cxx11_abi, torch.cxx11_abi):
            yield from _differ("another CXX11 ABI flag", torch.cxx11_abi, build.cxx11_abi)
    try:
        built = set(matrix.parse_capabilities(manifest.capabilities))
        whole = matrix.parse_capabilities(manifest.capabilities_of_recipe)
    except CapabilityError as error:
        yield "its capability list cannot be read", error.what
        return
    if more := built - {*whole, *(c.code for c in whole)}:
        yield (
            "capabilities that its recipe does not have",
            f"{_list(more)}; recipe: {manifest.capabilities_of_recipe}",
        )


def _against_project(manifest: Manifest, claim: Claim) -> _Wrong:
    project = claim.project
    if project is None:
        return
    recipe = project.loaded.recipe
    yield from _differ("another combo", manifest.combo, str(project.loaded.combo))
    yield from _differ("another toolkit", manifest.toolkit.name, project.lock.toolkit)
    yield from _differ("another lock", manifest.lock_sha256, project.sha256)
    yield from _differ("another recipe", manifest.recipe_sha256, project.loaded.digest)
    yield from _differ("another Python", manifest.python, recipe.python)
    excused = {_exception(row) for row in recipe.code_exceptions}
    if stated := {_exception(row) for row in manifest.code_exceptions} ^ excused:
        yield "other exceptions than the recipe's", _list(stated)
    expected = set(recipe.extensions)
    if set(manifest.libraries) != expected:
        yield "other libraries than the recipe's", f"recipe: {_list(expected)}"


def _exception(row: CodeExceptionRow | ManifestException) -> str:
    return f"{row.library} {row.capability} {row.fault}"


def _libraries(
    reader: WheelReader,
    manifest: Manifest,
    libraries: Sequence[ReadLibrary],
    elsewhere: Sequence[str],
) -> _Wrong:
    found = {library.name: library for library in libraries}
    for name in sorted(found.keys() - manifest.libraries.keys()):
        yield "a library it does not name", name
    for name in sorted(manifest.libraries.keys() - found.keys()):
        yield "a library that is not there", name
    for name in sorted(manifest.libraries.keys() & found.keys()):
        stated, library = manifest.libraries[name], found[name]
        yield from _differ(f"{name}: another hash", stated.sha256, reader.sha256[name])
        yield from _differ(f"{name}: another size", stated.size, library.size)
        yield from _library(name, stated, library, elsewhere)


def _library(
    name: str, stated: ManifestLibrary, library: ReadLibrary, elsewhere: Sequence[str]
) -> _Wrong:
    elf = library.elf
    yield from _differ(f"{name}: another kind", stated.kind, elf.kind)
    yield from _differ(f"{name}: other NEEDED", list(stated.needed), list(elf.needed))
    yield from _differ(f"{name}: device code", stated.device_code, bool(elf.device_code))
    floor = version_floor(elf, elsewhere)
    yield from _differ(f"{name}: another symbol floor", stated.symbol_floor, floor)
    if stated.cubins is not None:
        yield from _differ(f"{name}: other cubins", stated.cubins, library.counts)

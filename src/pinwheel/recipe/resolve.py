"""Resolves a recipe to a lock: every input by source, name, version, path, size and sha256."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name
from pydantic import ValidationError
from pypi_simple import DistributionPackage

from pinwheel.console import Console
from pinwheel.errors import HashMismatchError, ResolveError
from pinwheel.http import Client
from pinwheel.matrix.models import load_matrix
from pinwheel.recipe.data import (
    RootData,
    Suite,
    ToolkitData,
    data_digest,
    root_data,
    toolkit_data,
    tools_data,
)
from pinwheel.recipe.debian import Package, closure
from pinwheel.recipe.debian_archive import Snapshot, find_part, read_suite
from pinwheel.recipe.index import choose_file, project_files
from pinwheel.recipe.load import LoadedRecipe, chosen_toolkit
from pinwheel.recipe.lock import Input, Lock, Role, SourceKind
from pinwheel.recipe.python import (
    IndexFile,
    Target,
    resolve_wheels,
    rewrite_requirements,
    without_extras,
)
from pinwheel.recipe.stale import matrix_slice_digest, patch_inputs
from pinwheel.settings import MATRIX, Settings

# The largest sdist and PKG-INFO read while resolving, in bytes.
MAX_SDIST = 512 * 1024 * 1024
MAX_METADATA = 8 * 1024 * 1024
# ZIP cannot say anything earlier (APPNOTE 4.4.6), and the clock goes into a zip.
EARLIEST_EPOCH = 315532800


@dataclass(frozen=True, slots=True)
class Sdist:
    """A package's own source: its file, what it requires, and the clock of its builds."""

    file: IndexFile
    requires: tuple[str, ...]
    epoch: int  # seconds


def resolve(
    settings: Settings, loaded: LoadedRecipe, toolkit: str | None, console: Console
) -> Lock:
    """Resolve everything a build of a recipe with ``toolkit`` (None: its default) needs.

    Raises:
        ResolveError: something cannot be resolved.
        FetchError: a source cannot be asked.
        HashMismatchError: bytes differ from what their source states.
        RecipeError: the recipe does not fit its source.
        MatrixError, UnknownComboError, CapabilityError: the matrix does not know the combo.
        SettingsError: a source has no URL.
    """
    name = chosen_toolkit(loaded, toolkit)
    recipe = loaded.recipe
    matrix = load_matrix(settings.project / MATRIX)
    kit, root = toolkit_data(name), root_data()
    matrix_sha256 = matrix_slice_digest(matrix, loaded, name)
    target = Target(recipe.python, root.root.glibc)
    inputs: list[Input] = [*patch_inputs(loaded)]
    with _client(settings) as client:
        console.say(f"{recipe.source.package} {recipe.source.version}: reading its sdist")
        sdist = read_sdist(client, settings, recipe.source.package, recipe.source.version)
        inputs += _index_inputs(client, [sdist.file], Role.SOURCE)

        console.say(f"Debian {root.root.suite}: reading the archive for the build root")
        packages, dates = _debian(client, settings, root, kit, recipe.python)
        inputs += packages

        console.say(f"index: pinned files of toolkit {name}, dependencies and tools")
        for role, pins in _pins(loaded, kit):
            files = resolve_wheels(
                settings, target, pins, as_of=None, closure=False, what=f"have every {role} of"
            )
            inputs += _index_inputs(client, files, role)

        as_of = recipe.run.as_of.astimezone(UTC)
        console.say(f"index: what builds it, as of {as_of:%Y-%m-%d}")
        build = resolve_wheels(settings, target, recipe.build.requires, as_of=as_of, what="build")
        inputs += _index_inputs(client, build, Role.BUILD)

        console.say(f"index: what runs it, as of {as_of:%Y-%m-%d}")
        wanted = run_requirements(loaded, sdist, target)
        run = resolve_wheels(
            settings,
            target,
            wanted,
            constraints=recipe.run.constraints,
            as_of=as_of,
            what="run",
        )
        inputs += _index_inputs(client, run, Role.RUN)
    return Lock(
        lock_version=1,
        combo=recipe.combo,
        toolkit=name,
        recipe_sha256=loaded.digest,
        matrix_sha256=matrix_sha256,
        data_sha256=data_digest(name),
        debian_snapshot=f"{max(dates):%Y%m%dT%H%M%SZ}",
        source_date_epoch=sdist.epoch,
        inputs=merge_inputs(inputs),
    )


def merge_inputs(inputs: Iterable[Input]) -> tuple[Input, ...]:
    """Inputs in a lock's order; a file that serves several roles is listed once.

    Raises:
        HashMismatchError: the same file is said to have two contents.
    """
    found: dict[tuple[str, str, str, str], Input] = {}
    for item in inputs:
        key = (item.source, item.name, item.version, item.path)
        known = found.get(key)
        if known and (known.sha256, known.size) != (item.sha256, item.size):
            raise HashMismatchError(
                f"{item.path} is stated with two contents",
                evidence=[f"sha256 {known.sha256}", f"sha256 {item.sha256}"],
                next_step="Resolve again; if it stays, the index contradicts itself.",
            )
        roles = {*(known.roles if known else ()), *item.roles}
        ordered = tuple(role for role in Role if role in roles)
        found[key] = item.model_copy(update={"roles": ordered})
    return tuple(found[key] for key in sorted(found))


def run_requirements(loaded: LoadedRecipe, sdist: Sdist, target: Target) -> list[str]:
    """What the wheel will require, with the recipe's rewrites, and its exact companions.

    Raises:
        RecipeError: a requirement to rewrite is not there.
    """
    recipe = loaded.recipe
    rewrites = [(r.old, r.new) for r in recipe.requirements]
    where = f"{sdist.file.filename} (PKG-INFO)"
    lines = rewrite_requirements(sdist.requires, rewrites, where=where)
    return [*without_extras(lines, target), *recipe.run.companions]


def read_sdist(client: Client, settings: Settings, name: str, version: str) -> Sdist:
    """The sdist of a release, read for its requirements and its date.

    The date is its upload time; an index that states none is made up for by the newest file in
    the archive.

    Raises:
        ResolveError: there is none, or it has no readable PKG-INFO.
        HashMismatchError: the bytes are not what the index states.
    """
    files = project_files(client, settings.require("index"), name)
    file = choose_file(
        files, name, version, lambda f: f.package_type == "sdist", "source distributions"
    )
    data = client.get(file.url, limit=MAX_SDIST).content
    stated = _stated_sha256(file)
    seen = hashlib.sha256(data).hexdigest()
    if seen != stated:
        raise HashMismatchError(
            f"{file.filename} is not what the index states",
            evidence=[f"stated sha256 {stated}", f"received sha256 {seen}"],
            next_step="Try again, or use another index.",
        )
    metadata, newest = _read_archive(data, file.filename)
    raw, _ = parse_email(metadata)
    uploaded = file.upload_time
    epoch = int(uploaded.timestamp()) if uploaded else newest
    return Sdist(
        file=IndexFile(
            str(canonicalize_name(name)), version, file.filename, len(data), seen, file.url
        ),
        requires=tuple(raw.get("requires_dist", [])),
        epoch=max(epoch, EARLIEST_EPOCH),
    )


def _read_archive(data: bytes, filename: str) -> tuple[bytes, int]:
    """PKG-INFO of a ``.tar.gz`` sdist, and the newest time of its files in seconds."""
    metadata, newest = None, 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in archive:
                newest = max(newest, int(member.mtime))
                parts = member.name.removeprefix("./").split("/")
                if member.isfile() and len(parts) == 2 and parts[1] == "PKG-INFO":
                    stream = archive.extractfile(member)
                    if stream and member.size <= MAX_METADATA:
                        metadata = stream.read()
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, OSError) as error:
        raise ResolveError(
            f"{filename} cannot be read",
            evidence=[str(error)],
            next_step="Use another index, or another release.",
        ) from error
    if metadata is None:
        raise ResolveError(
            f"{filename} has no PKG-INFO, so what it requires is unknown",
            next_step="Use another release; every sdist has one (core metadata specification).",
        )
    return metadata, newest


def _stated_sha256(file: DistributionPackage) -> str:
    digest = (file.digests or {}).get("sha256")
    if not digest:
        raise ResolveError(
            f"the index states no sha256 for {file.filename}",
            next_step="Use an index that states hashes (PEP 503); a lock needs them.",
        )
    return digest.lower()


def _pins(loaded: LoadedRecipe, kit: ToolkitData) -> Iterator[tuple[Role, list[str]]]:
    """Index packages pinned to one version each, by role; roles without any are left out."""
    dependencies = [f"{d.package}=={d.version}" for d in loaded.recipe.dependencies.values()]
    parts = [f"{p.name}=={p.version}" for p in kit.package if p.source == "index"]
    tools = [f"{t.name}=={t.version}" for t in tools_data().tool]
    official = [loaded.recipe.proof.official] if loaded.recipe.proof.official else []
    for role, pins in (
        (Role.DEPENDENCY, dependencies),
        (Role.TOOLKIT, parts),
        (Role.TOOL, tools),
        (Role.REFERENCE, official),
    ):
        if pins:
            yield role, pins


def _debian(
    client: Client, settings: Settings, root: RootData, kit: ToolkitData, python: str
) -> tuple[list[Input], list[datetime]]:
    """Packages of the root and of a Debian toolkit, and the dates of the releases read."""
    mirrors = settings.require("debian")
    suites: dict[tuple[str, tuple[str, ...]], Snapshot] = {}

    def read(suite: Suite) -> Snapshot:
        key = (suite.suite, suite.components)
        if key not in suites:
            suites[key] = read_suite(client, mirrors, suite)
        return suites[key]

    available = read(root.root).merged(root.root.components)
    chosen = closure(available, [s.name for s in root.seed], essential=root.root.essential)
    version = next((p.version for p in chosen if p.name == "python3"), "none")
    if not version.startswith(f"{python}."):
        raise ResolveError(
            f"the recipe wants Python {python}, the build root has {version}",
            evidence=[f"root {root.root.name}: Debian {root.root.suite}, package python3"],
            next_step="Change `python` in the recipe.",
        )
    inputs = [_debian_input(package, Role.ROOT) for package in chosen]
    parts = [p for p in kit.package if p.source == "debian"]
    if parts:
        head = kit.toolkit
        suite = Suite(
            name=head.name,
            suite=head.suite,
            components=head.components,
            architecture=head.architecture,
            keyring=head.keyring,
        )
        snapshot = read(suite)
        inputs += [_debian_input(find_part(snapshot, part), Role.TOOLKIT) for part in parts]
    return inputs, [snapshot.date for snapshot in suites.values()]


def _input(**fields: Any) -> Input:
    """An input made of what a source says.

    Raises:
        ResolveError: no lock may hold that: a path that leads out, a size or hash that is none.
    """
    try:
        return Input(**fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        raise ResolveError(
            f"the {fields['source']} source says of {fields['name']!r} what no lock may hold",
            evidence=[f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"],
            next_step="Use another mirror or index: this one is damaged or hostile.",
        ) from error


def _debian_input(package: Package, role: Role) -> Input:
    return _input(
        roles=(role,),
        source=SourceKind.DEBIAN,
        name=package.name,
        version=package.version,
        path=package.path,
        size=package.size,
        sha256=package.sha256,
    )


def _index_inputs(client: Client, files: Sequence[IndexFile], role: Role) -> list[Input]:
    return [
        _input(
            roles=(role,),
            source=SourceKind.INDEX,
            name=str(canonicalize_name(file.name)),
            version=file.version,
            path=file.filename,
            size=file.size if file.size is not None else _measure(client, file),
            sha256=file.sha256,
        )
        for file in files
    ]


def _measure(client: Client, file: IndexFile) -> int:
    """The size of a file whose index page states none (PEP 503 has no place for it)."""
    with client.stream(file.url) as stream:
        if stream.length is not None:
            return stream.length
        return sum(len(chunk) for chunk in stream.chunks)


@contextmanager
def _client(settings: Settings) -> Iterator[Client]:
    if settings.offline:
        raise ResolveError(
            "a lock cannot be resolved offline",
            next_step="Run `pinwheel lock` without --offline; --check works offline.",
        )
    with Client() as client:
        yield client

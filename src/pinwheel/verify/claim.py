"""What a wheel is held against: torch build, capabilities, recipe, lock, and who says so.

An option wins over the recipe that ``--combo`` names, that over our own manifest, that over what
METADATA and the matrix say of anyone's wheel. What nobody says stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from pinwheel.errors import CapabilityError, PinwheelError
from pinwheel.files import sha256_file
from pinwheel.inspect.dist_info import CoreMetadata
from pinwheel.inspect.region import printable
from pinwheel.inspect.wheel import WheelReader
from pinwheel.matrix.capability import Capability, format_capabilities
from pinwheel.matrix.combo import line_to_tag
from pinwheel.matrix.models import Matrix, ReleaseRow
from pinwheel.recipe.load import LoadedRecipe, chosen_toolkit, load_recipe, lock_path
from pinwheel.recipe.lock import Lock
from pinwheel.recipe.lockfile import read_lock
from pinwheel.settings import Settings
from pinwheel.verify.manifest import Manifest, ReadManifest
from pinwheel.verify.model import Profile
from pinwheel.verify.requirements import exact_pin, on_linux
from pinwheel.verify.torch_rules import builds_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a person, or a build, asks of one wheel.

    Attributes:
        combo: hold it against this combo's recipe and lock.
        toolkit: which of the recipe's locks; None is its default.
        torch: torch build, ``2.3.0+cu121``, or its public version where only one build has it.
        archs: capability list.
        profile: whose wheel it is; None: ours when it has our manifest.
        official: upstream's wheel of the release, for parity.
        kernels: read the names of kernels, which unpacks all device code.
        loaded: library, as ``libtorch``, -> the files that the loader took for it inside the
            sandbox; a build hands it in. None: what the manifest beside the wheel keeps of that.
    """

    combo: str | None = None
    toolkit: str | None = None
    torch: str | None = None
    archs: str | None = None
    profile: Profile | None = None
    official: Path | None = None
    kernels: bool = True
    loaded: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What the project has for a combo: its recipe and one lock.

    Attributes:
        loaded: the recipe.
        lock: its lock.
        path: of the lock.
        sha256: of the lock file, as a manifest states it.
    """

    loaded: LoadedRecipe
    lock: Lock
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one wheel is held against.

    Attributes:
        profile: whose wheel it is taken for.
        profile_from: why.
        read: our manifest, or its absence.
        project: recipe and lock; None when none is held against it.
        project_from: where they come from, or why there are none.
        torch: torch build, ``2.4.0+cu121``; empty when unknown.
        torch_from: where it comes from, or why it is unknown.
        capabilities: empty when unknown.
        capabilities_from: where they come from, or why they are unknown.
        overridden: what an option replaced, a sentence each.
        pythons: Pythons (``3.11``) that markers are evaluated for.
    """

    profile: Profile
    profile_from: str
    read: ReadManifest
    project: Project | None
    project_from: str
    torch: str
    torch_from: str
    capabilities: tuple[Capability, ...]
    capabilities_from: str
    overridden: tuple[str, ...] = ()
    pythons: tuple[str, ...] = field(default=(), repr=False)

    @property
    def manifest(self) -> Manifest | None:
        """What our manifest says."""
        return self.read.manifest

    @property
    def ours(self) -> bool:
        """It is held to what a wheel of ours must be."""
        return self.profile is not Profile.STRANGER

    @property
    def asked(self) -> bool:
        """``--archs`` named the capabilities: those it must serve, not what it was built for."""
        return self.capabilities_from.startswith("--archs")

    @property
    def torch_release(self) -> str:
        """Public version of the torch build, ``2.4.0``."""
        return self.torch.partition("+")[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the report: each part with where it comes from."""
        project = self.project
        return {
            "profile": {"value": self.profile.value, "from": self.profile_from},
            "combo": {
                "value": str(project.loaded.combo) if project else _combo(self.manifest),
                "from": self.project_from,
            },
            "lock": {
                "value": project.sha256 if project else _lock(self.manifest),
                "from": str(project.path) if project else self.project_from,
            },
            "torch": {"value": self.torch or None, "from": self.torch_from},
            "capabilities": {
                "value": [str(c) for c in self.capabilities],
                "from": self.capabilities_from,
            },
            "overridden": list(self.overridden),
        }


def _combo(manifest: Manifest | None) -> str | None:
    return manifest.combo if manifest else None


def _lock(manifest: Manifest | None) -> str | None:
    return manifest.lock_sha256 if manifest else None


def make_claim(
    reader: WheelReader,
    read: ReadManifest,
    request: Request,
    matrix: Matrix,
    settings: Settings,
) -> Claim:
    """Put together what a wheel is held against.

    Raises:
        UnknownComboError, RecipeError, LockError: what ``--combo`` names cannot be read.
        CapabilityError: ``--archs`` is no capability list.
    """
    manifest = read.manifest
    project, project_from = _project(request, manifest, matrix, settings)
    pythons = _pythons(project, manifest, matrix, reader.metadata)
    row, where = _release(reader.metadata, matrix)
    torch: _Choice[str] = _Choice("torch", str)
    lists: _Choice[tuple[Capability, ...]] = _Choice("capabilities", format_capabilities)
    if request.torch is not None:
        torch.offer(_build(request.torch, matrix), "--torch")
    if request.archs is not None:
        lists.offer(matrix.parse_capabilities(request.archs), "--archs")
    if project is not None and request.combo is not None:
        torch.offer(matrix.combos[str(project.loaded.combo)].torch, "--combo")
    if manifest is not None:
        torch.offer(_of_manifest(manifest), "the wheel's manifest")
        with suppress(CapabilityError):  # the manifest's own rule says so
            lists.offer(matrix.parse_capabilities(manifest.capabilities), "the wheel's manifest")
    elif project is not None:
        recipe = project.loaded.recipe
        lists.offer(matrix.parse_capabilities(recipe.capabilities), "--combo")
    stated, why = _of_metadata(reader.metadata, row, where, matrix, pythons)
    torch.offer(stated, why)
    if row is not None and row.capabilities is not None:
        lists.offer(matrix.parse_capabilities(row.capabilities), f"{where}, upstream's own list")
    default = Profile.OURS if read.present else Profile.STRANGER
    carries = "it carries a manifest" if read.present else "it carries no manifest of ours"
    return Claim(
        profile=request.profile or default,
        profile_from="--profile" if request.profile else carries,
        read=read,
        project=project,
        project_from=project_from,
        torch=torch.value or "",
        torch_from=torch.source or why,
        capabilities=lists.value or (),
        capabilities_from=lists.source or f"unknown: no --archs, and no list at {where}",
        overridden=(*torch.replaced(), *lists.replaced()),
        pythons=pythons,
    )


T = TypeVar("T")


class _Choice(Generic[T]):
    """The first of several offers that says anything, and what an option replaced."""

    def __init__(self, name: str, show: Callable[[T], str]) -> None:
        self.value: T | None = None
        self.source = ""
        self._name, self._show = name, show
        self._others: list[tuple[T, str]] = []

    def offer(self, value: T, source: str) -> None:
        """The next source in order; one without a value has no say."""
        if not value:
            return
        if not self.source:
            self.value, self.source = value, source
        else:
            self._others.append((value, source))

    def replaced(self) -> list[str]:
        """A sentence for what an option replaced, if it did."""
        if self.value is None or not self.source.startswith("--"):
            return []
        return [
            f"{self._name} {self._show(self.value)} ({self.source}) instead of "
            f"{self._show(value)} ({source})"
            for value, source in self._others
            if value != self.value
        ][:1]


def _project(
    request: Request, manifest: Manifest | None, matrix: Matrix, settings: Settings
) -> tuple[Project | None, str]:
    """Recipe and lock: those of ``--combo``, or the very ones that the manifest names."""
    if request.combo is not None:
        loaded = load_recipe(settings, matrix.combo(request.combo))
        path = lock_path(loaded, chosen_toolkit(loaded, request.toolkit))
        lock = read_lock(path)
        return Project(loaded=loaded, lock=lock, path=path, sha256=sha256_file(path)), "--combo"
    if manifest is None:
        return None, "no --combo, and the wheel names none"
    try:
        loaded = load_recipe(settings, matrix.combo(manifest.combo))
        path = lock_path(loaded, chosen_toolkit(loaded, manifest.toolkit.name))
        digest = sha256_file(path)
        if digest != manifest.lock_sha256 or loaded.digest != manifest.recipe_sha256:
            return None, f"the project's lock or recipe is another now: {path}, sha256 {digest}"
        return (
            Project(loaded=loaded, lock=read_lock(path), path=path, sha256=digest),
            "the wheel's manifest; the project has this recipe and lock",
        )
    except (PinwheelError, OSError) as error:
        return None, f"the project has no recipe and lock for it: {printable(str(error))}"


def _pythons(
    project: Project | None, manifest: Manifest | None, matrix: Matrix, metadata: CoreMetadata
) -> tuple[str, ...]:
    """Pythons the wheel may be installed for: our one, or all that any torch build has."""
    if project is not None:
        return (project.loaded.recipe.python,)
    every = {python for build in matrix.torch.values() for python in build.pythons}
    if manifest is not None and manifest.python in every:
        return (manifest.python,)
    fitting = [p for p in every if metadata.requires_python.contains(f"{p}.99")]
    return tuple(sorted(fitting, key=Version))


def _build(text: str, matrix: Matrix) -> str:
    """A torch build as a person names it; a public version stands for its only build."""
    found = builds_named(text, matrix.torch)
    return found[0] if len(found) == 1 else text


def _keyed(version: str, cuda: str | None, matrix: Matrix) -> str:
    """The matrix's key of a public version and CUDA line; without a line, of its only build."""
    if not (wanted := _version(version)):
        return ""
    found = [
        key
        for key, build in matrix.torch.items()
        if _version(build.version) == wanted and cuda in (None, build.cuda)
    ]
    return found[0] if len(found) == 1 else ""


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return None


def _of_manifest(manifest: Manifest) -> str:
    with suppress(ValueError):  # the manifest's own rule says so
        return f"{manifest.torch.version}+cu{line_to_tag(manifest.torch.cuda)}"
    return ""


def _of_metadata(
    metadata: CoreMetadata,
    row: ReleaseRow | None,
    where: str,
    matrix: Matrix,
    pythons: Sequence[str],
) -> tuple[str, str]:
    """The torch build METADATA asks for, and where its CUDA line comes from."""
    wanted = [r for r in metadata.requires_dist if canonicalize_name(r.name) == "torch"]
    asked = [r for r in wanted if on_linux(r, pythons)]
    pins = {pin for r in asked if (pin := exact_pin(r))}
    if asked and not pins and (oldest := _oldest(asked, matrix)):
        admitted = printable(", ".join(str(r) for r in asked), 120)
        return oldest, f"METADATA, {admitted}: the oldest build in arch_matrix.toml it admits"
    if len(pins) != 1:
        which = "no one release of torch" if wanted else "no torch"
        return "", f"unknown: METADATA pins {which}; name a build with --torch"
    pin = pins.pop()
    said = f"METADATA, torch=={pin}"
    if "+" in pin:
        return pin, said
    if row is not None and row.cuda and (key := _keyed(pin, row.cuda, matrix)):
        return key, f"{said}; CUDA {row.cuda} by {where}"
    if only := _keyed(pin, None, matrix):
        return only, f"{said}; the only build of it in arch_matrix.toml"
    return "", f"unknown: METADATA pins torch=={pin}, arch_matrix.toml has no one build of it"


def _oldest(asked: Sequence[Requirement], matrix: Matrix) -> str:
    """The oldest torch build that a requirement leaving the release open admits; or empty.

    What holds for it holds for those after it, for a wheel of torch's stable ABI alone; others are
    refused for the open requirement itself (rule ``torch-pin``).
    """
    admitted = [
        (version, build.cuda, key)
        for key, build in matrix.torch.items()
        if (version := _version(build.version))
        and all(not r.url and r.specifier and r.specifier.contains(version) for r in asked)
    ]
    return min(admitted)[2] if admitted else ""


def _release(metadata: CoreMetadata, matrix: Matrix) -> tuple[ReleaseRow | None, str]:
    """The matrix's row for this package and release, and what messages call it."""
    name, release = str(canonicalize_name(metadata.name)), metadata.version.public
    rows = matrix.releases.get(name, {})
    row = next((row for key, row in rows.items() if _version(key) == Version(release)), None)
    return row, printable(f'arch_matrix.toml [releases.{name}."{release}"]', 120)

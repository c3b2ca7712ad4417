"""Reads the manifest that a wheel of ours carries; whoever made the wheel may have forged it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pinwheel.errors import ArtifactError
from pinwheel.inspect.region import printable
from pinwheel.inspect.wheel import WheelReader

NAME = "pinwheel.json"  # within dist-info; pinwheel.build.manifest writes it
SIDECAR = ".manifest.json"  # behind the wheel's name, for the one beside it; pinwheel.build.placing
LOCKED = "locked"  # kind of a root or toolkit made of nothing but files of the lock
MOST = 4 << 20  # bytes; the flagship's has 20 kB
_SHOWN = 10  # faults

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    """Base: what is not named here is not looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class ManifestLibrary(_Part):
    """What it says of one library; ``cubins`` only where the recipe says it has device code."""

    sha256: Digest
    size: int
    kind: str
    needed: tuple[str, ...]
    device_code: Annotated[bool, Field(alias="device-code")]
    symbol_floor: Annotated[dict[str, str], Field(alias="symbol-floor")]
    cubins: dict[str, int] | None = None


class ManifestTorch(_Part):
    """The torch build it was compiled against."""

    version: str
    cuda: str
    cxx11_abi: Annotated[bool | None, Field(alias="cxx11-abi")] = None


class ManifestToolkit(_Part):
    """The toolkit that compiled it; ``kind`` is :data:`LOCKED`, or empty where it is not stated."""

    name: str
    line: str
    nvcc: str
    kind: str = ""


class ManifestRoot(_Part):
    """The file system it was compiled in."""

    kind: str
    digest: str = ""


class ManifestException(_Part):
    """A fault of the machine code that the recipe announces."""

    library: str
    capability: str
    fault: Literal["missing", "ptx-only", "kernels", "undeclared"]
    reason: str


class Manifest(_Part):
    """``pinwheel.json``, the parts that can be held against something."""

    manifest_version: Annotated[Literal[1], Field(alias="manifest-version")]
    distribution: str
    version: str
    platform_tag: Annotated[str, Field(alias="platform-tag")]
    combo: str
    lock_sha256: Annotated[Digest, Field(alias="lock-sha256")]
    recipe_sha256: Annotated[Digest, Field(alias="recipe-sha256")]
    root: ManifestRoot | None = None
    toolkit: ManifestToolkit
    torch: ManifestTorch
    python: str
    capabilities: tuple[str, ...]
    capabilities_of_recipe: Annotated[str, Field(alias="capabilities-of-recipe")]
    code_exceptions: Annotated[
        tuple[ManifestException, ...], Field(alias="code-exceptions", default=())
    ]
    operators: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    libraries: dict[str, ManifestLibrary]


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """What was found where the manifest should be.

    Attributes:
        present: there is a file of that name.
        manifest: what it says; None when it is missing or cannot be read.
        faults: why it cannot be read, a line each.
    """

    present: bool
    manifest: Manifest | None = None
    faults: tuple[str, ...] = ()


def read_manifest(reader: WheelReader) -> ReadManifest:
    """Read it; what is wrong with it is part of the answer, no error."""
    name = f"{reader.dist_info}/{NAME}"
    if not any(member.name == name for member in reader.members):
        return ReadManifest(False)
    try:
        data = reader.read(name, most=MOST)
    except ArtifactError as error:
        return ReadManifest(True, None, (error.what,))
    try:
        return ReadManifest(True, Manifest.model_validate_json(data))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        return ReadManifest(True, None, (*(_fault(f) for f in found[:_SHOWN]), *more))


def _fault(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    return printable(f"{where}: {fault['msg']}" if where else str(fault["msg"]))

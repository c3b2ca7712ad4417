"""Compare arch_matrix.toml's torch and release rows with the wheels on the configured index.

Reads METADATA only: the file the index serves beside a wheel (PEP 658), or the few kilobytes
of it inside the wheel, fetched by range. Also names releases the index has and the matrix lacks.

    python scripts/check_matrix.py            # everything
    python scripts/check_matrix.py torch      # one project

Exit status: 0 the same, 1 something differs.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pypi_simple import DistributionPackage

from pinwheel.errors import PinwheelError
from pinwheel.http import Client, UnreachableError
from pinwheel.matrix.models import Matrix, ReleaseRow, TorchBuild, load_matrix
from pinwheel.recipe.index import project_files
from pinwheel.settings import MATRIX, load_settings

_LINUX = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64"}
_ENVIRONMENT = {**_LINUX, "python_version": "3.11", "python_full_version": "3.11.7", "extra": ""}
_WHEEL = re.compile(r"-(?P<python>cp3\d+)-(?P<abi>[a-z0-9_]+)-[a-z0-9_.]*x86_64\.whl$")
#: CUDA line by the toolkit packages torch requires: cuda-toolkit, or nvidia-cuda-runtime-cuNN.
_CUDA = re.compile(r"cuda-toolkit|nvidia-cuda-runtime(-cu\d+)?")


class RangeFile(io.RawIOBase):
    """A remote file that is read where it is looked at, in blocks."""

    BLOCK = 1 << 17  # bytes

    def __init__(self, client: Client, url: str) -> None:
        self._client, self._url, self._at = client, url, 0
        self._blocks: dict[int, bytes] = {}
        with client.stream(url) as stream:
            if stream.length is None:
                raise ValueError("the server does not say how long the wheel is")
            self._size = stream.length

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go elsewhere."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Fill ``buffer`` from here, as far as one block goes."""
        if self._at >= self._size:
            return 0
        number, inside = divmod(self._at, self.BLOCK)
        piece = self._block(number)[inside : inside + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * self.BLOCK
            want = min(self.BLOCK, self._size - start)
            got = bytearray()
            with self._client.stream(self._url, offset=start) as stream:
                if stream.offset != start:
                    raise ValueError("the server does not answer ranges")
                for chunk in stream.chunks:
                    got += chunk
                    if len(got) >= want:
                        break
            self._blocks[number] = bytes(got[:want])
        return self._blocks[number]


@dataclass(frozen=True, slots=True)
class Wheels:
    """The x86_64 CPython wheels of one version."""

    files: tuple[DistributionPackage, ...]

    @property
    def pythons(self) -> tuple[str, ...]:
        """CPython versions, free-threaded builds apart."""
        found = set()
        for file in self.files:
            match = _WHEEL.search(file.filename)
            if match and match["abi"] == match["python"]:
                found.add((3, int(match["python"][3:])))
        return tuple(f"{major}.{minor}" for major, minor in sorted(found))

    def metadata(self, client: Client) -> Message:
        """METADATA of the first wheel that gives it up."""
        for file in self.files:
            try:
                return _parse(client.get(f"{file.url}.metadata").content)
            except UnreachableError as error:
                if not error.absent:
                    raise
        raw: io.RawIOBase = RangeFile(client, self.files[0].url)
        with zipfile.ZipFile(io.BufferedReader(raw)) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            return _parse(wheel.read(name))


def _parse(data: bytes) -> Message:
    return BytesHeaderParser().parsebytes(data)


def wheels_by_version(files: Iterable[DistributionPackage]) -> dict[str, Wheels]:
    """The usable wheels of a project, by version; yanked ones apart."""
    found: dict[str, list[DistributionPackage]] = {}
    for file in files:
        if _WHEEL.search(file.filename) and file.version and not file.is_yanked:
            found.setdefault(file.version, []).append(file)
    return {version: Wheels(tuple(files)) for version, files in found.items()}


def requirements(metadata: Message) -> Iterator[Requirement]:
    """Requirements that hold on Linux x86_64."""
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(_ENVIRONMENT):
            yield requirement


def pin(specifier: SpecifierSet) -> str:
    """``==1.2`` as ``1.2``, anything else as written."""
    text = str(specifier)
    return text[2:] if text.startswith("==") and "," not in text else text


def differ(where: str, key: str, matrix: object, index: object) -> Iterator[str]:
    """A line when the two are not equal."""
    if matrix != index:
        yield f"{where}: {key} is {matrix!r} in the matrix, {index!r} on the index"


def check_torch(key: str, build: TorchBuild, wheels: Wheels, client: Client) -> Iterator[str]:
    """Differences of one torch row."""
    where = f'torch."{key}"'
    found: dict[str, str] = {}
    for requirement in requirements(wheels.metadata(client)):
        if _CUDA.fullmatch(requirement.name):
            found["cuda"] = ".".join(pin(requirement.specifier).split(".")[:2])
        for field in ("cudnn", "nccl"):
            if re.fullmatch(rf"nvidia-{field}-cu\d+", requirement.name):
                found[field] = pin(requirement.specifier)
        if requirement.name == "triton":
            found["triton"] = pin(requirement.specifier)
    for field in ("cuda", "cudnn", "nccl", "triton"):
        yield from differ(where, field, getattr(build, field), found.get(field))
    yield from differ(where, "pythons", build.pythons, wheels.pythons)


def check_release(where: str, row: ReleaseRow, wheels: Wheels, client: Client) -> Iterator[str]:
    """Differences of one release row."""
    metadata = wheels.metadata(client)
    torch = [pin(r.specifier) for r in requirements(metadata) if r.name == "torch"]
    yield from differ(where, "torch", row.torch, torch[0] if torch else None)
    python = metadata.get("Requires-Python")
    same = python is not None and row.python is not None
    if not same or SpecifierSet(str(python)) != SpecifierSet(str(row.python)):
        yield from differ(where, "python", row.python, python)


def check_project(
    matrix: Matrix, project: str, client: Client, indexes: tuple[str, ...]
) -> Iterator[str]:
    """Differences of every row of one project."""
    wheels = wheels_by_version(project_files(client, indexes, project))
    if project == "torch":
        rows: dict[str, str] = {key: build.version for key, build in matrix.torch.items()}
    else:
        rows = {key: key for key in matrix.releases[project]}
    for key, version in rows.items():
        print(f"{project} {key}", file=sys.stderr)  # noqa: T201
        if version not in wheels:
            yield f"{project} {version}: the index has no x86_64 wheel of it"
        elif project == "torch":
            yield from check_torch(key, matrix.torch[key], wheels[version], client)
        else:
            row = matrix.releases[project][key]
            yield from check_release(f'releases.{project}."{key}"', row, wheels[version], client)
    oldest = min(map(Version, rows.values()))
    for version in sorted(set(wheels) - set(rows.values()), key=_order):
        if project != "torch" and _order(version) > oldest:
            yield f"{project} {version}: on the index, not in the matrix"


def _order(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("projects", nargs="*", help="torch or a package of the matrix; default all")
    arguments = parser.parse_args()
    settings = load_settings()
    matrix = load_matrix(settings.project / MATRIX)
    projects = arguments.projects or ["torch", *matrix.releases]
    differences = 0
    with Client() as client:
        for project in projects:
            for line in check_project(matrix, project, client, settings.require("index")):
                print(line)  # noqa: T201
                differences += 1
    print(f"{differences} differences in {', '.join(projects)}")  # noqa: T201
    return 1 if differences else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PinwheelError as error:
        sys.exit("\n".join((error.what, *error.evidence, error.next_step)))

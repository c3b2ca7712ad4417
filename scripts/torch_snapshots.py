"""Makes the snapshots of torch builds: what their libraries and CUDA wheels export.

    python scripts/torch_snapshots.py 2.3.0+cu121            # write data/torch/2.3.0+cu121.zst
    python scripts/torch_snapshots.py --all                  # every torch row of the matrix
    python scripts/torch_snapshots.py --check 2.3.0+cu121    # compare; 1 when it differs
    python scripts/torch_snapshots.py --system               # names of Debian's C and C++ library

Wheels come from the configured index (or the store, where they are in it), are read without being
installed and removed again: a torch wheel is 0.9 GB, its CUDA wheels 2 GB. What was read of a
wheel is kept below ``--scratch``, so that builds share CUDA wheels and a second run goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import shutil
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from email.parser import BytesHeaderParser
from pathlib import Path, PurePosixPath

from debian.debfile import DebFile
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pypi_simple import DistributionPackage

from pinwheel.errors import HashMismatchError, PinwheelError, ResolveError, SnapshotError
from pinwheel.files import make_directory
from pinwheel.http import Client
from pinwheel.inputs.download import download
from pinwheel.inputs.store import Store
from pinwheel.inspect.elf import is_elf, read_elf
from pinwheel.inspect.fatbin import EntryKind, read_fatbins
from pinwheel.inspect.region import Region, open_region
from pinwheel.matrix.models import TorchBuild, load_matrix
from pinwheel.recipe.data import root_data
from pinwheel.recipe.debian_archive import read_suite
from pinwheel.recipe.index import project_files
from pinwheel.recipe.python import Target
from pinwheel.settings import MATRIX, Settings, load_settings
from pinwheel.verify.abi_make import Found, found, make, preloads
from pinwheel.verify.abi_system import FILE as SYSTEM
from pinwheel.verify.abi_system import SystemNames, system_libraries
from pinwheel.verify.abi_system import pack as pack_system
from pinwheel.verify.snapshot import SUFFIX, Snapshot, Wheel, pack, text_of

DATA = Path(__file__).parent.parent / "src/pinwheel/data/torch"
READER = 1  # raise it when what is kept of a wheel changes
#: Projects whose libraries torch is linked against. triton and cuda-bindings load theirs
#: themselves, and no extension is linked against those.
_CUDA = re.compile(r"nvidia-.*|cuda-toolkit")
_CODE = (EntryKind.CUBIN, EntryKind.PTX)
_LIBRARY = re.compile(r"(torch/lib|nvidia/.*lib)/[^/]+\.so(\.[0-9][0-9.]*)?|torch/_C\.[^/]*so")
#: Debian packages of what every system has: C library, its companions, C++ library.
_SYSTEM = ("libc6", "libgcc-s1", "libstdc++6")
_SHARED = re.compile(r"/x86_64-linux-gnu/lib[^/]*\.so\.[0-9.]+$")
#: Any system new enough takes the newest wheels; the locks' own target is a recipe's affair.
_TARGET = Target(python="3.11", glibc="2.40")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What is kept of a wheel: its libraries, what it requires, how torch loads its libraries."""

    libraries: tuple[Found, ...]
    requires: tuple[str, ...]
    entry: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


def main() -> int:
    """Make or compare the snapshots that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", nargs="*", help="torch build, as in arch_matrix.toml")
    parser.add_argument("--all", action="store_true", help="every torch row of the matrix")
    parser.add_argument("--system", action="store_true", help="write data/torch/system.zst")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--scratch", type=Path, help="default: torch-snapshots in the cache")
    arguments = parser.parse_args()
    settings = load_settings(DATA)
    rows = load_matrix(settings.project / MATRIX).torch
    wanted = list(reversed(rows)) if arguments.all else arguments.build
    if unknown := [build for build in wanted if build not in rows]:
        parser.error(f"no torch row of {MATRIX}: {', '.join(unknown)}")
    scratch = make_directory(arguments.scratch or settings.cache / "torch-snapshots")
    bad = 0
    with Client() as client:
        if arguments.system:
            names = system_names(client, settings)
            (DATA / SYSTEM).write_bytes(pack_system(names))
            for soname, of in names.libraries.items():
                say(f"{soname}: {len(of)} names")
        reader = Reader(settings, client, scratch)
        for build in wanted:
            try:
                packed = pack(reader.snapshot(build, rows[build]))
            except PinwheelError as error:
                bad += 1
                say(f"{build}: {error.what}; {'; '.join(error.evidence)}")
                continue
            path = DATA / f"{build}{SUFFIX}"
            if not arguments.check:
                path.write_bytes(packed)
                say(f"{build}: {len(packed)} bytes")
            # Another release of zstd may pack the same text into other bytes.
            elif not path.is_file() or text_of(path.read_bytes(), build) != text_of(packed, build):
                bad += 1
                say(f"{build}: differs")
            else:
                say(f"{build}: the same")
    return 1 if bad else 0


class Reader:
    """Reads wheels, each once."""

    def __init__(self, settings: Settings, client: Client, scratch: Path) -> None:
        self._settings, self._client, self._scratch = settings, client, scratch
        self._store = Store(settings.store)

    def snapshot(self, build: str, row: TorchBuild) -> Snapshot:
        """Everything about one torch build.

        Raises:
            PinwheelError: the index does not serve it, or it cannot be read.
        """
        files = project_files(self._client, self._settings.index, "torch")
        chosen = [f for f in files if f.filename == row.source]
        if not chosen:
            raise ResolveError(
                f"the index does not serve {row.source}",
                next_step="Correct the row's source in the matrix.",
            )
        wheels: list[Wheel] = []
        libraries: list[Found] = []
        torch = self._read(chosen[0], len(wheels))
        wheels.append(wheel_of(chosen[0], pinned=True))
        libraries += torch.libraries
        todo = list(required(torch.requires, frozenset()))
        seen: set[str] = set()
        while todo:
            # Pinned ones first: one that leaves a choice is often pinned elsewhere.
            todo.sort(key=lambda r: (not pinned(r.specifier), r.name))
            requirement = todo.pop(0)
            name = canonicalize_name(requirement.name)
            if name in seen:
                continue
            seen.add(name)
            file = self._choose(name, requirement.specifier, wheels)
            read = self._read(file, len(wheels))
            wheels.append(wheel_of(file, pinned=pinned(requirement.specifier)))
            libraries += read.libraries
            todo += required(read.requires, frozenset(requirement.extras))
        return make(build, wheels, libraries, entry=torch.entry, patterns=torch.patterns)

    def _choose(
        self, name: str, specifier: SpecifierSet, wheels: list[Wheel]
    ) -> DistributionPackage:
        """The oldest wheel of what ``specifier`` allows: newer ones only add names.

        Without a pin, not older than the CUDA line: what numbers itself as CUDA does.
        """
        runtime = [w for w in wheels if w.project.startswith("nvidia-cuda-runtime")]
        line = Version(
            "{0.major}.{0.minor}".format(Version(runtime[0].version) if runtime else Version("0"))
        )
        files: dict[Version, list[DistributionPackage]] = {}
        for file in project_files(self._client, self._settings.index, name):
            version = Version(file.version) if file.version and _is_wheel(file) else None
            if version and version in specifier and (pinned(specifier) or version >= line):
                files.setdefault(version, []).append(file)
        for version in sorted(files):
            for tag in _TARGET.tags():
                for file in files[version]:
                    if tag in parse_wheel_filename(file.filename)[3]:
                        return file
        raise ResolveError(
            f"the index has no wheel of {name}{specifier} for Linux x86_64",
            evidence=[f"CUDA line {line}"],
            next_step="Look at what torch requires.",
        )

    def _read(self, file: DistributionPackage, place: int) -> Read:
        sha256 = file.digests["sha256"]
        kept = self._scratch / f"{sha256}.{READER}.json"
        if kept.is_file():
            return from_json(kept.read_text("utf-8"), place)
        say(f"reading {file.filename}")
        path = self._store.path_of(sha256)
        mine = not path.is_file()
        if mine:
            path = self._scratch / f"{sha256}.partial"
            if file.size is None:
                raise SnapshotError(
                    f"the index does not say how large {file.filename} is",
                    next_step="Use an index that does (PEP 700).",
                )
            download(self._client, file.url, path, file.size, sha256)
        read = read_wheel(path, self._scratch / "library.so")
        temporary = kept.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(read)), "utf-8")
        temporary.replace(kept)
        if mine:
            path.unlink()
        return from_json(kept.read_text("utf-8"), place)


def read_wheel(path: Path, temporary: Path) -> Read:
    """Every library of a wheel, one at a time through the file ``temporary``."""
    libraries: list[Found] = []
    requires: list[str] = []
    entry: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    with zipfile.ZipFile(path) as wheel:
        for info in wheel.infolist():
            name = info.filename
            if name.count("/") == 1 and name.endswith(".dist-info/METADATA"):
                requires = (
                    BytesHeaderParser().parsebytes(wheel.read(info)).get_all("Requires-Dist", [])
                )
            elif name == "torch/__init__.py":
                patterns = preloads(wheel.read(info).decode("utf-8"))
            elif _LIBRARY.fullmatch(name):
                with wheel.open(info) as source:
                    start = source.read(4)
                    if not is_elf(start):
                        continue  # a linker script
                    with temporary.open("wb") as target:
                        target.write(start)
                        shutil.copyfileobj(source, target, 1 << 20)
                with open_region(temporary, name) as region:
                    elf = read_elf(region)
                    if name.startswith("torch/_C."):
                        entry = elf.needed
                        continue
                    code: dict[EntryKind, Counter[str]] = {}
                    if name.startswith("torch/"):
                        code = {kind: Counter() for kind in _CODE}
                        for image in read_fatbins(region, elf):
                            if image.kind in code and image.capability is not None:
                                code[image.kind][str(image.capability)] += 1
                    counts = [dict(code[k]) if code else None for k in _CODE]
                    libraries.append(found(elf, 0, *counts))
                temporary.unlink()
    temporary.unlink(missing_ok=True)
    return Read(
        libraries=tuple(libraries), requires=tuple(requires), entry=entry, patterns=patterns
    )


def from_json(text: str, place: int) -> Read:
    """What was kept of a wheel, as the wheel at that place of a snapshot."""
    data = json.loads(text)
    libraries = []
    for library in data["libraries"]:
        library["exports"] = tuple(tuple(export) for export in library["exports"])
        library |= {key: tuple(library[key]) for key in ("needed", "versions")}
        libraries.append(Found(**{**library, "wheel": place}))
    return Read(
        libraries=tuple(libraries),
        requires=tuple(data["requires"]),
        entry=tuple(data["entry"]),
        patterns=tuple(data["patterns"]),
    )


def required(lines: tuple[str, ...], extras: frozenset[str]) -> Iterator[Requirement]:
    """The CUDA projects among a wheel's requirements, on Linux x86_64 with these extras."""
    for line in lines:
        requirement = Requirement(line)
        if not _CUDA.fullmatch(canonicalize_name(requirement.name)):
            continue
        for extra in extras or {""}:
            environment = {**_TARGET.environment(), "extra": extra}
            if requirement.marker is None or requirement.marker.evaluate(dict(environment)):  # type: ignore[arg-type]
                yield requirement
                break


def _is_wheel(file: DistributionPackage) -> bool:
    return file.package_type == "wheel"


def pinned(specifier: SpecifierSet) -> bool:
    """Whether it allows one version, or the builds of one (``==13.1.0.3.*``)."""
    return any(s.operator == "==" for s in specifier)


def wheel_of(file: DistributionPackage, *, pinned: bool) -> Wheel:
    """What a snapshot states of a wheel."""
    return Wheel(
        project=canonicalize_name(file.project or ""),
        version=file.version or "",
        filename=PurePosixPath(file.filename).name,
        sha256=file.digests["sha256"],
        size=file.size or 0,
        pinned=pinned,
    )


def system_names(client: Client, settings: Settings) -> SystemNames:
    """What C and C++ library of the build root's Debian export."""
    root = root_data().root
    packages = read_suite(client, settings.require("debian"), root).merged(root.components)
    read: list[dict[str, str]] = []
    libraries: dict[str, set[str]] = {}
    for name in _SYSTEM:
        package = packages[name]
        data = client.get(f"{settings.debian[0]}/{package.path}").content
        if (sha256 := hashlib.sha256(data).hexdigest()) != package.sha256:
            raise HashMismatchError(
                f"{package.path} is not what the signed index names",
                evidence=(f"sha256 {sha256}",),
                next_step="Use another mirror.",
            )
        read.append({"name": name, "version": package.version, "sha256": sha256})
        with DebFile(fileobj=io.BytesIO(data)).data.tgz() as archive:
            for member in archive:
                if not member.isfile() or not _SHARED.search(member.name):
                    continue
                content = archive.extractfile(member)
                library = Region.of(content.read() if content else b"", member.name)
                if not is_elf(library.read(0, min(4, library.size), "its start")):
                    continue
                elf = read_elf(library)
                found = {
                    s.name
                    for s in elf.exported
                    if s.default and s.name and s.version != "GLIBC_PRIVATE"
                }
                if found and elf.soname in system_libraries(elf.machine):
                    libraries.setdefault(elf.soname, set()).update(found)
    return SystemNames(
        packages=tuple(read), libraries={k: sorted(v) for k, v in sorted(libraries.items())}
    )


def say(text: str) -> None:
    """One line on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""A wheel taken apart, damaged in memory, and put together so that nothing but that is wrong.

RECORD is written after the damage, and our manifest states hash, size and facts of the changed
libraries as a build would have, unless the damage is about these.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from damages_elf import Library, without_device_code

from pinwheel.build.manifest import NAME, as_json, library_facts
from pinwheel.files import sha256_file
from pinwheel.inspect.elf import read_elf
from pinwheel.inspect.elsewhere import elsewhere
from pinwheel.inspect.fatbin import count_targets, read_fatbins
from pinwheel.inspect.region import Region
from pinwheel.verify.loaded import KEY, kept
from pinwheel.verify.manifest import SIDECAR


class Wheel:
    """A wheel's files, to be changed.

    Attributes:
        name: file name.
        info: name of its dist-info directory.
        files: path -> contents.
        manifest: what ``pinwheel.json`` says; None leaves that file as it is in ``files``.
        rows: path -> its row of RECORD (None: it has none), where that is not the true one.
        unnoticed: libraries whose change neither RECORD nor manifest is to know of.
        loaded: what the manifest beside the wheel is to keep of the loader's answer: library ->
            the files it was found as. Without any there is no such manifest.
        loaded_sha256: of the wheel that the loader was asked of; empty: of this one.
    """

    def __init__(self, name: str, info: str, files: Mapping[str, bytes]) -> None:
        self.name, self.info, self.files = name, info, dict(files)
        self.manifest: dict[str, Any] | None = json.loads(files[f"{info}/{NAME}"])
        self.rows: dict[str, str | None] = {}
        self.unnoticed: set[str] = set()
        self.loaded: Mapping[str, Sequence[str]] = {}
        self.loaded_sha256 = ""
        self._origin = dict(files)
        self._libraries: dict[str, Library] = {}
        lines = files[f"{info}/RECORD"].decode().splitlines()
        self._recorded = {line.rsplit(",", 2)[0].strip('"'): line for line in lines}

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Take a wheel apart."""
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        (info,) = {top for top, _, _ in (n.partition("/") for n in files) if "dist-info" in top}
        return cls(path.name, info, files)

    def copy(self) -> Wheel:
        """Another one of the same files, which stays as it is when this one changes."""
        other = copy.copy(self)
        other.files, other.rows, other.unnoticed = dict(self.files), dict(self.rows), set()
        other.manifest, other._libraries = copy.deepcopy(self.manifest), {}
        return other

    # --- what damages do to it -----------------------------------------------------------------

    def library(self, name: str) -> Library:
        """One of its libraries, to be changed."""
        return self._libraries.setdefault(name, Library(self.files[name]))

    @property
    def stated(self) -> dict[str, Any]:
        """The manifest, to be changed."""
        assert self.manifest is not None
        return self.manifest

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace what a text file has once."""
        before = self.files[name].decode()
        assert before.count(old) == 1, f"{name} has {old!r} {before.count(old)} times"
        self.files[name] = before.replace(old, new).encode()

    def require(self, old: str, new: str) -> None:
        """Replace one requirement of METADATA."""
        self.replace(f"{self.info}/METADATA", f"Requires-Dist: {old}\n", f"Requires-Dist: {new}\n")

    def rename_info(self, info: str) -> None:
        """Give its dist-info directory another name."""
        self.files = {
            f"{info}/{n.partition('/')[2]}" if n.startswith(f"{self.info}/") else n: data
            for n, data in self.files.items()
        }
        self.info = info

    def recorded(self, name: str) -> str:
        """The row that RECORD had of a file."""
        return self._recorded[name]

    # --- put together --------------------------------------------------------------------------

    def pack(self, directory: Path) -> Path:
        """Write it as a wheel, nothing compressed: it lives for one test."""
        for name, library in self._libraries.items():
            self.files[name] = bytes(library.data)
            if name not in self.unnoticed and self.manifest is not None:
                self.manifest["libraries"][name].update(_facts(name, self.files[name]))
        if self.manifest is not None:
            self.files[f"{self.info}/{NAME}"] = as_json(self.manifest)
        own = f"{self.info}/RECORD"
        rows: dict[str, str | None] = {n: self._row(n) for n in self.files if n != own}
        rows |= {own: f"{own},,", **self.rows}
        record = "".join(f"{row}\n" for row in rows.values() if row is not None)
        path = directory / self.name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in self.files.items():
                archive.writestr(name, record.encode() if name == own else data)
        if self.loaded:
            answer = kept(self.loaded_sha256 or sha256_file(path), self.loaded)
            path.with_name(f"{path.name}{SIDECAR}").write_text(json.dumps({KEY: answer}))
        return path

    def _row(self, name: str) -> str:
        data = self.files[name]
        if data is self._origin.get(name) or name in self.unnoticed:
            return self._recorded[name]
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        path = f'"{name}"' if "," in name else name
        return f"{path},sha256={digest},{len(data)}"


def _facts(name: str, data: bytes) -> dict[str, Any]:
    """What a build states of a library."""
    region = Region.of(data, name)
    elf = read_elf(region)
    facts = library_facts(
        elf,  # type: ignore[arg-type]  # as good as the build's own
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        machine_code=bool(elf.device_code),
        elsewhere=elsewhere(),
    )
    if elf.device_code:
        facts["cubins"] = count_targets(read_fatbins(region, elf))
    return facts


def lean(official: Path, name: str, directory: Path) -> Path:
    """The official wheel without the device code in its libraries, which parity only counts.

    Comparing with it takes a tenth of the time.
    """
    path = directory / name
    with zipfile.ZipFile(official) as whole, zipfile.ZipFile(path, "w") as archive:
        for member in whole.namelist():
            data = whole.read(member)
            short = data.startswith(b"\x7fELF") and b".nv_fatbin" in data
            archive.writestr(member, without_device_code(data) if short else data)
    return path

"""What is in the store and what a fetch did, for people and for ``--json``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from pinwheel.console import counted
from pinwheel.files import human_bytes
from pinwheel.inputs.store import Store
from pinwheel.recipe.lock import Input, SourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """Which of some inputs are in the store, by their sizes; the bytes were not looked at.

    Attributes:
        present: in the store.
        missing: to be downloaded, those of another size in the store among them.
        altered: of those, the ones of which the store has a file of another size.
        local: to be copied from the project, which needs no network.
        resumed: bytes of the missing that an interrupted download has left.
    """

    present: tuple[Input, ...]
    missing: tuple[Input, ...]
    altered: tuple[Input, ...]
    local: tuple[Input, ...]
    resumed: int

    @property
    def download(self) -> int:
        """Bytes still to be downloaded."""
        return sum(item.size for item in self.missing) - self.resumed

    def summary(self) -> str:
        """One line for people."""
        inputs = (*self.present, *self.missing, *self.local)
        all_of_them = f"{counted(len(inputs), 'file')}, {_bytes(inputs)}"
        if not self.missing:
            return f"{all_of_them}, nothing to download"
        said = f"{all_of_them}: {len(self.present)} in the store ({_bytes(self.present)}), "
        said += f"{len(self.missing)} to download ({human_bytes(self.download)}"
        said += f", {human_bytes(self.resumed)} are there from before)" if self.resumed else ")"
        if self.altered:
            said += f", {len(self.altered)} of them since the store has another size"
        return said

    def as_dict(self) -> dict[str, object]:
        """As plain data; ``missing`` lists every input to be downloaded."""
        return {
            "present": len(self.present),
            "bytes-present": sum(item.size for item in self.present),
            "download": len(self.missing),
            "bytes-download": self.download,
            "bytes-resumed": self.resumed,
            "altered": [item.sha256 for item in self.altered],
            "missing": [item.model_dump(mode="json") for item in self.missing],
        }


def _bytes(items: Iterable[Input]) -> str:
    return human_bytes(sum(item.size for item in items))


def take_stock(inputs: Iterable[Input], store: Store) -> Stock:
    """Look for inputs in the store; nothing is hashed, made or moved. One input per hash counts."""
    wanted = {item.sha256: item for item in inputs}.values()
    absent = [item for item in wanted if not store.has(item)]
    missing = [item for item in absent if item.source is not SourceKind.PROJECT]
    resumed = 0
    for item in missing:
        with suppress(OSError):
            partial = store.path / "partial" / item.sha256
            resumed += min(item.size, partial.lstat().st_size)
    return Stock(
        present=tuple(item for item in wanted if item not in absent),
        missing=tuple(missing),
        altered=tuple(item for item in missing if store.altered(item)),
        local=tuple(item for item in absent if item.source is SourceKind.PROJECT),
        resumed=resumed,
    )


@dataclass(frozen=True, slots=True)
class Fetched:
    """One input that was not in the store before; ``place`` is fit to be shown."""

    name: str
    version: str
    path: str
    size: int
    place: str


@dataclass(frozen=True, slots=True)
class FetchReport:
    """What a fetch did. Sizes in bytes, ``seconds`` of wall time.

    ``bytes_resumed`` were there from an interrupted fetch, ``bytes_received`` came now.
    """

    present: int
    bytes_present: int
    fetched: tuple[Fetched, ...] = ()
    bytes_received: int = 0
    bytes_resumed: int = 0
    seconds: float = 0.0

    def summary(self) -> str:
        """One line for people."""
        verb = "was" if self.present == 1 else "were"
        there = f"{counted(self.present, 'input')} ({human_bytes(self.bytes_present)}) {verb}"
        there += " in the store"
        if not self.fetched:
            return f"nothing to fetch: {there}"
        resumed = f", {human_bytes(self.bytes_resumed)} resumed" if self.bytes_resumed else ""
        return (
            f"fetched {counted(len(self.fetched), 'input')} ({human_bytes(self.bytes_received)} in "
            f"{self.seconds:.0f} s{resumed}); {there}"
        )

    def as_dict(self) -> dict[str, object]:
        """The report as plain data, for ``--json``."""
        return {
            "present": self.present,
            "bytes_present": self.bytes_present,
            "bytes_received": self.bytes_received,
            "bytes_resumed": self.bytes_resumed,
            "seconds": round(self.seconds, 3),
            "fetched": [
                {
                    "name": f.name,
                    "version": f.version,
                    "path": f.path,
                    "size": f.size,
                    "place": f.place,
                }
                for f in self.fetched
            ],
        }

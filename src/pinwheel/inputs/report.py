"""What a fetch did, for people and for ``--json``."""

from __future__ import annotations

from dataclasses import dataclass

from pinwheel.console import counted
from pinwheel.files import human_bytes


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

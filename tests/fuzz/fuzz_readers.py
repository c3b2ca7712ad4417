"""Feeds damaged wheels, libraries and device code to the readers: one error, no crash, no hang.

``./nox -s fuzz -- --minutes 60``. Each input is a good one with a few bytes changed, cut or put in,
counts and sizes often set to what no file can have. It must be read or refused by ArtifactError,
within seconds and within the memory limit; what breaks that is kept below ``--keep``. The same seed
gives the same inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

UNIT = Path(__file__).parents[1] / "unit"
sys.path[:0] = [str(UNIT / "inspect"), str(UNIT / "build")]

import inspect_kit
import test_inspect_elf
import test_inspect_fatbin

from pinwheel.errors import ArtifactError
from pinwheel.inspect.abi import python_abi, torch_abi
from pinwheel.inspect.wheel import open_wheel

MEMORY = 1 << 30  # bytes of address space beyond what is mapped at the start
SLOW = 5.0  # CPU seconds for one input of at most a few hundred kB
EDGE = (0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)
HEAD = 600  # bytes at the start (or, of a wheel, the end) where most structure is


@dataclass(frozen=True)
class Target:
    """One reader and good inputs for it."""

    name: str
    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    structure_at_end: bool = False


def damaged(good: bytes, chance: random.Random, at_end: bool) -> bytes:
    """A good input with one to eight places changed."""
    data = bytearray(good)
    near = chance.random() < 0.5
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        size = len(data)
        if near and at_end:
            at = chance.randrange(max(0, size - HEAD), size)
        else:
            at = chance.randrange(min(size, HEAD) if near else size)
        kind = chance.random()
        if kind < 0.5:
            data[at] = chance.randrange(256)
        elif kind < 0.8:
            width = chance.choice("HIQ")
            value = chance.choice(EDGE) & ((1 << (8 * struct.calcsize(width))) - 1)
            packed = struct.pack("<" + width, value)
            data[at : at + len(packed)] = packed
        elif kind < 0.9:
            del data[at : at + chance.randrange(1, 64)]
        else:
            data[at:at] = chance.randbytes(chance.randrange(1, 64))
        if not data:
            data = bytearray(1)
    return bytes(data)


def targets(scratch: Path, more: Sequence[Path]) -> list[Target]:
    """The readers, each with its seeds; ``more`` are libraries or wheels of one's own."""
    wheel = inspect_kit.write_wheel(scratch, inspect_kit.wheel_files())
    given = [(path, path.read_bytes()) for path in more]

    def library(data: bytes) -> None:
        elf = inspect_kit.elf_of(data)
        torch_abi(elf.symbols)
        python_abi(elf.symbols)

    def read_wheel(data: bytes) -> None:
        path = scratch / wheel.name
        path.write_bytes(data)
        with open_wheel(path, scratch / "unpacked") as reader:
            for name in reader.libraries:
                reader.library(name)

    libraries = [data for path, data in given if path.suffix != ".whl"]
    return [
        Target("ELF", [test_inspect_elf.WHOLE, *libraries], library),
        Target(
            "fatbin",
            [*test_inspect_fatbin.SEEDS, *libraries],
            lambda data: inspect_kit.fatbins_of(data, kernels=True),
        ),
        Target(
            "wheel",
            [wheel.read_bytes(), *(data for path, data in given if path.suffix == ".whl")],
            read_wheel,
            structure_at_end=True,
        ),
    ]


def limit_memory() -> None:
    """No input may take more than :data:`MEMORY` on top of what is there."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    """Fuzz for so many minutes; 1 when an input broke a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-readers")
    parser.add_argument("more", nargs="*", type=Path, help="libraries or small wheels as seeds")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    bad = 0
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        every = targets(Path(name), arguments.more)
        limit_memory()
        end = time.monotonic() + arguments.minutes * 60
        while time.monotonic() < end:
            target = chance.choice(every)
            data = damaged(chance.choice(target.seeds), chance, target.structure_at_end)
            began, why = time.process_time(), ""
            try:
                target.read(data)
                ended[f"{target.name}: read"] += 1
            except ArtifactError:
                ended[f"{target.name}: refused"] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                why = traceback.format_exc()
            spent = time.process_time() - began
            if not why and spent > SLOW:
                why = f"took {spent:.1f} s of CPU"
            if why:
                bad += 1
                arguments.keep.mkdir(parents=True, exist_ok=True)
                kept = arguments.keep / f"{target.name}-{hashlib.sha256(data).hexdigest()[:16]}"
                kept.write_bytes(data)
                print(f"{target.name}: {kept}\n{why}", file=sys.stderr)
    count = sum(ended.values())
    print(f"seed {arguments.seed}: {count} inputs in {arguments.minutes:g} min, {bad} bad")
    for what, number in sorted(ended.items()):
        print(f"  {number:9} {what}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"  peak resident memory {peak} MiB")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

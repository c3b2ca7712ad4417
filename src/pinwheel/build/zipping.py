"""Packs a directory into a wheel whose bytes follow from the files' bytes and one time alone.

This file uses nothing but the standard library and runs as a script,
``python3 zipping.py TREE WHEEL EPOCH``: deflate's output belongs to the zlib that makes it, so a
wheel that has to come out the same everywhere is packed by the Python of the locked build root.
"""

from __future__ import annotations

import sys
import time
import zipfile
import zlib
from pathlib import Path

LEVEL = 6  # deflate; zlib's own default, higher ones cost minutes and save 1 %
CHUNK = 1 << 20  # bytes; fixed, so that no buffer size of a host can matter
EARLIEST = 315532800  # 1980-01-01, the first day a zip can name (APPNOTE 4.4.6)
LATEST = 4354819198  # 2107-12-31 23:59:58, the last


def entry_order(names: list[str]) -> list[str]:
    """Sorted by bytes; dist-info last, as the wheel specification asks, and in it RECORD last."""

    def key(name: str) -> tuple[bool, bool, bytes]:
        top, _, rest = name.partition("/")
        inside = top.endswith(".dist-info")
        return inside, inside and rest == "RECORD", name.encode()

    return sorted(names, key=key)


def mode_of(path: Path, name: str) -> int:
    """0755 for libraries and scripts, 0644 for the rest: never what a umask left behind."""
    parts = name.split("/")
    if len(parts) > 2 and parts[0].endswith(".data") and parts[1] == "scripts":
        return 0o755
    with path.open("rb") as file:
        return 0o755 if file.read(4) == b"\x7fELF" else 0o644


def pack(tree: Path, wheel: Path, epoch: int) -> None:
    """Write every regular file below ``tree`` to the new zip ``wheel``.

    Args:
        tree: the unpacked wheel, its RECORD complete.
        wheel: file to write; must not exist.
        epoch: seconds since 1970, the time of every entry; raised to 1980 where it is earlier.

    Raises:
        ValueError: the tree holds something that is no regular file, or the time is after 2107.
        OSError: reading or writing failed.
    """
    if epoch > LATEST:
        raise ValueError(f"{epoch} is after 2107, which a zip cannot name")
    moment = time.gmtime(max(epoch, EARLIEST))
    stamp = (*moment[:5], moment.tm_sec // 2 * 2)  # a zip counts in steps of two seconds
    paths: dict[str, Path] = {}
    for path in tree.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path} is no regular file")
        if path.is_file():
            paths[path.relative_to(tree).as_posix()] = path
    with zipfile.ZipFile(wheel, "x", zipfile.ZIP_DEFLATED) as archive:
        for name in entry_order(list(paths)):
            path = paths[name]
            info = zipfile.ZipInfo(name, stamp)
            info.create_system = 3  # Unix: the mode bits below mean something
            info.external_attr = (0o100000 | mode_of(path, name)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            info._compresslevel = LEVEL  # type: ignore[attr-defined]  # no public way to stream so
            info.file_size = path.stat().st_size  # decides on zip64 before the bytes are written
            with path.open("rb") as source, archive.open(info, "w") as out:
                while block := source.read(CHUNK):
                    out.write(block)


def compressor() -> str:
    """What packs here, ``CPython 3.11.2, zlib 1.2.13``: two that differ may pack differently."""
    python = ".".join(str(n) for n in sys.version_info[:3])
    return f"CPython {python}, zlib {zlib.ZLIB_RUNTIME_VERSION}"


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

"""Small .deb, tar and ar files, made by hand so that they can be wrong in any way."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import zstandard


def xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


Member = tuple[tarfile.TarInfo, bytes]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".xz": xz,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    "": bytes,
}


def member(
    name: str,
    data: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
    mode: int = 0o644,
    mtime: int = 1_700_000_000,
) -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    info.mode, info.mtime, info.uid, info.gid = mode, mtime, 4711, 4711
    return info, data


def symlink(name: str, target: str) -> Member:
    return member(name, kind=tarfile.SYMTYPE, link=target)


def tar_bytes(members: list[Member]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def ar_member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)


def deb(path: Path, members: list[Member], kind: str = ".xz") -> Path:
    return deb_of(path, COMPRESS[kind](tar_bytes(members)), kind)


def deb_of(path: Path, data: bytes, kind: str = ".xz") -> Path:
    path.write_bytes(
        b"!<arch>\n"
        + ar_member("debian-binary", b"2.0\n")
        + ar_member("control.tar.xz", xz(tar_bytes([])))
        + ar_member(f"data.tar{kind}", data)
    )
    return path

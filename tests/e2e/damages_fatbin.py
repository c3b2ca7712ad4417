"""Changes device code inside a library: for another capability, as PTX, or not at all.

Sizes stay as they are, so nothing moves. The layouts are those of ``pinwheel.inspect.fatbin`` and,
for cubins of ABI version 7 (CUDA 12), of ``pinwheel.inspect.cubin``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import lz4.block
from damages_elf import Library

from pinwheel.inspect.cubin import read_cubin
from pinwheel.inspect.region import Region

SECTION = ".nv_fatbin"
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_PTX, _CUBIN = 1, 2
_PACKED, _MINOR, _ARCH, _FLAGS, _UNPACKED = 16, 24, 28, 40, 56  # offsets within an entry
_LZ4, _ZSTD = 0x2000, 0x8000
_E_FLAGS = 48  # within a cubin; the architecture is in its first byte, mostly also in its third
_ISA = (8, 4)


@dataclass(frozen=True)
class Image:
    """One image: offset of its entry, and where its bytes are."""

    entry: int
    start: int
    size: int


def images(library: Library) -> Iterator[Image]:
    """Every cubin of a library."""
    section = library.contents(SECTION)
    at = section.start
    while at + _CONTAINER.size <= section.stop:
        if not any(library.data[at : at + 8]):
            at += 8  # between containers
            continue
        _, _, header, size = _CONTAINER.unpack_from(library.data, at)
        at += header
        end = at + size
        while at < end:
            kind, _, head, held, *_ = _ENTRY.unpack_from(library.data, at)
            if kind == _CUBIN:
                yield Image(at, at + head, held)
            at += head + held


def with_kernels(library: Library) -> Image:
    """The smallest image that holds a kernel."""
    by_size = sorted(images(library), key=lambda image: image.size)
    return next(image for image in by_size if kernels(library, image))


def kernels(library: Library, image: Image) -> tuple[str, ...]:
    """Its kernels."""
    return read_cubin(Region.of(_payload(library, image), "a cubin")).kernels


def retarget(library: Library, arch: int, *chosen: Image) -> None:
    """Make cubins (all, unless some are named) say that they are for another architecture."""
    for image in chosen or tuple(images(library)):
        cubin = bytearray(_payload(library, image))
        assert cubin[7:9] == b"\x33\x07", "no cubin of ABI version 7"
        old = cubin[_E_FLAGS]
        cubin[_E_FLAGS] = arch
        if cubin[_E_FLAGS + 2] == old:
            cubin[_E_FLAGS + 2] = arch
        struct.pack_into("<I", library.data, image.entry + _ARCH, arch)
        _store(library, image, bytes(cubin))


def to_ptx(library: Library, *chosen: Image) -> None:
    """Put PTX with the same kernels into the place of cubins (all, unless some are named)."""
    for image in chosen or tuple(images(library)):
        (arch,) = struct.unpack_from("<I", library.data, image.entry + _ARCH)
        (flags,) = struct.unpack_from("<Q", library.data, image.entry + _FLAGS)
        lines = [f".version {_ISA[0]}.{_ISA[1]}", f".target sm_{arch}", ".address_size 64"]
        lines += [f".visible .entry {name}() {{ ret; }}" for name in kernels(library, image)]
        text = ("\n".join(lines) + "\n").encode()
        assert len(text) <= image.size, "the PTX has no room"
        struct.pack_into("<H", library.data, image.entry, _PTX)
        struct.pack_into("<HH", library.data, image.entry + _MINOR, _ISA[1], _ISA[0])
        struct.pack_into("<Q", library.data, image.entry + _FLAGS, flags & ~(_LZ4 | _ZSTD))
        library.data[image.start : image.start + image.size] = text.ljust(image.size, b"\n")


def erase(library: Library) -> None:
    """Write zeros over all of its device code."""
    section = library.contents(SECTION)
    library.data[section.start : section.stop] = bytes(len(section))


def _payload(library: Library, image: Image) -> bytes:
    (flags,) = struct.unpack_from("<Q", library.data, image.entry + _FLAGS)
    held = bytes(library.data[image.start : image.start + image.size])
    assert not flags & _ZSTD, "an image packed by zstd"
    if not flags & _LZ4:
        return held
    (packed,) = struct.unpack_from("<I", library.data, image.entry + _PACKED)
    (unpacked,) = struct.unpack_from("<Q", library.data, image.entry + _UNPACKED)
    return bytes(lz4.block.decompress(held[:packed], uncompressed_size=unpacked))


def _store(library: Library, image: Image, payload: bytes) -> None:
    (flags,) = struct.unpack_from("<Q", library.data, image.entry + _FLAGS)
    if flags & _LZ4:
        payload = next(p for p in _packed(payload) if len(p) <= image.size)
        struct.pack_into("<I", library.data, image.entry + _PACKED, len(payload))
    assert len(payload) <= image.size, "the image has no room"
    library.data[image.start : image.start + image.size] = payload.ljust(image.size, b"\0")


def _packed(payload: bytes) -> Iterator[bytes]:
    """Packed ever better, and ever more slowly."""
    yield bytes(lz4.block.compress(payload, store_size=False))
    for level in (6, 9, 12):
        packed = lz4.block.compress(
            payload, mode="high_compression", compression=level, store_size=False
        )
        yield bytes(packed)

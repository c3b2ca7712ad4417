"""Lists every image of device code in a library: its capability, its size, its kernels.

NVIDIA does not document the container. What is read here was observed: files written by
``fatbinary`` of CUDA 13.5 with every option, libraries built with 11.8 to 13.2, and what
``cuobjdump`` says of them, also of files with one bit changed. Whatever was not seen is refused.

A section holds containers (16 bytes: magic, version, header size, bytes that follow), a container
entries, each a header of its own size and a payload. Offsets within an entry's header: 0 kind,
4 header size, 8 payload size, 16 compressed size, 24 code version, 28 architecture, 40 flags,
56 uncompressed size. The code version is the version of the ISA for PTX, and (1, ABI) for a cubin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import lz4.block
import zstandard

from pinwheel.inspect.cubin import read_cubin, read_ptx
from pinwheel.inspect.elf import FATBIN_SECTIONS, Elf
from pinwheel.inspect.elf_format import SHF_COMPRESSED, Section
from pinwheel.inspect.region import Region, printable, unreadable
from pinwheel.matrix.capability import Capability, Variant

MAGIC = 0xBA55ED50

# Bounds. torch 2.3.0's largest library has 2,300 images, the largest cubin of vLLM 0.6.3 unpacks
# to 66 MB, and packing brings single ones down to 1:45.
MAX_ENTRIES = 200_000
MAX_HEADER = 1 << 16  # bytes, of one entry; it may carry a file name and compiler options
MAX_IMAGE = 256 << 20  # bytes, of one image unpacked
MAX_RATIO = 100  # bytes read of images to bytes of their section
FLOOR = 64 << 20  # bytes that may be read whatever the ratio

_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_CONCAT = struct.Struct("<II")  # number of images, size of the table with itself

_F_64, _F_DEBUG, _F_LINUX, _F_COMPAT = 0x1, 0x2, 0x10, 0x1000000
_F_LZ4, _F_ZSTD, _F_ARCH, _F_FAMILY = 0x2000, 0x8000, 0x100000, 0x200000
_KNOWN_FLAGS = (
    _F_64 | _F_DEBUG | _F_LINUX | _F_COMPAT | _F_LZ4 | _F_ZSTD | _F_ARCH | _F_FAMILY
)  # fmt: skip
_KIND_CONCATENATED = 256


class EntryKind(StrEnum):
    """What an image is, by the names cuobjdump has for them; only the first two are code."""

    CUBIN = "cubin"
    PTX = "ptx"
    NVVM = "nvvm"  # for link-time optimization
    RELOCATABLE_PTX = "relocatable ptx"
    TILE_IR = "tile ir"
    OTHER = "other"


_KINDS = {
    1: EntryKind.PTX,
    2: EntryKind.CUBIN,
    8: EntryKind.NVVM,
    64: EntryKind.RELOCATABLE_PTX,
    128: EntryKind.TILE_IR,
}


class Compression(StrEnum):
    """How an image is packed."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class FatbinEntry:
    """One image.

    Attributes:
        section: ``.nv_fatbin``, or ``__nv_relfatbin`` for code that is still to be linked.
        container: which container of the section, from 0; one comes of one source file.
        kind: a kind that is not known counts as no code for anything.
        kind_number: the number behind it.
        capability: with its variant; ``ptx`` is never set, the kind says it. None for a kind that
            is not known.
        compression: how it is packed; images of one concatenated entry are packed together.
        size: bytes it takes in the file; of a concatenated entry, its first image takes all.
        unpacked: bytes.
        code_version: version of the PTX ISA; for a cubin (1, ABI version).
        debug: compiled with device debug information.
        toolkit: of a cubin, the CUDA release of its compiler, ``12.4``; empty when unread or
            not stated.
        relocatable: of a cubin, still to be linked; None when unread.
        kernels: names, mangled, sorted; None when unread, or when the kind is none that is read.
    """

    section: str
    container: int
    kind: EntryKind
    kind_number: int
    capability: Capability | None
    compression: Compression
    size: int
    unpacked: int
    code_version: tuple[int, int]
    debug: bool
    toolkit: str = ""
    relocatable: bool | None = None
    kernels: tuple[str, ...] | None = None

    @property
    def target(self) -> str:
        """What cuobjdump calls it: ``sm_90a``, ``ptx sm_90``, ``tile ir sm_100``."""
        what = self.capability.sm if self.capability else f"kind {self.kind_number}"
        return what if self.kind is EntryKind.CUBIN else f"{self.kind} {what}"

    @property
    def ptx_isa(self) -> str:
        """Version of the PTX ISA, ``9.0``; empty when it is no PTX."""
        ptx = self.kind in (EntryKind.PTX, EntryKind.RELOCATABLE_PTX)
        return f"{self.code_version[0]}.{self.code_version[1]}" if ptx else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """Where an image's bytes are: a part of a payload, or of an unpacked one."""

    payload: Region
    packed: int
    compression: Compression
    whole: int  # bytes of the payload unpacked
    offset: int  # of the image within it
    size: int


def read_fatbins(file: Region, elf: Elf, *, kernels: bool = False) -> tuple[FatbinEntry, ...]:
    """Every image in the fatbin sections of a library, in file order.

    Args:
        file: the library.
        elf: what :func:`~pinwheel.inspect.elf.read_elf` said of it.
        kernels: read the images too, which unpacks them one after another (at most 256 MiB each):
            kernels, toolkit, and whether an image is what its entry says.

    Raises:
        ArtifactError: a container is damaged, has what no known toolkit writes, or unpacks to
            more than real code does; with ``kernels``, also an image that is damaged or for
            another capability than its entry says.
    """
    if not elf.sections and elf.dynamic:
        raise unreadable(file.name, "without a section table, device code in it cannot be found")
    found: list[FatbinEntry] = []
    for section in elf.sections:
        if section.name in FATBIN_SECTIONS and section.in_file:
            found += _read_section(file, section, kernels)
    return tuple(found)


def count_targets(entries: tuple[FatbinEntry, ...]) -> dict[str, int]:
    """How many images there are for each target: ``{"ptx sm_80": 1, "sm_90a": 25}``, sorted."""
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.target] = counts.get(entry.target, 0) + 1
    return dict(sorted(counts.items()))


def _read_section(file: Region, section: Section, kernels: bool) -> Iterator[FatbinEntry]:
    if section.flags & SHF_COMPRESSED:
        raise unreadable(file.name, f"the section {section.name} is compressed")
    region = file.part(section.offset, section.size, f"the section {section.name}")
    budget = FLOOR + MAX_RATIO * region.size
    count = 0
    unpacked: Region | None = None
    unpacked_from: Region | None = None
    for number, container in enumerate(_containers(region)):
        for entry, image in _entries(container, section.name, number):
            count += 1
            if count > MAX_ENTRIES:
                raise unreadable(file.name, f"{section.name} has more than {MAX_ENTRIES} images")
            if not kernels or entry.kind not in (EntryKind.CUBIN, EntryKind.PTX):
                yield entry
                continue
            new = image.payload is not unpacked_from  # concatenated images share one
            budget -= image.size + (image.whole if new else 0)
            if budget < 0:
                raise unreadable(
                    file.name, f"{section.name} unpacks to more than {MAX_RATIO} times its size"
                )
            if unpacked is None or new:
                unpacked = None  # lets the last one go before the next is made
                unpacked, unpacked_from = _unpack(image), image.payload
            yield _look_into(entry, unpacked.part(image.offset, image.size, "an image"))


def _containers(region: Region) -> Iterator[Region]:
    """What follows each container's header; linkers leave zeros between containers."""
    at = count = 0
    while (at := _skip_zeros(region, at)) < region.size:
        count += 1
        if count > MAX_ENTRIES:
            raise unreadable(region.name, f"it has more than {MAX_ENTRIES} fatbins")
        magic, version, header, size = region.unpack(_CONTAINER, at, "a fatbin")
        if magic != MAGIC or version != 1 or header != _CONTAINER.size:
            raise unreadable(
                region.name,
                "a section of device code holds something that is no fatbin of a known kind",
                f"at {at:#x}: magic {magic:#x}, version {version}, header of {header} bytes",
            )
        yield region.part(at + header, size, "a fatbin")
        at += header + size


def _skip_zeros(region: Region, at: int) -> int:
    """The offset of the next byte that is not zero."""
    step = 64
    while at < region.size:
        chunk = region.read(at, min(step, region.size - at), "a fatbin")
        rest = len(chunk.lstrip(b"\0"))
        at += len(chunk) - rest
        if rest:
            break
        step = 1 << 20
    return at


def _entries(container: Region, section: str, number: int) -> Iterator[tuple[FatbinEntry, _Image]]:
    at = 0
    while at < container.size:
        raw = container.unpack(_ENTRY, at, "a fatbin entry")
        kind, header, size, packed, unpacked = raw[0], raw[2], raw[3], raw[4], raw[13]
        if not _ENTRY.size <= header <= MAX_HEADER:
            raise unreadable(container.name, f"a fatbin entry with a header of {header} bytes")
        payload = container.part(at + header, size, "a fatbin entry")
        compression = _compression(container.name, raw[11])
        if compression is Compression.NONE:
            packed = unpacked = size
        elif packed > size or unpacked > MAX_IMAGE:
            raise unreadable(
                container.name,
                "a fatbin entry states sizes that cannot be",
                f"{size} bytes, {packed} of them packed, {unpacked} unpacked",
            )
        parts = [(raw, 0, unpacked)]
        if kind == _KIND_CONCATENATED:
            parts = list(_concatenated(container, at, header, unpacked))
        for index, (part, offset, length) in enumerate(parts):
            entry = FatbinEntry(
                section=section,
                container=number,
                kind=_KINDS.get(part[0], EntryKind.OTHER),
                kind_number=part[0],
                capability=_capability(container.name, part),
                compression=compression,
                size=size if index == 0 else 0,
                unpacked=length,
                code_version=(part[7], part[6]),
                debug=bool(part[11] & _F_DEBUG),
            )
            yield (
                entry,
                _Image(
                    payload=payload,
                    packed=packed,
                    compression=compression,
                    whole=unpacked,
                    offset=offset,
                    size=length,
                ),
            )
        at += header + size


def _concatenated(
    container: Region, at: int, header: int, unpacked: int
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """The images of an entry that packs several: header, offset and size of each.

    The table behind the entry's own header has an entry header for each, with the offset within
    the unpacked payload in the place of the header's size.
    """
    count, size = container.unpack(_CONCAT, at + _ENTRY.size, "a concatenated entry")
    if size != _CONCAT.size + count * _ENTRY.size or _ENTRY.size + size > header:
        raise unreadable(container.name, f"a concatenated entry of {count} images in {size} bytes")
    for index in range(count):
        place = at + _ENTRY.size + _CONCAT.size + index * _ENTRY.size
        raw = container.unpack(_ENTRY, place, "a concatenated entry")
        _compression(container.name, raw[11])
        if raw[0] == _KIND_CONCATENATED or raw[2] + raw[3] > unpacked:
            raise unreadable(container.name, "an image lies outside of its concatenated entry")
        yield raw, raw[2], raw[3]


def _compression(name: str, flags: int) -> Compression:
    if unknown := flags & ~_KNOWN_FLAGS:
        raise unreadable(name, f"a fatbin entry has flags that are not known: {unknown:#x}")
    match flags & _F_LZ4, flags & _F_ZSTD:
        case 0, 0:
            return Compression.NONE
        case _, 0:
            return Compression.LZ4
        case 0, _:
            return Compression.ZSTD
    raise unreadable(name, "a fatbin entry is packed in two ways at once")


def _capability(name: str, raw: tuple[int, ...]) -> Capability | None:
    """The capability of an entry header; None for a kind that is not known."""
    if raw[0] not in _KINDS:
        return None
    variant: Variant = ""
    match raw[11] & _F_ARCH, raw[11] & _F_FAMILY:
        case 0, 0:
            pass
        case _, 0:
            variant = "a"
        case 0, _:
            variant = "f"
        case _:
            raise unreadable(name, "a fatbin entry is of two variants at once")
    major, minor = divmod(raw[8], 10)
    if not 1 <= major <= 99:
        raise unreadable(name, f"a fatbin entry is for the architecture {raw[8]}, which is none")
    return Capability(major, minor, variant)


def _unpack(image: _Image) -> Region:
    """The payload unpacked; exactly as long as the entry says."""
    name = image.payload.name
    if image.compression is Compression.NONE:
        return image.payload
    packed = image.payload.read(0, image.packed, "an image", most=MAX_IMAGE)
    try:
        if image.compression is Compression.LZ4:
            data: bytes = lz4.block.decompress(packed, uncompressed_size=image.whole)
        else:
            # zstandard reserves what the frame states, whatever bound it is given.
            if zstandard.frame_content_size(packed) not in (-1, image.whole):
                raise unreadable(name, "an image states two sizes")
            data = zstandard.ZstdDecompressor().decompress(
                packed, max_output_size=image.whole, allow_extra_data=False
            )
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, OverflowError) as error:
        raise unreadable(name, "an image cannot be unpacked", str(error)) from error
    if len(data) != image.whole:
        raise unreadable(name, "an image unpacks to another size than it states")
    return Region.of(data, name)


def _look_into(entry: FatbinEntry, image: Region) -> FatbinEntry:
    """The entry with what its image says, refused when the two contradict each other."""
    stated = entry.capability
    if stated is None:
        return entry
    toolkit = ""
    relocatable: bool | None = None
    if entry.kind is EntryKind.PTX:
        ptx = read_ptx(image)
        kernels = ptx.kernels
        found = ptx.target
        # fatbinary takes PTX for an older target too: it runs wherever the newer would.
        agree = found == stated or (not stated.variant and not found.variant and found < stated)
        agree = agree and ptx.isa == entry.code_version
        seen = f"{found.sm}, ISA {ptx.isa[0]}.{ptx.isa[1]}"
    else:
        cubin = read_cubin(image)
        kernels, toolkit, relocatable = cubin.kernels, cubin.toolkit, cubin.relocatable
        agree = cubin.agrees(stated) and (1, cubin.abi) == entry.code_version
        seen = f"sm_{cubin.architecture}, ABI {cubin.abi}"
    if not agree:
        raise unreadable(
            image.name,
            "an image is not what its fatbin entry says",
            f"entry: {entry.target}, code version {entry.code_version}",
            f"image: {printable(seen)}",
        )
    return replace(entry, toolkit=toolkit, relocatable=relocatable, kernels=kernels)

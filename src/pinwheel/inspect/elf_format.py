"""The raw structures of an ELF file: header, sections, segments, symbols; all of it bounded.

Layouts are those of the System V ABI ("Object Files", gABI 4.1). pyelftools names the constants.
Its own readers are not used on artifacts: they follow any count and any string to its end, so a
damaged file takes all memory, and for the 94,000 symbols of libtorch_cpu.so they take 6 s of CPU
time where these take half a second.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from elftools.elf.enums import ENUM_E_MACHINE, ENUM_E_TYPE

from pinwheel.inspect.region import Region, unreadable

MAGIC = b"\x7fELF"

# Bounds on what a damaged or hostile file can make us read. A cubin has about five sections per
# kernel; of torch 2.3.0's libraries one has 94,000 dynamic symbols, another 11 MB of names.
MAX_SECTIONS = 200_000
MAX_SEGMENTS = 10_000
MAX_SYMBOLS = 1_000_000
MAX_NAMES = 128 << 20  # bytes, of one string table, and twice that of names read from it
MAX_NAME = 64 << 10  # bytes, of one name

SHT_SYMTAB, SHT_STRTAB, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 3, 7, 8, 11
SHT_LOPROC = 0x70000000
SHF_ALLOC, SHF_COMPRESSED = 0x2, 0x800
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_GNU_STACK = 1, 2, 3, 4, 0x6474E551
SHN_UNDEF, SHN_XINDEX = 0, 0xFFFF
STT_FUNC = 2

_MACHINES = {number: name for name, number in ENUM_E_MACHINE.items() if isinstance(number, int)}
_TYPES = {number: name for name, number in ENUM_E_TYPE.items() if isinstance(number, int)}

# bits -> layout; fields in the file's order
_HEADER = {32: "HHIIIIIHHHHHH", 64: "HHIQQQIHHHHHH"}
_SECTION = {32: "10I", 64: "IIQQQQIIQQ"}
_SEGMENT = {32: "8I", 64: "IIQQQQQQ"}
_SYMBOL = {32: "IIIBBH", 64: "IBBHQQ"}
_DYNAMIC = {32: "iI", 64: "qQ"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section header; ``size`` is in bytes, ``offset`` from the file's start.

    Attributes:
        index: its place in the section table.
        kind: sh_type.
    """

    index: int
    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int

    @property
    def in_file(self) -> int:
        """Bytes it takes in the file."""
        return 0 if self.kind == SHT_NOBITS else self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One program header: ``size`` bytes of the file at ``offset``, loaded at ``address``."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int
    align: int


class RawSymbol(NamedTuple):
    """One symbol as the table has it; ``name`` is an offset into its string table."""

    name: int
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def binding(self) -> int:
        """STB_LOCAL 0, STB_GLOBAL 1, STB_WEAK 2."""
        return self.info >> 4

    @property
    def kind(self) -> int:
        """STT_FUNC 2 and others."""
        return self.info & 0xF


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The ELF header.

    Attributes:
        bits: 32 or 64.
        order: ``<`` or ``>``, as :mod:`struct` writes byte orders.
        os_abi, abi_version: e_ident[7] and e_ident[8].
        type, machine: e_type and e_machine.
        version: e_version, where cubins of older toolkits state the toolkit.
        flags: e_flags.
    """

    bits: int
    order: str
    os_abi: int
    abi_version: int
    type: int
    machine: int
    version: int
    flags: int
    segment_table: int
    segment_count: int
    section_table: int
    section_count: int
    section_names: int

    @property
    def machine_name(self) -> str:
        """``EM_X86_64``, or the number of a machine that has no name here."""
        return _MACHINES.get(self.machine, f"EM_{self.machine}")

    @property
    def type_name(self) -> str:
        """``ET_DYN``, or the number of a type that has no name here."""
        return _TYPES.get(self.type, f"ET_{self.type}")

    def layout(self, fields: dict[int, str]) -> struct.Struct:
        """The layout for this file's class and byte order."""
        return struct.Struct(self.order + fields[self.bits])


def read_header(region: Region) -> Header:
    """Read the ELF header and check that its tables lie within the file.

    Raises:
        ArtifactError: no ELF file, or its tables cannot be read.
    """
    ident = region.read(0, 16, "the ELF header")
    if ident[:4] != MAGIC:
        raise unreadable(region.name, "it is no ELF file", f"it starts with {ident[:8]!r}")
    bits = {1: 32, 2: 64}.get(ident[4])
    order = {1: "<", 2: ">"}.get(ident[5])
    if bits is None or order is None or ident[6] != 1:
        raise unreadable(region.name, f"unknown ELF class, byte order or version: {ident!r}")
    layout = struct.Struct(order + _HEADER[bits])
    kind, machine, version, _, phoff, shoff, flags, _, phsize, phnum, shsize, shnum, names = (
        region.unpack(layout, 16, "the ELF header")
    )
    section = struct.Struct(order + _SECTION[bits])
    if shoff:
        if shsize != section.size:
            raise unreadable(region.name, f"a section header of {shsize} bytes")
        if shnum == 0 or names == SHN_XINDEX or phnum == 0xFFFF:
            # gABI: counts too large for the header stand in the first section header.
            first = region.unpack(section, shoff, "the first section header")
            shnum = shnum or first[5]
            names = first[6] if names == SHN_XINDEX else names
            phnum = first[7] if phnum == 0xFFFF else phnum
    else:
        shnum = names = 0
    if phnum and phsize != struct.calcsize(order + _SEGMENT[bits]):
        raise unreadable(region.name, f"a program header of {phsize} bytes")
    if shnum > MAX_SECTIONS or phnum > MAX_SEGMENTS:
        raise unreadable(region.name, f"{shnum} sections and {phnum} segments are too many")
    return Header(
        bits=bits,
        order=order,
        os_abi=ident[7],
        abi_version=ident[8],
        type=kind,
        machine=machine,
        version=version,
        flags=flags,
        segment_table=phoff,
        segment_count=phnum,
        section_table=shoff,
        section_count=shnum,
        section_names=names,
    )


def read_sections(region: Region, header: Header) -> tuple[Section, ...]:
    """All sections, the empty one at index 0 left out.

    Raises:
        ArtifactError: a section lies outside the file, or has no name.
    """
    raw = list(_table(region, header.layout(_SECTION), header.section_table, header.section_count))
    if not raw:
        return ()
    if header.section_names >= len(raw):
        raise unreadable(region.name, "its section names are in a section that is not there")
    names = _strings(region, raw[header.section_names])
    found: list[Section] = []
    for index, (name, kind, flags, address, offset, size, link, info, align, _) in enumerate(raw):
        if kind == 0:  # SHT_NULL, a place that is not used
            continue
        section = Section(
            index=index,
            name=names.at(name),
            kind=kind,
            flags=flags,
            address=address,
            offset=offset,
            size=size,
            link=link,
            info=info,
            align=align,
        )
        # Some of a processor's own kinds take no bytes: cubins have such for shared memory.
        held = section.in_file
        if held and kind < SHT_LOPROC and offset + held > region.size:
            region.part(offset, size, f"the section {section.name}")
        found.append(section)
    return tuple(found)


def read_segments(region: Region, header: Header) -> tuple[Segment, ...]:
    """All program headers.

    Raises:
        ArtifactError: a segment's bytes lie outside the file.
    """
    found: list[Segment] = []
    layout = header.layout(_SEGMENT)
    for raw in _table(region, layout, header.segment_table, header.segment_count):
        if header.bits == 64:
            kind, flags, offset, address, _, size, _, align = raw
        else:
            kind, offset, address, _, size, _, flags, align = raw
        if size:
            region.part(offset, size, f"the segment of type {kind:#x}")
        found.append(
            Segment(kind=kind, flags=flags, offset=offset, address=address, size=size, align=align)
        )
    return tuple(found)


def dynamic_layout(header: Header) -> struct.Struct:
    """Tag and value of one dynamic entry."""
    return header.layout(_DYNAMIC)


def read_symbols(region: Region, header: Header, offset: int, count: int) -> Iterator[RawSymbol]:
    """``count`` symbols from ``offset``, the empty one at index 0 among them.

    Raises:
        ArtifactError: too many, or they lie outside the file.
    """
    if count > MAX_SYMBOLS:
        raise unreadable(region.name, f"{count} symbols are too many")
    table = _table(region, header.layout(_SYMBOL), offset, count)
    if header.bits == 64:  # in the order of the fields, and a million of them count
        return map(RawSymbol._make, table)
    return (
        RawSymbol(name, info, other, section, value, size)
        for name, value, size, info, other, section in table
    )


def symbol_size(header: Header) -> int:
    """Bytes of one symbol."""
    return header.layout(_SYMBOL).size


def _table(
    region: Region, layout: struct.Struct, offset: int, count: int
) -> Iterator[tuple[int, ...]]:
    size = layout.size * count
    return layout.iter_unpack(region.read(offset, size, "a table", most=64 << 20))


@dataclass(slots=True)
class Strings:
    """A string table in memory, whose names are read with a bound on their sum.

    Attributes:
        name: the file, for messages.
        data: the table.
        left: bytes of names that may still be read. Names may share their ends, so the sum can
            be larger than the table, but a million symbols that share one long name are a trap.
    """

    name: str
    data: bytes
    left: int = 0
    _known: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = min(4 * len(self.data), 2 * MAX_NAMES) + (1 << 20)

    def at(self, offset: int) -> str:
        """The name at ``offset``, undecodable bytes as escapes.

        Raises:
            ArtifactError: it lies outside, does not end, or is too long.
        """
        if (known := self._known.get(offset)) is not None:
            return known
        end = self.data.find(b"\0", offset, offset + MAX_NAME) if offset < len(self.data) else -1
        if offset < 0 or end < 0:
            raise unreadable(self.name, f"the name at {offset:#x} of a string table has no end")
        self.left -= end - offset
        if self.left < 0:
            raise unreadable(self.name, "its names repeat each other beyond measure")
        text = self.data[offset:end].decode("utf-8", "backslashreplace")
        self._known[offset] = text
        return text


def _strings(region: Region, raw: tuple[int, ...]) -> Strings:
    return strings_at(region, raw[4], 0 if raw[1] == SHT_NOBITS else raw[5])


def strings_at(region: Region, offset: int, size: int) -> Strings:
    """The string table of ``size`` bytes at ``offset``; errors as in :meth:`Region.read`."""
    return Strings(region.name, region.read(offset, size, "a string table", most=MAX_NAMES))

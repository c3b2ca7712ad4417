"""Reads one ELF file, a library of a wheel say, without running or trusting any of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Literal

from pinwheel.inspect.elf_dynamic import (
    Binding,
    Dynamic,
    Symbol,
    VersionNeed,
    read_dynamic_segment,
)
from pinwheel.inspect.elf_format import (
    MAGIC,
    MAX_NAME,
    PT_GNU_STACK,
    PT_INTERP,
    PT_NOTE,
    SHF_ALLOC,
    SHT_NOTE,
    Header,
    Section,
    Segment,
    read_header,
    read_sections,
    read_segments,
)
from pinwheel.inspect.region import Region, unreadable

__all__ = ["FATBIN_SECTIONS", "Binding", "Elf", "Section", "Symbol", "VersionNeed", "read_elf"]

# Sections nvcc puts device code into (CUDA Binary Utilities, "CUDA binary").
FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")

MAX_NOTES = 1 << 20  # bytes, of one table of notes
_NT_BUILD_ID, _NT_PROPERTY = 3, 5
_X86_ISA_NEEDED = 0xC0008002
# Bit of GNU_PROPERTY_X86_ISA_1_NEEDED -> level (x86-64 psABI, "Program Property"); bit 0 is the
# baseline itself.
_ISA_LEVELS = {1: "x86-64-v2", 2: "x86-64-v3", 3: "x86-64-v4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Elf:
    """One ELF file, as read.

    Attributes:
        name: its path within the wheel.
        bits: 32 or 64.
        little_endian: byte order.
        machine: the ELF machine, ``EM_X86_64`` say.
        type: ``ET_DYN`` for a shared library.
        dynamic: it has a dynamic segment; without one, what that would say is empty.
        soname: DT_SONAME or empty.
        needed: DT_NEEDED, in file order.
        search_paths: values of DT_RPATH and DT_RUNPATH, with which of the two, in file order.
        also_loads: libraries it has loaded by other tags, with the tag (``AUDIT``, ``FILTER``).
        version_needs: sorted; of every library, also those that come from elsewhere.
        versions_defined: sorted.
        symbols: dynamic symbols, in table order.
        sections: in table order; empty when the table was cut away.
        executable_stack: PT_GNU_STACK is executable, or absent (the loader then assumes so).
        interpreter: PT_INTERP or empty.
        build_id: hexadecimal, or empty.
        isa: instruction-set levels it marks as needed, beyond the baseline.
    """

    name: str
    bits: int
    little_endian: bool
    machine: str
    type: str
    dynamic: bool
    soname: str
    needed: tuple[str, ...]
    search_paths: tuple[tuple[str, str], ...]
    also_loads: tuple[tuple[str, str], ...]
    version_needs: tuple[VersionNeed, ...]
    versions_defined: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    sections: tuple[Section, ...]
    executable_stack: bool
    interpreter: str
    build_id: str
    isa: tuple[str, ...]

    @property
    def kind(self) -> Literal["extension", "library"]:
        """``extension`` when it exports ``PyInit_<stem>``, else ``library``."""
        init = f"PyInit_{PurePosixPath(self.name).name.split('.', 1)[0]}"
        found = any(s.name == init and s.exported for s in self.symbols)
        return "extension" if found else "library"

    @property
    def undefined(self) -> tuple[Symbol, ...]:
        """Symbols another library has to bring, sorted by name and version."""
        found = (s for s in self.symbols if not s.defined)
        return tuple(sorted(found, key=lambda s: (s.name, s.version)))

    @property
    def exported(self) -> tuple[Symbol, ...]:
        """Symbols other libraries can bind to, in table order."""
        return tuple(s for s in self.symbols if s.exported)

    @property
    def rpath(self) -> tuple[str, ...]:
        """DT_RPATH."""
        return tuple(path for tag, path in self.search_paths if tag == "RPATH")

    @property
    def runpath(self) -> tuple[str, ...]:
        """DT_RUNPATH."""
        return tuple(path for tag, path in self.search_paths if tag == "RUNPATH")

    @property
    def symbol_table(self) -> bool:
        """It has a full ``.symtab``, or DWARF (it is not stripped)."""
        return self.debug or any(s.name == ".symtab" for s in self.sections)

    @property
    def debug(self) -> bool:
        """It has DWARF sections."""
        return any(s.name.startswith((".debug_", ".zdebug_")) for s in self.sections)

    @property
    def device_code(self) -> int:
        """Size in bytes of the sections that hold CUDA device code."""
        return sum(s.in_file for s in self.sections if s.name in FATBIN_SECTIONS)

    def symbols_of(self, version: str) -> tuple[str, ...]:
        """Names of the undefined symbols that need ``version``."""
        return tuple(s.name for s in self.undefined if s.version == version)


def is_elf(start: bytes) -> bool:
    """Whether a file that starts so is an ELF file; its name decides nothing."""
    return start.startswith(MAGIC)


def read_elf(file: Region) -> Elf:
    """Read one ELF file of any class, byte order and machine.

    Raises:
        ArtifactError: no ELF file, cut short, or with structures that lie outside it, overlap,
            contradict each other or have no end.
    """
    header = read_header(file)
    sections = read_sections(file, header)
    segments = read_segments(file, header)
    _check_overlap(file, sections)
    found = read_dynamic_segment(file, header, sections, segments)
    dynamic = found or Dynamic(
        soname="",
        needed=(),
        search_paths=(),
        also_loads=(),
        version_needs=(),
        versions_defined=(),
        symbols=(),
    )
    stack = [s for s in segments if s.kind == PT_GNU_STACK]
    build_id, isa = _notes(file, header, sections, segments)
    return Elf(
        name=file.name,
        bits=header.bits,
        little_endian=header.order == "<",
        machine=header.machine_name,
        type=header.type_name,
        dynamic=found is not None,
        soname=dynamic.soname,
        needed=dynamic.needed,
        search_paths=dynamic.search_paths,
        also_loads=dynamic.also_loads,
        version_needs=dynamic.version_needs,
        versions_defined=dynamic.versions_defined,
        symbols=dynamic.symbols,
        sections=sections,
        executable_stack=not stack or any(s.flags & 1 for s in stack),
        interpreter=_interpreter(file, segments),
        build_id=build_id,
        isa=isa,
    )


def _check_overlap(file: Region, sections: Sequence[Section]) -> None:
    """Refuse loaded sections that share bytes: two tools would see two files."""
    loaded = sorted(
        (s for s in sections if s.in_file and (s.flags & SHF_ALLOC or s.name in FATBIN_SECTIONS)),
        key=lambda s: s.offset,
    )
    for first, second in pairwise(loaded):
        if first.offset + first.size > second.offset:
            raise unreadable(
                file.name,
                "its sections overlap",
                f"{first.name}: {first.size} bytes at {first.offset:#x}",
                f"{second.name}: {second.size} bytes at {second.offset:#x}",
            )


def _interpreter(file: Region, segments: Sequence[Segment]) -> str:
    for segment in segments:
        if segment.kind == PT_INTERP:
            raw = file.read(segment.offset, segment.size, "the interpreter", most=MAX_NAME)
            return raw.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
    return ""


def _notes(
    file: Region, header: Header, sections: Sequence[Section], segments: Sequence[Segment]
) -> tuple[str, tuple[str, ...]]:
    """Build id and instruction-set levels."""
    tables = {(s.offset, s.size, s.align) for s in segments if s.kind == PT_NOTE}
    tables |= {(s.offset, s.size, s.align) for s in sections if s.kind == SHT_NOTE}
    build_ids: set[str] = set()
    levels: set[str] = set()
    for offset, size, align in sorted(tables)[:1000]:
        data = file.read(offset, size, "a note", most=MAX_NOTES)
        for owner, kind, content in read_notes(data, header.order, 8 if align == 8 else 4):
            if owner != b"GNU\0":
                continue
            if kind == _NT_BUILD_ID:
                build_ids.add(content.hex())
            elif kind == _NT_PROPERTY:
                levels.update(_isa(content, header))
    if len(build_ids) > 1:
        raise unreadable(file.name, "it has two build ids", *sorted(build_ids)[:5])
    return next(iter(build_ids), ""), tuple(sorted(levels))


def read_notes(data: bytes, order: str, align: int) -> Iterator[tuple[bytes, int, bytes]]:
    """Owner, type and content of each note of a table; what does not fit ends it.

    Args:
        data: the table.
        order: ``<`` or ``>``.
        align: 4 or 8; names and contents start at multiples of it.
    """
    head = struct.Struct(order + "III")
    at = 0
    while at + head.size <= len(data):
        name_size, size, kind = head.unpack_from(data, at)
        content = _up(at + head.size + name_size, align)
        if content + size > len(data):
            return
        yield (
            data[at + head.size : at + head.size + name_size],
            kind,
            data[content : content + size],
        )
        at = _up(content + size, align)


def _isa(content: bytes, header: Header) -> Iterator[str]:
    head = struct.Struct(header.order + "II")
    at = 0
    while at + head.size <= len(content):
        kind, size = head.unpack_from(content, at)
        at += head.size
        if kind == _X86_ISA_NEEDED and size == 4 and at + 4 <= len(content):
            bits = int.from_bytes(content[at : at + 4], "little" if header.order == "<" else "big")
            yield from (level for bit, level in _ISA_LEVELS.items() if bits >> bit & 1)
        at = _up(at + size, header.bits // 8)


def _up(value: int, align: int) -> int:
    return -(-value // align) * align

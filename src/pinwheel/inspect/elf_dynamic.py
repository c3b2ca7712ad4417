"""What the loader reads of a shared library: its dynamic segment, symbols and versions.

The loader follows PT_DYNAMIC and never looks at sections, so neither is done here: what a
library needs is what the loader will look for, whatever its section table says. Layouts are those
of the System V ABI and, for versions, of the Linux Standard Base ("Symbol Versioning").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pinwheel.inspect.elf_format import (
    MAX_SYMBOLS,
    PT_DYNAMIC,
    PT_LOAD,
    SHN_UNDEF,
    SHT_DYNSYM,
    Header,
    Section,
    Segment,
    Strings,
    dynamic_layout,
    read_symbols,
    strings_at,
    symbol_size,
)
from pinwheel.inspect.region import Region, unreadable

# A library with more dynamic tags, or needs of more versions, was made to be read for long.
MAX_NAMED = 10_000

NEEDED, HASH, STRTAB, SYMTAB, STRSZ, SONAME, RPATH, RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
GNU_HASH, VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
VERDEF, VERDEFNUM, VERNEED, VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
# Tags by which a library has others loaded beside DT_NEEDED (ld.so; Solaris' linker guide).
_ALSO = {0x6FFFFEFB: "DEPAUDIT", 0x6FFFFEFC: "AUDIT", 0x7FFFFFFD: "AUXILIARY", 0x7FFFFFFF: "FILTER"}
_MANY = {NEEDED, RPATH, RUNPATH, *_ALSO}


class Binding(StrEnum):
    """How a symbol binds; a weak one may stay unresolved."""

    LOCAL = "local"
    GLOBAL = "global"
    WEAK = "weak"
    UNIQUE = "unique"  # STB_GNU_UNIQUE, one per process
    OTHER = "other"


_BINDINGS = {0: Binding.LOCAL, 1: Binding.GLOBAL, 2: Binding.WEAK, 10: Binding.UNIQUE}


@dataclass(frozen=True, slots=True, order=True)
class VersionNeed:
    """One symbol version a library needs: ``GLIBC_2.34`` of ``libc.so.6``."""

    library: str
    version: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """One dynamic symbol.

    Attributes:
        name: mangled, as the file has it.
        version: the version it needs or is defined under; empty when it has none.
        library: for an undefined symbol with a version, the library to bring it.
        binding: global, weak and so on.
        defined: this library has it.
        exported: others can bind to it: defined, not local, visible.
        default: unversioned references bind to it too (``name@@version``).
    """

    name: str
    version: str
    library: str
    binding: Binding
    defined: bool
    exported: bool
    default: bool

    @property
    def weak(self) -> bool:
        """It may stay unresolved."""
        return self.binding is Binding.WEAK


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """What PT_DYNAMIC says.

    Attributes:
        soname: DT_SONAME or empty.
        needed: DT_NEEDED, in file order.
        search_paths: DT_RPATH and DT_RUNPATH with which of the two, in file order.
        also_loads: libraries that other tags load, with the tag (``AUDIT``, ``FILTER``).
        version_needs: sorted.
        versions_defined: names, the library's own base version left out; sorted.
        symbols: in table order, the empty one left out.
    """

    soname: str
    needed: tuple[str, ...]
    search_paths: tuple[tuple[str, str], ...]
    also_loads: tuple[tuple[str, str], ...]
    version_needs: tuple[VersionNeed, ...]
    versions_defined: tuple[str, ...]
    symbols: tuple[Symbol, ...]


def read_dynamic_segment(
    region: Region, header: Header, sections: Sequence[Section], segments: Sequence[Segment]
) -> Dynamic | None:
    """Read the dynamic segment; None when the file has none.

    Raises:
        ArtifactError: it is damaged, or states one thing twice in two ways.
    """
    # Like glibc's loader: one without bytes is that of a debug companion, which has none left.
    found = [s for s in segments if s.kind == PT_DYNAMIC and s.size]
    if not found:
        return None
    if len(found) > 1:
        raise unreadable(region.name, "it has two dynamic segments")
    image = _Image(region, tuple(s for s in segments if s.kind == PT_LOAD and s.size))
    if image.offset(found[0].address, "the dynamic segment") != found[0].offset:
        raise unreadable(region.name, "its dynamic segment is not where the loader looks for it")
    one: dict[int, int] = {}
    many: list[tuple[int, int]] = []
    for tag, value in _tags(image, header, found[0].offset):
        if tag in _MANY:
            many.append((tag, value))
        elif one.setdefault(tag, value) != value:
            raise unreadable(region.name, f"it has the dynamic tag {tag:#x} twice, with two values")
    strings = Strings(region.name, b"")
    if STRTAB in one:
        offset = image.offset(one[STRTAB], "the dynamic string table")
        strings = strings_at(region, offset, one.get(STRSZ, 0))
    needs = dict(_version_needs(image, header, strings, one))
    defined = dict(_version_definitions(image, header, strings, one))
    return Dynamic(
        soname=strings.at(one[SONAME]) if SONAME in one else "",
        needed=tuple(strings.at(v) for t, v in many if t == NEEDED),
        search_paths=tuple(
            ("RPATH" if t == RPATH else "RUNPATH", strings.at(v))
            for t, v in many
            if t in (RPATH, RUNPATH)
        ),
        also_loads=tuple((_ALSO[t], strings.at(v)) for t, v in many if t in _ALSO),
        version_needs=tuple(sorted(set(needs.values()))),
        versions_defined=tuple(sorted({name for name, base in defined.values() if not base})),
        symbols=tuple(_symbols(image, header, sections, strings, one, needs, defined)),
    )


@dataclass(frozen=True, slots=True)
class _Image:
    """The file as the loader maps it."""

    region: Region
    loads: tuple[Segment, ...]

    def offset(self, address: int, what: str) -> int:
        """Where in the file the byte of that address is."""
        places = [s for s in self.loads if s.address <= address < s.address + s.size]
        if len(places) != 1:
            which = "no segment" if not places else f"{len(places)} segments at once"
            raise unreadable(
                self.region.name, f"{what} is in {which} that the loader maps", f"at {address:#x}"
            )
        return places[0].offset + address - places[0].address


def _tags(image: _Image, header: Header, offset: int) -> Iterator[tuple[int, int]]:
    """Tag and value of each dynamic entry, up to DT_NULL wherever it is.

    The segment's size is no end: the loader does not look at it.
    """
    layout = dynamic_layout(header)
    for index in range(MAX_NAMED):
        at = offset + index * layout.size
        tag, value = image.region.unpack(layout, at, "the dynamic segment")
        if tag == 0:
            return
        yield tag, value
    raise unreadable(image.region.name, f"it has more than {MAX_NAMED} dynamic tags")


def _version_needs(
    image: _Image, header: Header, strings: Strings, tags: dict[int, int]
) -> Iterator[tuple[int, VersionNeed]]:
    """Version index as symbols carry it -> what it stands for."""
    if VERNEED not in tags:
        return
    region = image.region
    need = struct.Struct(header.order + "HHIII")
    version = struct.Struct(header.order + "IHHII")
    offset = image.offset(tags[VERNEED], "the table of version needs")
    total = 0
    for _ in range(min(tags.get(VERNEEDNUM, 0), MAX_NAMED)):
        _, count, name, first, following = region.unpack(need, offset, "a version need")
        at = offset + first
        for _ in range(count):
            total += 1
            if total > MAX_NAMED:  # tables may share entries, so counts alone bound nothing
                raise unreadable(region.name, f"it needs more than {MAX_NAMED} versions")
            _, _, index, text, step = region.unpack(version, at, "a version need")
            yield index & 0x7FFF, VersionNeed(strings.at(name), strings.at(text))
            at += step
        if following == 0:
            return
        offset += following


def _version_definitions(
    image: _Image, header: Header, strings: Strings, tags: dict[int, int]
) -> Iterator[tuple[int, tuple[str, bool]]]:
    """Version index -> its name, and whether it is the library's own base version."""
    if VERDEF not in tags:
        return
    region = image.region
    definition = struct.Struct(header.order + "HHHHIII")
    name = struct.Struct(header.order + "II")
    offset = image.offset(tags[VERDEF], "the table of versions")
    for _ in range(min(tags.get(VERDEFNUM, 0), MAX_NAMED)):
        _, flags, index, _, _, first, following = region.unpack(definition, offset, "a version")
        text, _ = region.unpack(name, offset + first, "a version")
        yield index & 0x7FFF, (strings.at(text), bool(flags & 1))
        if following == 0:
            return
        offset += following


def _symbols(
    image: _Image,
    header: Header,
    sections: Sequence[Section],
    strings: Strings,
    tags: dict[int, int],
    needs: dict[int, VersionNeed],
    defined: dict[int, tuple[str, bool]],
) -> Iterator[Symbol]:
    if SYMTAB not in tags:
        return
    region = image.region
    count = _count(image, header, sections, tags)
    if count > MAX_SYMBOLS:
        raise unreadable(region.name, f"{count} symbols are too many")
    offset = image.offset(tags[SYMTAB], "the dynamic symbol table")
    versions: Sequence[int] = ()
    if VERSYM in tags:
        at = image.offset(tags[VERSYM], "the table of symbol versions")
        raw = region.read(at, 2 * count, "the table of symbol versions", most=2 * MAX_SYMBOLS)
        versions = struct.unpack(f"{header.order}{count}H", raw)
    for index, symbol in enumerate(read_symbols(region, header, offset, count)):
        if index == 0:
            continue
        here = symbol.section != SHN_UNDEF
        number = versions[index] if versions else 1
        version = library = ""
        if (own := number & 0x7FFF) > 1:  # 0 is local, 1 the base version
            # A program's copy of a library's variable is defined under a version it needs.
            if own in defined and (here or own not in needs):
                version = defined[own][0]
            elif own in needs:
                version, library = needs[own].version, needs[own].library
            else:
                raise unreadable(region.name, f"a symbol has the version {number}, which is none")
        binding = _BINDINGS.get(symbol.binding, Binding.OTHER)
        yield Symbol(
            name=strings.at(symbol.name),
            version=version,
            library=library,
            binding=binding,
            defined=here,
            # STV_DEFAULT and STV_PROTECTED can be seen from outside, the other two cannot.
            exported=here and binding is not Binding.LOCAL and symbol.other & 3 in (0, 3),
            default=number & 0x8000 == 0,
        )


def _count(image: _Image, header: Header, sections: Sequence[Section], tags: dict[int, int]) -> int:
    """How many dynamic symbols there are: no tag says so.

    The section says it; its word is taken when the hash tables, by which the loader finds what a
    library defines, do not lead beyond it.
    """
    region = image.region
    hashed = 0
    if HASH in tags:
        layout = struct.Struct(header.order + "II")
        hashed = region.unpack(layout, image.offset(tags[HASH], "DT_HASH"), "DT_HASH")[1]
    if GNU_HASH in tags:
        hashed = max(hashed, _gnu_hash_count(image, header, tags[GNU_HASH]))
    stated = [
        s.size // symbol_size(header)
        for s in sections
        if s.kind == SHT_DYNSYM and s.address == tags[SYMTAB]
    ]
    if stated and stated[0] >= hashed:
        return stated[0]
    if stated:
        raise unreadable(
            region.name,
            "its sections hide dynamic symbols",
            f"by .dynsym {stated[0]}, by hash table {hashed}",
        )
    # Without sections: string tables follow symbol tables with every linker there is.
    between = tags.get(STRTAB, 0) - tags[SYMTAB]
    if between > 0 and between % symbol_size(header) == 0:
        return max(hashed, between // symbol_size(header))
    if hashed:
        return hashed
    raise unreadable(region.name, "nothing says how many dynamic symbols it has")


def _gnu_hash_count(image: _Image, header: Header, address: int) -> int:
    """The number of symbols a GNU hash table leads to, undefined ones before them included."""
    region = image.region
    offset = image.offset(address, "DT_GNU_HASH")
    buckets, first, blooms, _ = region.unpack(
        struct.Struct(header.order + "4I"), offset, "DT_GNU_HASH"
    )
    at = offset + 16 + blooms * (header.bits // 8)
    raw = region.read(at, 4 * buckets, "DT_GNU_HASH", most=4 * MAX_SYMBOLS)
    last = max(struct.unpack(f"{header.order}{buckets}I", raw), default=0)
    if last < first:
        return first
    chain = at + 4 * buckets
    word = struct.Struct(header.order + "I")
    for index in range(last, MAX_SYMBOLS):
        # The chain of the last bucket ends with the last symbol: its lowest bit is set.
        if region.unpack(word, chain + 4 * (index - first), "DT_GNU_HASH")[0] & 1:
            return index + 1
    raise unreadable(region.name, "its hash table has no end")

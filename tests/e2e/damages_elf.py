"""Changes the bytes of a library: names, versions, dynamic tags, segments, sections.

64 bits, little-endian, as every library of a wheel for Linux x86_64 (System V ABI, "Object Files").
Names that are longer than what they replace need room: the dynamic string table is moved to the
file's end, and a note's segment becomes the one that loads it, as patchelf does it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_DYNAMIC = struct.Struct("<qQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NEED = struct.Struct("<HHIII")
_VERSION = struct.Struct("<IHHII")

NULL, NEEDED, STRTAB, STRSZ, SONAME, RPATH, RUNPATH = 0, 1, 5, 10, 14, 15, 29
AUDIT = 0x6FFFFEFC
PT_NULL, PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_STACK = 0, 1, 2, 4, 0x6474E551
PROGBITS, SYMTAB, STRINGS = 1, 2, 3
_PAGE = 4096
_ROOM = 4096  # bytes for new names


class Library:
    """A library in memory, to be changed; ``data`` is what it has become."""

    def __init__(self, data: bytes) -> None:
        assert data[:6] == b"\x7fELF\x02\x01", "no library of 64 bits, little-endian"
        self.data = bytearray(data)
        self._free = 0  # where the next new name goes, once there is room for any

    # --- segments and sections -----------------------------------------------------------------

    def segment(self, kind: int) -> int:
        """Offset of the first program header of a kind."""
        return next(at for at in self.segments() if self._unpack("<I", at) == kind)

    def set_segment(self, kind: int, *, to: int | None = None, flags: int | None = None) -> None:
        """Give the first program header of a kind another kind, or other flags."""
        at = self.segment(kind)
        if to is not None:
            struct.pack_into("<I", self.data, at, to)
        if flags is not None:
            struct.pack_into("<I", self.data, at + 4, flags)

    def section(self, name: str) -> int:
        """Offset of the section header of a name."""
        return next(at for at, found in self._sections() if found == name)

    def contents(self, name: str) -> range:
        """Offsets of a section's bytes."""
        _, _, _, _, offset, size, *_ = _SECTION.unpack_from(self.data, self.section(name))
        return range(offset, offset + size)

    def add_section(self, name: str, kind: int, content: bytes, *, link: str = "") -> None:
        """Append a section that nothing loads; the section table moves to the file's end."""
        at_names = self.section(".shstrtab")
        old = self.contents(".shstrtab")
        names = bytes(self.data[old.start : old.stop]) + name.encode() + b"\0"
        struct.pack_into("<QQ", self.data, at_names + 24, self._append(names), len(names))
        entry = _SYMBOL.size if kind == SYMTAB else 0
        fields = (kind, 0, 0, self._append(content), len(content), self._index(link), 1, 8, entry)
        table = self.headers()
        headers = bytes(self.data[table.start : table.stop]) + _SECTION.pack(len(old), *fields)
        struct.pack_into("<Q", self.data, 40, self._append(headers))
        struct.pack_into("<H", self.data, 60, len(table) + 1)

    def _index(self, name: str) -> int:
        return [found for _, found in self._sections()].index(name)

    def segments(self) -> range:
        """Offsets of the program headers."""
        (table,) = struct.unpack_from("<Q", self.data, 32)
        (count,) = struct.unpack_from("<H", self.data, 56)
        return range(table, table + count * _SEGMENT.size, _SEGMENT.size)

    def headers(self) -> range:
        """Offsets of the section headers."""
        (table,) = struct.unpack_from("<Q", self.data, 40)
        (count,) = struct.unpack_from("<H", self.data, 60)
        return range(table, table + count * _SECTION.size, _SECTION.size)

    def _sections(self) -> Iterator[tuple[int, str]]:
        (names,) = struct.unpack_from("<H", self.data, 62)
        (start,) = struct.unpack_from("<Q", self.data, self.headers()[names] + 24)
        for at in self.headers():
            yield at, self._text(start + self._unpack("<I", at))

    # --- what the loader reads -----------------------------------------------------------------

    def tags(self) -> Iterator[tuple[int, int, int]]:
        """Offset, tag and value of each dynamic entry."""
        _, _, start, _, _, size, _, _ = _SEGMENT.unpack_from(self.data, self.segment(PT_DYNAMIC))
        for at in range(start, start + size, _DYNAMIC.size):
            tag, value = _DYNAMIC.unpack_from(self.data, at)
            if tag == NULL:
                return
            yield at, tag, value

    def add_tag(self, tag: int, text: str) -> None:
        """Write a tag into the padding that linkers leave behind the last one."""
        name = self.string(text)
        last = [at for at, *_ in self.tags()][-1] + _DYNAMIC.size
        _, _, start, _, _, size, _, _ = _SEGMENT.unpack_from(self.data, self.segment(PT_DYNAMIC))
        assert last + 2 * _DYNAMIC.size <= start + size, "no room for another dynamic tag"
        _DYNAMIC.pack_into(self.data, last, tag, name)

    def set_needed(self, old: str, new: str) -> None:
        """Make one NEEDED entry name another library."""
        (at,) = (a for a, t, v in self.tags() if t == NEEDED and self._name(v) == old)
        _DYNAMIC.pack_into(self.data, at, NEEDED, self.string(new))

    def rename(self, beginning: str, new: str) -> None:
        """Make it import ``new`` in the place of the first import that begins so.

        Only one that asks for no version is taken; no hash table leads to what is not defined.
        """
        symbols, versions = self.contents(".dynsym"), self.contents(".gnu.version")
        for index, at in enumerate(range(symbols.start, symbols.stop, _SYMBOL.size)):
            name, _, _, section, _, _ = _SYMBOL.unpack_from(self.data, at)
            version = self._unpack("<H", versions.start + 2 * index) & 0x7FFF
            if section == 0 and version < 2 and self._name(name).startswith(beginning):
                struct.pack_into("<I", self.data, at, self.string(new))
                return
        raise AssertionError(f"no import begins with {beginning}")

    def set_version(self, library: str, new: str, *, of: str = "") -> None:
        """Make it need version ``new`` of a library in the place of the first version it needs.

        Args:
            library: the one it names.
            new: the version.
            of: another library that it is to name.
        """
        header = _SECTION.unpack_from(self.data, self.section(".gnu.version_r"))
        at = header[4]
        for _ in range(header[7]):
            _, _, file, first, step = _NEED.unpack_from(self.data, at)
            if self._name(file) == library:
                hashed, name = _hash(new), self.string(new)
                struct.pack_into("<I", self.data, at + first, hashed)
                struct.pack_into("<I", self.data, at + first + 8, name)
                if of:
                    struct.pack_into("<I", self.data, at + 4, self.string(of))
                return
            at += step
        raise AssertionError(f"no version of {library} is needed")

    def string(self, text: str) -> int:
        """Offset of a new name in the dynamic string table."""
        if not self._free:
            self._move_strings()
        table = self.contents(".dynstr")
        data = text.encode() + b"\0"
        assert self._free + len(data) <= table.stop, "no room for another name"
        at = self._free
        self.data[at : at + len(data)] = data
        self._free += len(data)
        return at - table.start

    def _move_strings(self) -> None:
        old = self.contents(".dynstr")
        size = len(old) + _ROOM
        place = self._append(bytes(self.data[old.start : old.stop]) + bytes(_ROOM), _PAGE)
        self._free = place + len(old)
        loads = [_SEGMENT.unpack_from(self.data, at) for at in self.segments()]
        end = max(s[3] + s[6] for s in loads if s[0] == PT_LOAD)
        address = -(-end // _PAGE) * _PAGE
        note = self.segment(PT_NOTE)
        _SEGMENT.pack_into(self.data, note, PT_LOAD, 4, place, address, address, size, size, _PAGE)
        struct.pack_into("<QQQ", self.data, self.section(".dynstr") + 16, address, place, size)
        for at, tag, _ in list(self.tags()):
            if tag in (STRTAB, STRSZ):
                _DYNAMIC.pack_into(self.data, at, tag, address if tag == STRTAB else size)

    # --- bytes ---------------------------------------------------------------------------------

    def replace(self, old: bytes, new: bytes) -> None:
        """Write ``new`` wherever ``old`` is; they are of one length."""
        assert len(old) == len(new)
        assert old in self.data
        self.data = self.data.replace(old, new)

    def _append(self, content: bytes, align: int = 8) -> int:
        self.data.extend(bytes(-len(self.data) % align))
        at = len(self.data)
        self.data += content
        return at

    def _name(self, offset: int) -> str:
        return self._text(self.contents(".dynstr").start + offset)

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()

    def _unpack(self, layout: str, at: int) -> int:
        (value,) = struct.unpack_from(layout, self.data, at)
        return int(value)


def debugging_symbol() -> bytes:
    """A symbol table whose one symbol is a source file, named at offset 1 of its strings."""
    file = _SYMBOL.pack(1, 4, 0, 0xFFF1, 0, 0)  # STB_LOCAL, STT_FILE, SHN_ABS
    return bytes(_SYMBOL.size) + file


def without_device_code(data: bytes) -> bytes:
    """The library with the section of device code cut short and empty, and all else as it was."""
    library = Library(data)
    code = library.contents(".nv_fatbin")
    start, stop = -(-code.start // _PAGE) * _PAGE, code.stop // _PAGE * _PAGE
    cut = max(0, stop - start)
    tables = ((library.segments(), 8, 32), (library.headers(), 24, 32))
    for places, at_offset, at_size in tables:
        for at in places:
            (offset,) = struct.unpack_from("<Q", library.data, at + at_offset)
            (size,) = struct.unpack_from("<Q", library.data, at + at_size)
            if offset >= code.stop:
                struct.pack_into("<Q", library.data, at + at_offset, offset - cut)
            elif offset <= code.start and offset + size >= code.stop:
                struct.pack_into("<Q", library.data, at + at_size, size - cut)
    (table,) = struct.unpack_from("<Q", library.data, 40)
    struct.pack_into("<Q", library.data, 40, table - cut)
    library.data[code.start : code.stop] = bytes(len(code) - cut)
    return bytes(library.data)


def _hash(name: str) -> int:
    """The hash of a version's name (System V ABI, "Hash Table")."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value

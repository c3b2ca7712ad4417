from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from inspect_kit import NOBITS, NOTE, Sec, Sym, elf_of, make_elf, note
from wheelkit import DEVICE_CODE, EXTENSION, compile_library, host_strip, needs_gcc

from pinwheel.build.elf import read_library
from pinwheel.errors import ArtifactError
from pinwheel.inspect.elf import Binding, VersionNeed, read_elf
from pinwheel.inspect.region import Region, open_region

LIBC = ("libc.so.6", "GLIBC_2.34")
CXX = ("libstdc++.so.6", "GLIBCXX_3.4.29")
WHOLE = make_elf(
    needed=["libtorch.so", "libc.so.6"],
    soname="_C.so",
    tags=[(15, "/opt/lib"), (29, "$ORIGIN/x"), (0x6FFFFEFC, "libaudit.so")],
    symbols=[
        Sym("PyInit__C", defined=True),
        Sym("getpid", version=LIBC),
        Sym("_ZSt4cout", version=CXX),
        Sym("optional", weak=True),
        Sym("hidden", defined=True, other=2),
    ],
    sections=[
        Sec(".nv_fatbin", bytes(40)),
        Sec(".note.gnu.build-id", note(b"GNU\0", 3, bytes(range(20))), NOTE, align=4),
        Sec(".bss", bytes(500), NOBITS),
    ],
)


def test_what_a_library_says() -> None:
    elf = elf_of(WHOLE)
    assert (elf.machine, elf.type, elf.bits, elf.little_endian) == ("EM_X86_64", "ET_DYN", 64, True)
    assert elf.kind == "extension"
    assert elf.soname == "_C.so"
    assert elf.needed == ("libtorch.so", "libc.so.6")
    assert elf.search_paths == (("RPATH", "/opt/lib"), ("RUNPATH", "$ORIGIN/x"))
    assert (elf.rpath, elf.runpath) == (("/opt/lib",), ("$ORIGIN/x",))
    assert elf.also_loads == (("AUDIT", "libaudit.so"),)
    assert elf.version_needs == (VersionNeed(*LIBC), VersionNeed(*CXX))
    assert elf.device_code == 40
    assert elf.build_id == bytes(range(20)).hex()
    assert not elf.executable_stack
    assert not elf.symbol_table
    assert elf.interpreter == ""
    assert {s.name for s in elf.sections} >= {".nv_fatbin", ".bss", ".dynsym"}


def test_symbols_have_version_binding_and_library() -> None:
    elf = elf_of(WHOLE)
    by_name = {s.name: s for s in elf.symbols}
    assert [s.name for s in elf.undefined] == ["_ZSt4cout", "getpid", "optional"]
    assert (by_name["getpid"].version, by_name["getpid"].library) == (LIBC[1], LIBC[0])
    assert elf.symbols_of("GLIBCXX_3.4.29") == ("_ZSt4cout",)
    assert by_name["optional"].weak
    assert by_name["optional"].version == ""
    assert by_name["getpid"].binding is Binding.GLOBAL
    assert [s.name for s in elf.exported] == ["PyInit__C"]
    assert by_name["hidden"].defined


@pytest.mark.parametrize(("stack", "executable"), [(6, False), (7, True), (None, True)])
def test_the_stack(stack: int | None, executable: bool) -> None:
    assert elf_of(make_elf(stack=stack)).executable_stack is executable


def test_a_file_without_dynamic_segment_needs_nothing() -> None:
    elf = elf_of(make_elf(dynamic=False, kind=1))
    assert not elf.dynamic
    assert (elf.needed, elf.symbols, elf.type) == ((), (), "ET_REL")


def test_an_unknown_machine_keeps_its_number() -> None:
    assert elf_of(make_elf(machine=60000)).machine == "EM_60000"


# --- against other readers ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    where = tmp_path_factory.mktemp("elf")
    plain = compile_library(where / "_C.abi3.so", EXTENSION)
    stripped = where / "stripped.so"
    shutil.copy(plain, stripped)
    host_strip([stripped])
    odd = compile_library(
        where / "odd.so", DEVICE_CODE, "-Wl,-rpath,/opt/env/lib", "-z", "execstack",
        "-Wl,-soname,odd.so.1", "-Wl,--hash-style=gnu",
    )  # fmt: skip
    return [plain, stripped, odd]


@needs_gcc
def test_the_build_s_own_reader_sees_the_same(compiled: list[Path]) -> None:
    for path in compiled:
        old = read_library(path, f"pack/{path.name}")
        with open_region(path, f"pack/{path.name}") as region:
            new = read_elf(region)
        for field in (
            "name", "machine", "kind", "soname", "needed", "search_paths", "executable_stack",
            "symbol_table", "device_code", "isa",
        ):  # fmt: skip
            assert getattr(new, field) == getattr(old, field), field
        assert [(n.library, n.version) for n in new.version_needs] == [
            (n.library, n.version) for n in old.version_needs
        ]
        assert [(s.name, s.version, s.weak) for s in new.undefined] == [
            (s.name, s.version, s.weak) for s in old.undefined
        ]
        assert sum(s.defined for s in new.symbols) == old.defined


@needs_gcc
def test_pyelftools_sees_the_same(compiled: list[Path]) -> None:
    for path in compiled:
        with open_region(path) as region:
            ours = read_elf(region)
        with path.open("rb") as file:
            theirs = ELFFile(file)
            table = theirs.get_section_by_name(".dynsym")
            assert isinstance(table, SymbolTableSection)
            assert [s.name for s in ours.symbols] == [s.name for s in table.iter_symbols()][1:]
            assert [s.name for s in ours.sections] == [s.name for s in theirs.iter_sections()][1:]
            dynamic = theirs.get_section_by_name(".dynamic")
            assert isinstance(dynamic, DynamicSection)
            tags: Any = dynamic.iter_tags("DT_NEEDED")  # their attributes depend on the tag
            assert list(ours.needed) == [t.needed for t in tags]


@needs_gcc
def test_build_id_and_interpreter_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "p"
    subprocess.run(
        ["gcc", "-x", "c", "-", "-o", program, "-Wl,--build-id=0x0123abcd"],
        input=b"int main(void) { return 0; }",
        check=True,
    )
    with open_region(program) as region:
        elf = read_elf(region)
    assert elf.build_id == "0123abcd"
    assert elf.interpreter.startswith("/")
    assert elf.kind == "library"


@needs_gcc
def test_a_debug_companion_is_read_as_what_is_left(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "_C.so", DEVICE_CODE)
    debug = tmp_path / "_C.debug"
    subprocess.run(["objcopy", "--only-keep-debug", library, debug], check=True)
    with open_region(debug) as region:
        elf = read_elf(region)
    assert elf.debug
    assert not elf.dynamic
    assert elf.device_code == 0


# --- damaged and hostile -----------------------------------------------------------------------


def patched(data: bytes, offset: int, layout: str, *values: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(layout, out, offset, *values)
    return bytes(out)


def section_at(data: bytes, name: str) -> int:
    """Offset of a section's header."""
    elf = elf_of(data)
    table = int(struct.unpack_from("<Q", data, 40)[0])
    return table + 64 * next(s.index for s in elf.sections if s.name == name)


def dynamic_at(data: bytes, tag: int) -> int:
    """Offset of a dynamic entry."""
    offset = next(s.offset for s in elf_of(data).sections if s.name == ".dynamic")
    while struct.unpack_from("<q", data, offset)[0] != tag:
        offset += 16
    return offset


def refused(data: bytes) -> str:
    with pytest.raises(ArtifactError) as caught:
        elf_of(data)
    return " / ".join((str(caught.value), *caught.value.evidence))


def test_no_elf_file() -> None:
    assert "no ELF file" in refused(b"PK\3\4" + bytes(100))
    assert "outside" in refused(b"")
    assert "class" in refused(patched(WHOLE, 4, "B", 3))


@pytest.mark.parametrize("size", [10, 63, 64, 200, len(WHOLE) // 2, len(WHOLE) - 1])
def test_a_file_that_was_cut_short(size: int) -> None:
    refused(WHOLE[:size])


def test_counts_beyond_reason() -> None:
    big = patched(
        patched(WHOLE, 60, "<H", 0), struct.unpack_from("<Q", WHOLE, 40)[0] + 32, "<Q", 1 << 60
    )
    assert "too many" in refused(big)
    assert "program header" in refused(patched(WHOLE, 54, "<H", 0))
    assert "section header" in refused(patched(WHOLE, 58, "<H", 0))


def test_a_section_outside_the_file() -> None:
    at = section_at(WHOLE, ".nv_fatbin")
    assert ".nv_fatbin lies outside" in refused(patched(WHOLE, at + 24, "<Q", 1 << 40))
    assert ".nv_fatbin lies outside" in refused(patched(WHOLE, at + 32, "<Q", 1 << 63))


def test_overlapping_sections() -> None:
    at, other = section_at(WHOLE, ".nv_fatbin"), section_at(WHOLE, ".dynstr")
    offset = struct.unpack_from("<Q", WHOLE, other + 24)[0]
    assert "overlap" in refused(patched(WHOLE, at + 24, "<Q", offset))


def test_a_name_without_end() -> None:
    at = section_at(WHOLE, ".dynstr")
    offset, size = struct.unpack_from("<QQ", WHOLE, at + 24)
    bad = bytearray(WHOLE)
    bad[offset : offset + size] = b"x" * size
    assert "no end" in refused(bytes(bad))
    assert "no end" in refused(patched(WHOLE, at, "<I", 1 << 30))


def test_names_that_repeat_each_other_beyond_measure() -> None:
    """A small file must not become a large one in memory."""
    tail = make_elf(symbols=[Sym("x" * 60000)] + [Sym("y") for _ in range(3000)])
    table = next(s.offset for s in elf_of(tail).sections if s.name == ".dynsym")
    for index in range(3000):  # the same long name, from another place each
        tail = patched(tail, table + 24 * (index + 1), "<I", 1 + index)
    assert "beyond measure" in refused(tail)


def test_tables_that_go_in_circles() -> None:
    needs = next(s.offset for s in elf_of(WHOLE).sections if s.name == ".gnu.version_r")
    assert "which is none" in refused(patched(WHOLE, needs + 12, "<I", 0))  # ends early
    many = patched(WHOLE, dynamic_at(WHOLE, 0x6FFFFFFF) + 8, "<Q", 1 << 60)
    # Each need has 65,535 versions that all are the first one.
    many = patched(many, needs + 2, "<H", 0xFFFF)
    many = patched(many, needs + 16 + 12, "<I", 0)
    assert "versions" in refused(many)


def test_a_dynamic_segment_without_end() -> None:
    at = dynamic_at(WHOLE, 0)
    section = next(s for s in elf_of(WHOLE).sections if s.name == ".dynamic")
    bad = bytearray(WHOLE)
    for offset in range(at, section.offset + section.size, 16):
        struct.pack_into("<qQ", bad, offset, 0x70000000, 7)
    elf = elf_of(bytes(bad))  # what follows it ends it, as for the loader
    assert elf.needed == ("libtorch.so", "libc.so.6")


def test_entries_behind_the_stated_end_count_as_for_the_loader() -> None:
    short = patched(WHOLE, 64 + 56 + 32, "<Q", 16)  # p_filesz of PT_DYNAMIC
    assert elf_of(short).needed == ("libtorch.so", "libc.so.6")


def test_a_dynamic_segment_in_two_places() -> None:
    assert "not where the loader" in refused(patched(WHOLE, 64 + 56 + 8, "<Q", 64))
    assert "no segment" in refused(patched(WHOLE, 64 + 56 + 16, "<Q", 1 << 40))
    twice = patched(WHOLE, dynamic_at(WHOLE, 0), "<qQ", 5, 64)
    assert "twice" in refused(twice)


def test_symbols_that_sections_hide() -> None:
    at = section_at(WHOLE, ".dynsym")
    assert "hide" in refused(patched(WHOLE, at + 32, "<Q", 24))
    # A loader does not miss the section table.
    bare = patched(patched(WHOLE, 40, "<Q", 0), 60, "<HH", 0, 0)
    elf = elf_of(bare)
    assert elf.sections == ()
    assert {s.name for s in elf.symbols} >= {"PyInit__C", "getpid"}


def test_a_symbol_version_that_is_none() -> None:
    versions = next(s.offset for s in elf_of(WHOLE).sections if s.name == ".gnu.version")
    assert "version 99" in refused(patched(WHOLE, versions + 4, "<H", 99))


def test_messages_show_no_control_characters() -> None:
    bad = make_elf(sections=[Sec("\x1b[2Jx", bytes(8)), Sec("y", bytes(8))])
    at = section_at(bad, "y")
    offset = next(s.offset for s in elf_of(bad).sections if s.name == "\x1b[2Jx")
    assert "\x1b" not in refused(patched(bad, at + 24, "<Q", offset))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6
    ),
    size=st.integers(0, len(WHOLE)),
    whole=st.booleans(),
)
@example(changes=[(60, 0), (61, 0)], size=0, whole=True)
def test_no_damage_ends_in_another_error(
    changes: list[tuple[int, int]], size: int, whole: bool
) -> None:
    data = bytearray(WHOLE)
    for offset, value in changes:
        data[offset] = value
    try:
        elf = elf_of(bytes(data if whole else data[:size]))
    except ArtifactError:
        return
    assert sum(len(s.name) for s in elf.symbols) < 1 << 20


@settings(max_examples=200, deadline=None)
@given(
    offset=st.integers(0, len(WHOLE) // 4 - 2),
    value=st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1]),
)
def test_no_size_ends_in_another_error(offset: int, value: int) -> None:
    try:
        elf_of(patched(WHOLE, offset * 4, "<Q", value))
    except ArtifactError:
        return


def test_a_region_ends_where_it_ends() -> None:
    region = Region.of(b"0123456789", "x").part(2, 5, "a part")
    assert region.read(0, 5, "all") == b"23456"
    assert b"".join(region.chunks(2)) == b"23456"
    for offset, size in ((-1, 1), (0, 6), (5, 1), (0, -1)):
        with pytest.raises(ArtifactError):
            region.read(offset, size, "too much")
    with pytest.raises(ArtifactError):
        region.read(0, 5, "more than asked", most=4)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(1000))
    with open_region(path) as region:
        path.write_bytes(b"")
        with pytest.raises(ArtifactError, match="shorter"):
            region.read(0, 1000, "all")


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / ("n" * 300)):
        with pytest.raises(ArtifactError), open_region(path):
            pass

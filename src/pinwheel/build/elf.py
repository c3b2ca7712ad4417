"""Reads what a finished wheel must know of its ELF libraries: needs, versions, flags, sections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from pinwheel.errors import WheelError
from pinwheel.inspect.operators import STUMBLES

MAGIC = b"\x7fELF"

# Bounds on what a damaged or hostile file can make us read. vLLM's largest library has fewer
# than 10,000 dynamic symbols, 20 dynamic tags and 10 sections of version needs.
MAX_SYMBOLS = 2_000_000
MAX_TAGS = 10_000
MAX_VERSIONS = 10_000

# Sections nvcc puts device code into (CUDA Binary Utilities, "CUDA binary").
FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")

# Instruction sets beyond the baseline, from GNU_PROPERTY_X86_ISA_1_NEEDED (x86-64 psABI,
# "Program Property"): bit 0 is the baseline itself.
_ISA_LEVELS = {1: "x86-64-v2", 2: "x86-64-v3", 3: "x86-64-v4"}


@dataclass(frozen=True, slots=True, order=True)
class VersionNeed:
    """One symbol version a library needs: ``GLIBC_2.34`` of ``libc.so.6``."""

    library: str
    version: str


@dataclass(frozen=True, slots=True)
class UndefinedSymbol:
    """A symbol some other library has to bring; ``version`` is empty when it has none."""

    name: str
    version: str
    weak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One ELF shared library, as read.

    Attributes:
        name: its path within the wheel.
        machine: the ELF machine, ``EM_X86_64`` say.
        kind: ``extension`` when it exports ``PyInit_<stem>``, else ``library``.
        soname: DT_SONAME or empty.
        needed: DT_NEEDED, in file order.
        search_paths: values of DT_RPATH and DT_RUNPATH, with which of the two.
        version_needs: sorted; of every library, also those that come from elsewhere.
        undefined: undefined dynamic symbols, sorted by name.
        defined: how many dynamic symbols it defines.
        executable_stack: PT_GNU_STACK is executable, or absent (the loader then assumes so).
        symbol_table: a full ``.symtab`` or DWARF is still there (not stripped).
        device_code: size in bytes of the sections that hold CUDA device code.
        isa: instruction-set levels it marks as needed, beyond the baseline.
    """

    name: str
    machine: str
    kind: Literal["extension", "library"]
    soname: str
    needed: tuple[str, ...]
    search_paths: tuple[tuple[str, str], ...]
    version_needs: tuple[VersionNeed, ...]
    undefined: tuple[UndefinedSymbol, ...]
    defined: int
    executable_stack: bool
    symbol_table: bool
    device_code: int
    isa: tuple[str, ...]

    def symbols_of(self, version: str) -> tuple[str, ...]:
        """Names of the undefined symbols that need ``version``."""
        return tuple(s.name for s in self.undefined if s.version == version)


def is_elf(path: Path) -> bool:
    """Whether the file starts as an ELF file does; the name decides nothing."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_library(path: Path, name: str) -> Library:
    """Read one shared library without running any of it.

    Args:
        path: the file.
        name: its path within the wheel, for messages and the result.

    Raises:
        WheelError: not a shared library, or damaged.
    """
    with path.open("rb") as file:
        try:
            return _read(file, name)
        except WheelError:
            raise
        except STUMBLES as error:
            raise _damaged(name, f"{type(error).__name__}: {error}") from error


def _damaged(name: str, why: str) -> WheelError:
    return WheelError(
        f"{name} in the wheel cannot be read as an ELF shared library",
        evidence=(why[:300],),
        next_step="Build the wheel again; a linker or strip that was killed leaves such files.",
    )


def _read(file: IO[bytes], name: str) -> Library:
    elf = ELFFile(file)
    if elf["e_type"] != "ET_DYN":
        raise _damaged(name, f"its ELF type is {elf['e_type']}, not ET_DYN")
    dynamic = next((s for s in elf.iter_segments() if isinstance(s, DynamicSegment)), None)
    if dynamic is None:
        raise _damaged(name, "it has no dynamic segment")

    needed: list[str] = []
    search: list[tuple[str, str]] = []
    soname = ""
    has_version_needs = False
    tags: Iterator[Any] = dynamic.iter_tags()  # their attributes depend on the tag
    for tag in islice(tags, MAX_TAGS):
        match tag.entry.d_tag:
            case "DT_NEEDED":
                needed.append(tag.needed)
            case "DT_RPATH":
                search.append(("RPATH", tag.rpath))
            case "DT_RUNPATH":
                search.append(("RUNPATH", tag.runpath))
            case "DT_SONAME":
                soname = tag.soname
            case "DT_VERNEED":
                has_version_needs = True

    sections = {s.name: s for s in elf.iter_sections()}
    needs = dict(_version_needs(sections.get(".gnu.version_r")))
    if has_version_needs and not needs:
        raise _damaged(name, "it needs symbol versions but has no section that lists them")
    undefined, defined, exports = _symbols(sections, needs)

    stack = [s for s in elf.iter_segments() if s["p_type"] == "PT_GNU_STACK"]
    stem = Path(name).name.split(".", 1)[0]
    return Library(
        name=name,
        machine=str(elf["e_machine"]),
        kind="extension" if f"PyInit_{stem}" in exports else "library",
        soname=soname,
        needed=tuple(needed),
        search_paths=tuple(search),
        version_needs=tuple(sorted(set(needs.values()))),
        undefined=undefined,
        defined=defined,
        executable_stack=not stack or any(s["p_flags"] & 1 for s in stack),
        symbol_table=any(s == ".symtab" or s.startswith(".debug_") for s in sections),
        device_code=sum(int(sections[s]["sh_size"]) for s in FATBIN_SECTIONS if s in sections),
        isa=_isa(sections.get(".note.gnu.property")),
    )


def _version_needs(section: Any) -> Iterator[tuple[int, VersionNeed]]:
    """Version index as symbols carry it -> what it stands for."""
    if not isinstance(section, GNUVerNeedSection):
        return
    for need, versions in islice(section.iter_versions(), MAX_VERSIONS):
        for version in islice(versions, MAX_VERSIONS):
            yield version["vna_other"], VersionNeed(str(need.name), str(version.name))


def _symbols(
    sections: dict[str, Any], needs: dict[int, VersionNeed]
) -> tuple[tuple[UndefinedSymbol, ...], int, set[str]]:
    table = sections.get(".dynsym")
    if not isinstance(table, SymbolTableSection):
        return (), 0, set()
    count = table.num_symbols()
    if count > MAX_SYMBOLS:
        raise ValueError(f"{count} dynamic symbols")
    versions = sections.get(".gnu.version")
    if not isinstance(versions, GNUVerSymSection):
        versions = None
    undefined: list[UndefinedSymbol] = []
    inits: set[str] = set()
    defined = 0
    for index, symbol in enumerate(table.iter_symbols()):
        if index == 0:  # the null symbol
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            defined += 1
            if symbol.name.startswith("PyInit_"):
                inits.add(symbol.name)
            continue
        need = None
        if versions is not None:
            number = versions.get_symbol(index)["ndx"]
            need = needs.get(number & 0x7FFF) if isinstance(number, int) else None
        undefined.append(
            UndefinedSymbol(
                symbol.name,
                need.version if need else "",
                symbol["st_info"]["bind"] == "STB_WEAK",
            )
        )
    return tuple(sorted(undefined, key=lambda s: (s.name, s.version))), defined, inits


def _isa(section: Any) -> tuple[str, ...]:
    if section is None or not hasattr(section, "iter_notes"):
        return ()
    levels: set[str] = set()
    for note in islice(section.iter_notes(), MAX_TAGS):
        if note["n_type"] != "NT_GNU_PROPERTY_TYPE_0":
            continue
        for prop in note["n_desc"]:
            if prop["pr_type"] != "GNU_PROPERTY_X86_ISA_1_NEEDED":
                continue
            bits = int(prop["pr_data"])
            levels.update(text for bit, text in _ISA_LEVELS.items() if bits >> bit & 1)
    return tuple(sorted(levels))

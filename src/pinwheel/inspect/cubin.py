"""Reads what a cubin and a PTX text say of themselves: target, toolkit, kernels.

A cubin is an ELF file for EM_CUDA. Where it states its target depends on its ABI version, seen in
the output of ptxas 9.0 to 13.5: ABI 7 has the architecture in the lowest byte of e_flags, 0x800
for the ``a`` variant and the toolkit in e_version; ABI 8 has it in the second byte, the variant in
``.nv.compat`` and the toolkit in a note. PTX is text (PTX ISA, ".version", ".target", ".entry").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinwheel.inspect.elf import read_notes
from pinwheel.inspect.elf_format import (
    SHN_UNDEF,
    SHT_STRTAB,
    SHT_SYMTAB,
    STT_FUNC,
    Header,
    Section,
    read_header,
    read_sections,
    read_symbols,
    strings_at,
    symbol_size,
)
from pinwheel.inspect.region import Region, unreadable
from pinwheel.matrix.capability import Capability, Variant

EM_CUDA = 190
ET_REL = 1
STO_CUDA_ENTRY = 0x10  # in st_other: a kernel, not a function that kernels call
MAX_PTX = 256 << 20  # bytes

_TOOLKIT_NOTE = 2000  # type of the note in .note.nv.tkinfo
_RELEASE = re.compile(rb"release ([0-9]{1,3}\.[0-9]{1,3})[,\s]")
_COMPAT_ACCELERATOR = 9  # attribute of .nv.compat: code for one architecture only

# Comments and strings are tokens of their own so that nothing in them counts. Each alternative
# ends or takes the rest, so the text is gone through once.
_PTX_TOKEN = re.compile(
    rb"//[^\n]*"
    rb"|/\*(?:.*?\*/|.*\Z)"
    rb'|"(?:[^"\\]++|\\.?)*+(?:"|\Z)'
    rb"|\.(?:version\s+(?P<major>[0-9]{1,3})\.(?P<minor>[0-9]{1,3})"
    rb"|target\s+sm_(?P<arch>[0-9]{2,3})(?P<variant>[af]?)\b"
    rb"|entry\s+(?P<kernel>[a-zA-Z_$%][\w$]*))",
    re.DOTALL,
)
_VARIANTS: dict[bytes, Variant] = {b"": "", b"a": "a", b"f": "f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """What a cubin says of itself.

    Attributes:
        abi: ABI version, 7 or 8.
        architecture: 90 for capability 9.0.
        accelerated: for one architecture only (``sm_90a``); None when it does not say.
        toolkit: CUDA release of the compiler, ``12.4``; empty when it does not say.
        relocatable: still to be linked.
        kernels: names, mangled, sorted.
    """

    abi: int
    architecture: int
    accelerated: bool | None
    toolkit: str
    relocatable: bool
    kernels: tuple[str, ...]

    def agrees(self, capability: Capability) -> bool:
        """Whether it is what an entry for ``capability`` has to be.

        Nothing in a cubin tells a family variant from plain code.
        """
        number = 10 * capability.major + capability.minor
        same = self.accelerated is None or self.accelerated == (capability.variant == "a")
        return number == self.architecture and same


@dataclass(frozen=True, slots=True, kw_only=True)
class Ptx:
    """What a PTX text says of itself.

    Attributes:
        isa: version of the PTX ISA.
        target: the capability it is for.
        kernels: names, mangled, sorted.
    """

    isa: tuple[int, int]
    target: Capability
    kernels: tuple[str, ...]


def read_cubin(file: Region) -> Cubin:
    """Read a cubin.

    Raises:
        ArtifactError: it is damaged, no cubin, or of an ABI version that is not known.
    """
    header = read_header(file)
    if header.machine != EM_CUDA:
        raise unreadable(file.name, f"a cubin in it is for {header.machine_name}")
    sections = read_sections(file, header)
    accelerated: bool | None
    match header.os_abi, header.abi_version:
        case 0x33, 7:
            architecture = header.flags & 0xFF
            accelerated = bool(header.flags & 0x800)
            major, minor = divmod(header.version, 10)
            toolkit = f"{major}.{minor}" if major else ""
        case 0x41, 8:
            architecture = header.flags >> 8 & 0xFF
            accelerated = _accelerated(file, sections)
            toolkit = _toolkit(file, header, sections)
        case os_abi, version:
            raise unreadable(file.name, f"a cubin has the ABI {os_abi:#x} version {version}")
    return Cubin(
        abi=header.abi_version,
        architecture=architecture,
        accelerated=accelerated,
        toolkit=toolkit,
        relocatable=header.type == ET_REL,
        kernels=_kernels(file, header, sections),
    )


def _kernels(file: Region, header: Header, sections: tuple[Section, ...]) -> tuple[str, ...]:
    by_index = {s.index: s for s in sections}
    names: set[str] = set()
    for table in sections:
        if table.kind != SHT_SYMTAB:
            continue
        strings = by_index.get(table.link)
        if strings is None or strings.kind != SHT_STRTAB:
            raise unreadable(file.name, "a cubin's symbols have no names")
        text = strings_at(file, strings.offset, strings.size)
        count = table.size // symbol_size(header)
        for name, info, other, section, _, _ in read_symbols(file, header, table.offset, count):
            # As RawSymbol.kind, without a call for each of the hundred thousands.
            if info & 0xF == STT_FUNC and other & STO_CUDA_ENTRY and section != SHN_UNDEF:
                names.add(text.at(name))
    return tuple(sorted(names))


def _accelerated(file: Region, sections: tuple[Section, ...]) -> bool | None:
    """Attribute 9 of ``.nv.compat``; None when it is not there.

    The section is a row of attributes: format, number, then 16 bits, or for format 4 so many
    bytes.
    """
    for section in sections:
        if section.name != ".nv.compat" or not section.in_file:
            continue
        data = file.read(section.offset, section.size, "a cubin's attributes")
        at = 0
        while at + 4 <= len(data):
            form, number, value = data[at], data[at + 1], data[at + 2] | data[at + 3] << 8
            if form != 4 and number == _COMPAT_ACCELERATOR:
                return bool(value)
            at += 4 + (value if form == 4 else 0)
    return None


def _toolkit(file: Region, header: Header, sections: tuple[Section, ...]) -> str:
    for section in sections:
        if section.name == ".note.nv.tkinfo" and section.in_file:
            data = file.read(section.offset, section.size, "a cubin's note")
            for owner, kind, content in read_notes(data, header.order, 4):
                if owner.startswith(b"NVIDIA") and kind == _TOOLKIT_NOTE:
                    match = _RELEASE.search(content)
                    return match[1].decode() if match else ""
    return ""


def read_ptx(file: Region) -> Ptx:
    """Read a PTX text.

    Raises:
        ArtifactError: it does not state its version and target, once each.
    """
    text = file.read(0, file.size, "a PTX text", most=MAX_PTX)
    if b"\0" in text.rstrip(b"\0"):  # the driver's text ends there, another reader's does not
        raise unreadable(file.name, "a PTX text has a NUL within it")
    versions: set[tuple[int, int]] = set()
    targets: set[Capability] = set()
    kernels: set[str] = set()
    for token in _PTX_TOKEN.finditer(text):
        if token["kernel"] is not None:
            kernels.add(token["kernel"].decode("ascii"))
        elif token["major"] is not None:
            versions.add((int(token["major"]), int(token["minor"])))
        elif token["arch"] is not None:
            major, minor = divmod(int(token["arch"]), 10)
            if major == 0:
                raise unreadable(file.name, f"a PTX text is for sm_{minor}")
            targets.add(Capability(major, minor, _VARIANTS[token["variant"]]))
    if len(versions) != 1 or len(targets) != 1:
        raise unreadable(
            file.name,
            "a PTX text does not state one version and one target",
            f"versions: {sorted(versions)[:5]}",
            f"targets: {' '.join(str(t) for t in sorted(targets)[:5])}",
        )
    return Ptx(isa=versions.pop(), target=targets.pop(), kernels=tuple(sorted(kernels)))

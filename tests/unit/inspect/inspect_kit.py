"""Small artifacts for the tests of readers, put together byte by byte."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lz4.block
import zstandard

from pinwheel.inspect.elf import Elf, read_elf
from pinwheel.inspect.fatbin import FatbinEntry, read_fatbins
from pinwheel.inspect.region import Region

DATA = Path(__file__).parent / "data"
PROGBITS, SYMTAB, STRTAB, HASH, DYNAMIC, NOTE, NOBITS, DYNSYM = 1, 2, 3, 5, 6, 7, 8, 11
VERSYM, VERNEED = 0x6FFFFFFF, 0x6FFFFFFE
ALLOC = 2


@dataclass
class Sym:
    """A dynamic symbol to write; ``version`` is (library, name) of a need."""

    name: str
    defined: bool = False
    weak: bool = False
    version: tuple[str, str] | None = None
    other: int = 0


@dataclass
class Sec:
    """A section to write; ``link`` names the one it belongs to."""

    name: str
    data: bytes
    kind: int = PROGBITS
    flags: int = ALLOC
    link: str = ""
    align: int = 8


@dataclass
class Strs:
    data: bytearray = field(default_factory=lambda: bytearray(b"\0"))

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def make_elf(
    *,
    needed: Sequence[str] = (),
    soname: str = "",
    tags: Sequence[tuple[int, str]] = (),
    symbols: Sequence[Sym] = (),
    sections: Sequence[Sec] = (),
    machine: int = 62,
    kind: int = 3,
    flags: int = 0,
    os_abi: int = 0,
    abi_version: int = 0,
    version: int = 1,
    dynamic: bool = True,
    stack: int | None = 6,
    section_table: bool = True,
) -> bytes:
    """A 64-bit little-endian ELF file in one PT_LOAD, whose addresses are its offsets."""
    strings = Strs()
    needs: dict[str, list[str]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for symbol in symbols:
        if symbol.version and symbol.version not in numbers:
            numbers[symbol.version] = len(numbers) + 2
            needs.setdefault(symbol.version[0], []).append(symbol.version[1])
    table = bytes(24)
    versions = struct.pack("<H", 0)
    for symbol in symbols:
        info = (2 if symbol.weak else 1) << 4 | 2
        table += struct.pack(
            "<IBBHQQ", strings.add(symbol.name), info, symbol.other, int(symbol.defined), 0, 0
        )
        versions += struct.pack("<H", numbers[symbol.version] if symbol.version else 1)
    verneed = b""
    for index, (library, names) in enumerate(needs.items()):
        last = index == len(needs) - 1
        following = 0 if last else 16 + 16 * len(names)
        verneed += struct.pack("<HHIII", 1, len(names), strings.add(library), 16, following)
        for at, name in enumerate(names):
            step = 0 if at == len(names) - 1 else 16
            number = numbers[library, name]
            verneed += struct.pack("<IHHII", 0, 0, number, strings.add(name), step)
    stated = [(1, strings.add(n)) for n in needed] + [(t, strings.add(v)) for t, v in tags]
    if soname:
        stated.append((14, strings.add(soname)))

    out: list[Sec] = []
    if dynamic:
        count = len(symbols) + 1
        out = [
            Sec(".dynstr", bytes(strings.data), STRTAB),
            Sec(".dynsym", table, DYNSYM, link=".dynstr"),
            Sec(".hash", struct.pack("<II", 1, count) + bytes(4 * (count + 1)), HASH),
            Sec(".gnu.version", versions, VERSYM),
            Sec(".gnu.version_r", verneed, VERNEED, link=".dynstr"),
            Sec(".dynamic", bytes(16 * (len(stated) + 9)), DYNAMIC, link=".dynstr"),
        ]
    out += sections
    titles = Strs()
    places = [titles.add(s.name) for s in out]
    shstrtab = titles.add(".shstrtab")
    out.append(Sec(".shstrtab", bytes(titles.data), STRTAB, 0))
    places.append(shstrtab)

    segments = 1 + int(dynamic) + int(stack is not None)
    at = 64 + 56 * segments
    offsets: list[int] = []
    for section in out:
        at += -at % section.align
        offsets.append(at)
        at += 0 if section.kind == NOBITS else len(section.data)
    at += -at % 8
    where = dict(zip((s.name for s in out), offsets, strict=True))
    blobs = {s.name: s.data for s in out}
    if dynamic:
        entries = [*stated, (4, where[".hash"]), (5, where[".dynstr"]), (6, where[".dynsym"])]
        entries += [(10, len(blobs[".dynstr"])), (0x6FFFFFF0, where[".gnu.version"])]
        if verneed:
            entries += [(0x6FFFFFFE, where[".gnu.version_r"]), (0x6FFFFFFF, len(needs))]
        blobs[".dynamic"] = b"".join(struct.pack("<qQ", *e) for e in entries).ljust(
            len(blobs[".dynamic"]), b"\0"
        )
    headers = [(1, 5, 0, 0, 0, at, at, 0x1000)]
    if dynamic:
        size = len(blobs[".dynamic"])
        headers.append((2, 6, where[".dynamic"], where[".dynamic"], 0, size, size, 8))
    if stack is not None:
        headers.append((0x6474E551, stack, 0, 0, 0, 0, 0, 16))
    ident = b"\x7fELF\x02\x01\x01" + bytes([os_abi, abi_version]) + bytes(7)
    shoff, shnum = (at, len(out) + 1) if section_table else (0, 0)
    body = bytearray(
        ident
        + struct.pack(
            "<HHIQQQIHHHHHH",
            *(kind, machine, version, 0, 64, shoff, flags, 64, 56, len(headers)),
            *(64, shnum, len(out) if section_table else 0),
        )
    )
    for header in headers:
        body += struct.pack("<IIQQQQQQ", *header)
    for section, offset in zip(out, offsets, strict=True):
        body = body.ljust(offset, b"\0")
        body += b"" if section.kind == NOBITS else blobs[section.name]
    body = body.ljust(at, b"\0")
    if section_table:
        numbered = {s.name: i + 1 for i, s in enumerate(out)}
        body += bytes(64)
        for section, offset, title in zip(out, offsets, places, strict=True):
            link = numbered.get(section.link, 0)
            body += struct.pack(
                "<IIQQQQIIQQ",
                *(title, section.kind, section.flags, offset, offset, len(section.data)),
                *(link, 0, section.align, 0),
            )
    return bytes(body)


def note(owner: bytes, kind: int, content: bytes) -> bytes:
    out = struct.pack("<III", len(owner), len(content), kind) + owner.ljust(
        -(-len(owner) // 4) * 4, b"\0"
    )
    return out + content.ljust(-(-len(content) // 4) * 4, b"\0")


def make_cubin(
    arch: int = 90, kernels: Sequence[str] = ("k",), *, abi: int = 8, accelerated: bool = False
) -> bytes:
    """A cubin with kernels and one device function, of ABI 7 or 8."""
    strings = Strs()
    table = bytes(24)
    for name in kernels:
        table += struct.pack("<IBBHQQ", strings.add(name), 0x12, 0x10, 1, 0, 0)
    table += struct.pack("<IBBHQQ", strings.add("device_only"), 0x12, 0, 1, 0, 0)
    compat = bytes([2, 9, int(accelerated), 0, 4, 11, 4, 0, 1, 2, 3, 4, 2, 5, 5, 0])
    release = b"\0ptxas\0Cuda compilation tools, release 13.0, V13.0.88\0"
    sections = [
        Sec(".strtab", bytes(strings.data), STRTAB, 0),
        Sec(".symtab", table, SYMTAB, 0, link=".strtab"),
    ]
    if abi == 7:
        flags = arch << 16 | 0x500 | (0x800 if accelerated else 0) | arch
        return make_elf(
            sections=sections, machine=190, kind=2, flags=flags, os_abi=0x33, abi_version=7,
            version=124, dynamic=False,
        )  # fmt: skip
    sections += [
        Sec(".nv.compat", compat, 0x70000086, 0),
        Sec(".note.nv.tkinfo", note(b"NVIDIA Corp\0", 2000, release), NOTE, 0),
    ]
    return make_elf(
        sections=sections, machine=190, kind=2, flags=arch << 8 | 4, os_abi=0x41, abi_version=8,
        dynamic=False,
    )  # fmt: skip


def make_ptx(target: str = "sm_90", isa: str = "8.4", kernels: Sequence[str] = ("k",)) -> bytes:
    text = f"//\n// made by a test\n//\n.version {isa}\n.target {target}, debug\n.address_size 64\n"
    return (
        text + "".join(f".visible .entry {k}(\n)\n{{ ret; }}\n" for k in kernels)
    ).encode() + b"\0"


def make_entry(
    payload: bytes,
    *,
    kind: int = 2,
    arch: int = 90,
    flags: int = 0x11,
    version: tuple[int, int] = (1, 8),
    packing: str = "",
    unpacked: int | None = None,
    packed_size: int | None = None,
    header: int = 64,
    extra: bytes = b"",
) -> bytes:
    """One fatbin entry; sizes may be stated wrongly."""
    size = len(payload) if unpacked is None else unpacked
    packed = 0
    if packing == "lz4":
        payload = lz4.block.compress(payload, store_size=False)
        flags |= 0x2000
    elif packing == "zstd":
        payload = zstandard.ZstdCompressor().compress(payload)
        flags |= 0x8000
    if packing:
        packed = len(payload) if packed_size is None else packed_size
    else:
        size = 0
    payload = payload.ljust(-(-len(payload) // 8) * 8, b"\0")
    head = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(kind, 0x101, max(header, 64 + len(extra)), len(payload), packed, 0),
        *(version[1], version[0], arch, 0, 0, flags, 0, size),
    )
    return (head + extra).ljust(header, b"\0") + payload


def make_fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library_with(fatbin: bytes, section: str = ".nv_fatbin", flags: int = ALLOC) -> bytes:
    return make_elf(sections=[Sec(section, fatbin, flags=flags)], symbols=[Sym("f", defined=True)])


def elf_of(data: bytes, name: str = "pack/_C.abi3.so") -> Elf:
    return read_elf(Region.of(data, name))


def fatbins_of(data: bytes, *, kernels: bool = False) -> tuple[FatbinEntry, ...]:
    region = Region.of(data, "pack/_C.abi3.so")
    return read_fatbins(region, read_elf(region), kernels=kernels)


METADATA = b"""\
Metadata-Version: 2.1
Name: Tiny_Pack
Version: 1.2.0+cu121
Requires-Python: >=3.9
Requires-Dist: torch==2.4.0
Requires-Dist: librosa; extra == "audio"
Provides-Extra: audio

Requires-Dist: not-a-field
"""
WHEEL = b"""\
Wheel-Version: 1.0
Generator: test (1)
Root-Is-Purelib: false
Tag: cp38-abi3-linux_x86_64
"""
WHEEL_NAME = "tiny_pack-1.2.0+cu121-cp38-abi3-linux_x86_64.whl"
INFO = "tiny_pack-1.2.0+cu121.dist-info"


def record_of(files: Mapping[str, bytes]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow((name, f"sha256={digest}", len(data)))
    writer.writerow((f"{INFO}/RECORD", "", ""))
    return out.getvalue().encode()


def wheel_files(**more: bytes) -> dict[str, bytes]:
    """Files of a small right wheel, RECORD last."""
    files = {
        "tiny_pack/__init__.py": b"",
        "tiny_pack/_C.abi3.so": library_with(make_fatbin(make_entry(make_cubin()))),
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/WHEEL": WHEEL,
        f"{INFO}/entry_points.txt": b"[console_scripts]\nTiny = tiny_pack:main\n",
        f"{INFO}/top_level.txt": b"tiny_pack\n",
        **more,
    }
    return {**files, f"{INFO}/RECORD": record_of(files)}


def write_wheel(
    directory: Path,
    files: Mapping[str, bytes],
    *,
    name: str = WHEEL_NAME,
    method: int = zipfile.ZIP_DEFLATED,
) -> Path:
    path = directory / name
    with zipfile.ZipFile(path, "w", method) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path

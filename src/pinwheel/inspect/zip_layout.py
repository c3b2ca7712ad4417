"""Opens a wheel's zip so that every reader must see the same files in it, and none too large.

A zip says what it holds twice: in the central directory, which pip and most tools read, and in a
header before each file, which streaming readers follow. Whatever lets the two differ is refused:
bytes between files, overlaps, duplicates, other sizes. Layouts are those of PKWARE's APPNOTE 6.3;
what a wheel may hold is the PyPA's "Binary distribution format".
"""

from __future__ import annotations

import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinwheel.inspect.region import Region, unreadable

# Bounds. torch 2.3.0 has 10,500 members and 1.6 GB unpacked, none of the large ones packed better
# than 26:1; deflate reaches 1032:1 at most (zlib's technical details).
MAX_MEMBERS = 100_000
MAX_DIRECTORY = 16 << 20  # bytes, of the central directory
MAX_TOTAL = 32 << 30  # bytes, unpacked
MAX_RATIO = 200  # of a member, and of the whole wheel
FLOOR = 64 << 20  # bytes that it may have whatever the ratio
MAX_NAME = 1024  # bytes
MAX_PART = 255  # bytes, as file systems have it
# Bytes that are read and unpacked at a time. More cost more than they save: malloc takes them from
# the system and gives them back each time, with a page fault for every 4 KiB.
PIECE = 256 << 10

_END = struct.Struct("<I4H2IH")
_LOCATOR = struct.Struct("<2IQI")
_END64 = struct.Struct("<IQ2H2I4Q")
_LOCAL = struct.Struct("<I5H3I2H")
_DESCRIPTORS = {12: "<3I", 16: "<4I", 20: "<I2Q", 24: "<2I2Q"}  # bytes -> crc and sizes
_END_MAGIC, _LOCATOR_MAGIC, _END64_MAGIC = 0x06054B50, 0x07064B50, 0x06064B50
_LOCAL_MAGIC, _DESCRIPTOR_MAGIC = 0x04034B50, 0x08074B50
_BIG, _MANY = 0xFFFFFFFF, 0xFFFF  # "see the 64 bit field"
_UTF8, _DESCRIPTOR = 0x800, 0x8
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_EXTRA_64, _EXTRA_UNICODE_NAME = 0x0001, 0x7075
# What a name must not have: control characters act on terminals, a backslash and a drive letter
# lead elsewhere on other systems.
_BAD_NAME = re.compile("[\x00-\x1f\x7f-\x9f\\\\\ud800-\udfff]|^[A-Za-z]:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of a zip; directories are none.

    Attributes:
        name: path within the wheel, with slashes.
        size: bytes, unpacked.
        packed: bytes it takes in the zip.
        offset: of its data from the zip's start.
        stored: not compressed.
        crc: CRC-32 of its contents.
        executable: an execute bit is set.
    """

    name: str
    size: int
    packed: int
    offset: int
    stored: bool
    crc: int
    executable: bool


def read_layout(path: Path, region: Region) -> tuple[Member, ...]:
    """Read the directory of a zip and check all of it that can mislead.

    Args:
        path: the zip.
        region: the same, open.

    Returns:
        Its files, in the order they lie.

    Raises:
        ArtifactError: damaged, ambiguous, encrypted, packed in a way installers do not take, too
            large unpacked, or with a member that is no regular file or leads out.
    """
    start, stated = _directory(region)
    try:
        with zipfile.ZipFile(path) as archive:
            infos = sorted(archive.infolist(), key=lambda i: i.header_offset)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        raise unreadable(region.name, "its zip directory is damaged", str(error)) from error
    if len(infos) != stated:
        raise unreadable(
            region.name, f"its zip directory has {len(infos)} entries and states {stated}"
        )
    if (infos[0].header_offset if infos else start) != 0:
        raise unreadable(region.name, "it has bytes before its first file")
    members: list[Member] = []
    total = 0
    most = min(MAX_TOTAL, FLOOR + region.size * MAX_RATIO)
    for index, info in enumerate(infos):
        following = infos[index + 1].header_offset if index + 1 < len(infos) else start
        _check_kind(region.name, info)
        offset = _data_offset(region, info)
        _check_end(region, info, offset + info.compress_size, following)
        total += info.file_size
        if info.file_size > max(FLOOR, info.compress_size * MAX_RATIO) or total > most:
            raise unreadable(
                region.name,
                f"{info.filename} unpacks to more than a wheel's files do",
                f"{info.compress_size} bytes packed, {info.file_size} unpacked, {total} so far",
            )
        if not info.is_dir():
            members.append(
                Member(
                    name=info.filename,
                    size=info.file_size,
                    packed=info.compress_size,
                    offset=offset,
                    stored=info.compress_type == zipfile.ZIP_STORED,
                    crc=info.CRC,
                    executable=bool(info.external_attr >> 16 & 0o111),
                )
            )
    _check_names(region.name, infos)
    return tuple(members)


def read_contents(region: Region, member: Member) -> Iterator[bytes]:
    """The unpacked contents of a member, at most 256 KiB at a time.

    Raises:
        ArtifactError: they are damaged, or not exactly as long as the directory says.
    """
    source = region.part(member.offset, member.packed, member.name)
    crc = size = 0
    for chunk in source.chunks(PIECE) if member.stored else _inflated(source, member):
        crc = zlib.crc32(chunk, crc)
        size += len(chunk)
        yield chunk
    if size != member.size or crc != member.crc:
        raise unreadable(
            region.name,
            f"{member.name} in it is damaged",
            f"{size} bytes with CRC {crc:08x}, stated {member.size} with {member.crc:08x}",
        )


def _inflated(source: Region, member: Member) -> Iterator[bytes]:
    # isal is nearly twice as quick and takes incomplete Huffman codes, with which pip's zlib fails.
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    left = member.size
    try:
        for packed in source.chunks(PIECE):
            while packed and not inflater.eof:
                chunk = inflater.decompress(packed, PIECE)
                packed = inflater.unconsumed_tail
                left -= len(chunk)
                if left < 0:
                    raise unreadable(source.name, f"{member.name} is larger than stated")
                yield chunk
            if packed or inflater.unused_data:
                raise unreadable(source.name, f"{member.name} ends before its bytes do")
        while not inflater.eof and (chunk := inflater.decompress(b"", PIECE)):
            left -= len(chunk)
            if left < 0:
                raise unreadable(source.name, f"{member.name} is larger than stated")
            yield chunk
    except zlib.error as error:
        raise unreadable(source.name, f"{member.name} in it is damaged", str(error)) from error
    if not inflater.eof:
        raise unreadable(source.name, f"{member.name} in it is cut short")


def _directory(region: Region) -> tuple[int, int]:
    """Where the central directory starts, and how many entries it states."""
    tail = min(region.size, _END.size + 0xFFFF)
    data = region.read(region.size - tail, tail, "the end of the zip")
    found = data.rfind(_END_MAGIC.to_bytes(4, "little"))
    if found < 0 or found + _END.size > len(data):
        raise unreadable(region.name, "it is no zip, or its end is missing")
    at = region.size - tail + found
    _, disk, first, here, entries, length, start, comment = _END.unpack_from(data, found)
    if at + _END.size + comment != region.size or disk or first or here != entries:
        raise unreadable(region.name, "the end of the zip is damaged")
    end = at
    locator = at - _LOCATOR.size
    if locator >= 0 and region.unpack(_LOCATOR, locator, "its end")[0] == _LOCATOR_MAGIC:
        _, _, end, _ = region.unpack(_LOCATOR, locator, "its end")
        big = region.unpack(_END64, end, "its end")
        if big[0] != _END64_MAGIC or end + _END64.size != locator:
            raise unreadable(region.name, "the 64 bit end of the zip is damaged")
        small = (entries, length, start)
        entries, length, start = big[7:]
        sentinels = (_MANY, _BIG, _BIG)
        for old, new, sentinel in zip(small, big[7:], sentinels, strict=True):
            if old not in (new, sentinel):
                raise unreadable(region.name, "its zip directory is in two places")
    if length > MAX_DIRECTORY or entries > MAX_MEMBERS:
        raise unreadable(
            region.name, f"a zip directory of {entries} entries in {length} bytes is too large"
        )
    if start + length != end:
        raise unreadable(region.name, "its zip directory is not where its end says")
    return start, entries


def _check_kind(name: str, info: zipfile.ZipInfo) -> None:
    if not info.filename:
        raise unreadable(name, "a file in it has no name")
    kind = stat.S_IFMT(info.external_attr >> 16)
    why = ""
    if info.flag_bits & _ENCRYPTED:
        why = "is encrypted"
    elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        why = f"is packed by method {info.compress_type}, which installers need not know"
    elif kind not in (0, stat.S_IFDIR if info.is_dir() else stat.S_IFREG):
        why = "is a link or a device, which a wheel cannot hold"
    elif info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        why = "is not packed and has two sizes"
    elif info.is_dir() and info.file_size:
        why = "is a directory with contents"
    elif any(number == _EXTRA_UNICODE_NAME for number, _ in _extra(info.extra)):
        why = "has a second name"
    if why:
        raise unreadable(name, f"{info.filename} in it {why}")


def _extra(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and contents of each extra field."""
    at = 0
    while at + 4 <= len(data):
        number, size = struct.unpack_from("<2H", data, at)
        yield number, data[at + 4 : at + 4 + size]
        at += 4 + size


def _data_offset(region: Region, info: zipfile.ZipInfo) -> int:
    """Where a file's data starts; its own header must say what the directory says."""
    at = info.header_offset
    magic, _, flags, method, _, _, crc, packed, size, length, extra = region.unpack(
        _LOCAL, at, "a file's header"
    )
    data = region.read(at + _LOCAL.size, length + extra, "a file's header")
    if packed == _BIG or size == _BIG:
        # 64 bit sizes follow in this order, those that do not fit.
        for number, field in _extra(data[length:]):
            values = [int.from_bytes(field[i : i + 8], "little") for i in range(0, len(field), 8)]
            if number == _EXTRA_64:
                size = values.pop(0) if size == _BIG and values else size
                packed = values.pop(0) if packed == _BIG and values else packed
    stated = (info.CRC, info.compress_size, info.file_size)
    same = (crc, packed, size) == stated
    if flags & _DESCRIPTOR:  # then they stand behind the data
        same = all(
            value in (0, right) for value, right in zip((crc, packed, size), stated, strict=True)
        )
    raw = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437", "replace")
    differing = (flags ^ info.flag_bits) & (_UTF8 | _DESCRIPTOR | _ENCRYPTED)
    if (
        magic != _LOCAL_MAGIC
        or method != info.compress_type
        or data[:length] != raw
        or not same
        or differing
    ):
        raise unreadable(region.name, f"{info.filename} in it is described in two ways")
    return at + _LOCAL.size + length + extra


def _check_end(region: Region, info: zipfile.ZipInfo, end: int, following: int) -> None:
    """Nothing but a data descriptor may lie between a file's data and what follows."""
    gap = following - end
    if gap < 0:
        raise unreadable(region.name, f"{info.filename} in it overlaps what follows")
    if not info.flag_bits & _DESCRIPTOR and gap == 0:
        return
    if info.flag_bits & _DESCRIPTOR and gap in _DESCRIPTORS:
        values = region.unpack(struct.Struct(_DESCRIPTORS[gap]), end, "a data descriptor")
        if values[-3:] == (info.CRC, info.compress_size, info.file_size) and (
            len(values) == 3 or values[0] == _DESCRIPTOR_MAGIC
        ):
            return
    raise unreadable(
        region.name, f"it has bytes of no file behind {info.filename}", f"{gap} bytes at {end:#x}"
    )


def _check_names(zip_name: str, infos: Sequence[zipfile.ZipInfo]) -> None:
    files: set[str] = set()
    directories: set[str] = set()
    for info in infos:
        name = info.filename.removesuffix("/")
        parts = name.split("/")
        why = ""
        if info.filename != info.orig_filename or _BAD_NAME.search(name):
            why = "has characters that no path in a wheel has"
        elif any(part in ("", ".", "..") for part in parts):
            why = "leads out of the wheel or is no plain path"
        elif len(name.encode()) > MAX_NAME or max(len(p.encode()) for p in parts) > MAX_PART:
            why = "is too long"
        elif not info.is_dir() and name in files:
            why = "is there twice"
        if why:
            raise unreadable(zip_name, f"the path {info.filename} in it {why}")
        if info.is_dir():
            directories.add(name)
        else:
            files.add(name)
        directories.update("/".join(parts[:n]) for n in range(1, len(parts)))
    if both := sorted(files & directories):
        raise unreadable(zip_name, f"{both[0]} in it is a file and a directory")

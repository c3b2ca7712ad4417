"""Parses what a wheel's dist-info says: METADATA, WHEEL, RECORD, entry points.

Formats are the PyPA's: "Core metadata", "Binary distribution format", "Recording installed
projects", "Entry points". What these cannot be read without raises; what they merely get wrong is
for whoever judges the wheel.
"""

from __future__ import annotations

import configparser
import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import BytesHeaderParser

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.version import Version

from pinwheel.inspect.region import printable, unreadable

# Bounds. METADATA of vLLM 0.22.1 has 11 kB and 130 fields, RECORD of torch 2.3.0 10,500 rows.
# Reading fields takes time with the square of their number.
MAX_METADATA = 4 << 20  # bytes, of any of these files but RECORD
MAX_RECORD = 32 << 20  # bytes
MAX_ROWS = 200_000
MAX_ENTRY_POINTS = 128 << 10  # bytes; configparser's errors take time with the square
MAX_FIELDS = 5_000
MAX_TAGS = 5_000
MAX_TAG = 200  # characters of one Tag line, which may stand for a product of three sets

# Specifiers are compared long after they are parsed, and Python turns no such text into a number.
_ENDLESS = re.compile(r"[0-9]{500}")

HASHES = ("sha256", "sha384", "sha512")  # the wheel specification asks for sha256 or better


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreMetadata:
    """What METADATA says.

    Attributes:
        name: as it is written there.
        version: the same.
        requires_python: empty when there is none.
        requires_dist: in file order.
        provides_extra: in file order.
    """

    metadata_version: str
    name: str
    version: Version
    requires_python: SpecifierSet
    requires_dist: tuple[Requirement, ...]
    provides_extra: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelInfo:
    """What WHEEL says.

    Attributes:
        wheel_version: ``1.0``.
        generator: the tool that made it, or empty.
        purelib: Root-Is-Purelib.
        build: build tag, or empty.
        tags: expanded.
    """

    wheel_version: str
    generator: str
    purelib: bool
    build: str
    tags: frozenset[Tag]


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One line of RECORD.

    Attributes:
        path: within the wheel.
        algorithm: of the hash, or empty.
        digest: urlsafe base64 without padding, or empty.
        size: bytes as written, or empty.
    """

    path: str
    algorithm: str
    digest: str
    size: str


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One entry point: ``vllm = vllm.scripts:main`` of group ``console_scripts``."""

    group: str
    name: str
    value: str


def parse_metadata(data: bytes, what: str) -> CoreMetadata:
    """Parse METADATA.

    Args:
        data: its bytes.
        what: what messages call it.

    Raises:
        ArtifactError: no name or version or two of them, or a requirement that is none.
    """
    _check_fields(data, what)
    try:
        raw, unparsed = parse_email(data)
    except (ValueError, LookupError, RecursionError) as error:
        raise unreadable(what, str(error)) from error
    single = ("metadata-version", "name", "version", "requires-python")
    if wrong := [key for key in (*single, "requires-dist") if key in unparsed]:
        raise unreadable(what, f"{wrong[0]} is there twice or is no text")
    for key, value in (("name", raw.get("name")), ("version", raw.get("version"))):
        if not value:
            raise unreadable(what, f"it states no {key}")
    if _ENDLESS.search(raw.get("requires_python", "")):
        raise unreadable(what, "Requires-Python has a number of hundreds of digits")
    try:
        return CoreMetadata(
            metadata_version=raw.get("metadata_version", ""),
            name=raw["name"],
            version=Version(raw["version"]),
            requires_python=SpecifierSet(raw.get("requires_python", "")),
            requires_dist=tuple(_requirements(raw.get("requires_dist", ()), what)),
            provides_extra=tuple(raw.get("provides_extra", ())),
        )
    except ValueError as error:  # also of a number of thousands of digits
        raise unreadable(what, str(error)) from error


def _requirements(lines: Iterable[str], what: str) -> Iterable[Requirement]:
    for line in lines:
        if _ENDLESS.search(line):
            raise unreadable(what, f"{printable(line, 100)} has a number of hundreds of digits")
        try:
            yield Requirement(line)
        except (ValueError, RecursionError) as error:
            raise unreadable(what, f"{printable(line, 100)} is no requirement") from error


def parse_wheel(data: bytes, what: str) -> WheelInfo:
    """Parse WHEEL; arguments as for :func:`parse_metadata`.

    Raises:
        ArtifactError: a format other than 1.x, or fields missing, wrong or there twice.
    """
    _check_fields(data, what)
    try:
        message = BytesHeaderParser().parsebytes(data)
        values = {key: [str(v) for v in message.get_all(key, ())] for key in set(message.keys())}
    except (ValueError, LookupError) as error:
        raise unreadable(what, str(error)) from error
    fields = {key.lower(): found for key, found in values.items()}

    def one(key: str, default: str | None = None) -> str:
        found = fields.get(key.lower(), [])
        if len(found) == 1:
            return found[0].strip()
        if found or default is None:
            raise unreadable(what, f"{key} is there {len(found)} times, must be once")
        return default

    version = one("Wheel-Version")
    if version.partition(".")[0] != "1":
        raise unreadable(what, f"its format {printable(version, 40)} is not 1.x")
    purelib = one("Root-Is-Purelib").lower()
    if purelib not in ("true", "false"):
        raise unreadable(what, f"Root-Is-Purelib is {printable(purelib, 40)}")
    return WheelInfo(
        wheel_version=version,
        generator=one("Generator", ""),
        purelib=purelib == "true",
        build=one("Build", ""),
        tags=_tags(fields.get("tag", ()), what),
    )


def _tags(lines: Iterable[str], what: str) -> frozenset[Tag]:
    tags: set[Tag] = set()
    for line in lines:
        parts = line.strip().split("-")
        if len(parts) != 3 or len(line) > MAX_TAG or not all(parts):
            raise unreadable(what, f"{printable(line, 60)} is no tag")
        try:
            tags |= parse_tag(line.strip())
        except ValueError as error:
            raise unreadable(what, str(error)) from error
        if len(tags) > MAX_TAGS:
            raise unreadable(what, f"it has more than {MAX_TAGS} tags")
    if not tags:
        raise unreadable(what, "it has no Tag")
    return frozenset(tags)


def parse_record(data: bytes, what: str) -> tuple[RecordRow, ...]:
    """Parse RECORD; arguments as for :func:`parse_metadata`.

    Raises:
        ArtifactError: no CSV in UTF-8, or a row that is not path, hash and size.
    """
    rows: list[RecordRow] = []
    try:
        for row in csv.reader(io.StringIO(data.decode(), newline=""), strict=True):
            if not row:
                continue
            if len(row) != 3:
                raise unreadable(what, f"a row has {len(row)} fields, must have 3", ",".join(row))
            if len(rows) == MAX_ROWS:
                raise unreadable(what, f"it has more than {MAX_ROWS} rows")
            algorithm, _, digest = row[1].partition("=")
            rows.append(RecordRow(row[0], algorithm, digest, row[2]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise unreadable(what, str(error)) from error
    return tuple(rows)


def parse_entry_points(data: bytes, what: str) -> tuple[EntryPoint, ...]:
    """Parse entry_points.txt; arguments as for :func:`parse_metadata`.

    Raises:
        ArtifactError: not such a file.
    """
    if len(data) > MAX_ENTRY_POINTS:
        raise unreadable(what, f"{len(data)} bytes are too many")
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    # Names keep their case.
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(data.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        raise unreadable(what, str(error).splitlines()[0]) from error
    return tuple(
        EntryPoint(group, name, value)
        for group in parser.sections()
        for name, value in parser.items(group)
    )


def _check_fields(data: bytes, what: str) -> None:
    if len(data) > MAX_METADATA:
        raise unreadable(what, f"{len(data)} bytes are too many")
    head = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").partition(b"\n\n")[0]
    count = sum(1 for line in head.split(b"\n") if line[:1] not in (b" ", b"\t"))
    if count > MAX_FIELDS:
        raise unreadable(what, f"{count} fields are too many")

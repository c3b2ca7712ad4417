"""Reads of a wheel what a comparison needs; the wheel may be hostile and is never run."""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import BytesParser
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import NoReturn

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pinwheel.errors import WheelError
from pinwheel.files import CHUNK, writing

# Bounds on a wheel that may be hostile; upstream's largest has 1,700 members and 1.3 GB.
MAX_MEMBERS = 100_000
MAX_TOTAL = 16 << 30  # bytes, unpacked
MAX_METADATA = 4 << 20  # bytes
MAX_NAME = 1024  # characters

# Parts of dist-info that say where and how a wheel was built, not what it does; METADATA and WHEEL
# are compared by field.
_OWN = frozenset({"RECORD", "METADATA", "WHEEL", "INSTALLER", "REQUESTED"})
DIST_INFO = "*.dist-info"


class Kind(StrEnum):
    """What a path of a wheel is."""

    PYTHON = "python"
    EXTENSION = "extension"
    DATA = "data"
    METADATA = "metadata"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class ComparedWheel:
    """What is compared of one wheel: hash by path (empty for an extension), and its fields."""

    path: Path
    files: dict[str, str]
    fields: frozenset[str]


def kind_of(path: str) -> Kind:
    """What a member is, by its path alone."""
    if path.startswith(f"{DIST_INFO}/"):
        return Kind.METADATA
    if path.endswith(".py"):
        return Kind.PYTHON
    return Kind.EXTENSION if re.search(r"\.so(\.\d+)*$", path) else Kind.DATA


def requirement(text: str) -> str:
    """A requirement in one spelling: back ends differ in blanks, quotes, order, ``-`` and ``_``."""
    try:
        parsed = Requirement(text)
    except InvalidRequirement:
        return f"Requires-Dist: {' '.join(text.split())}"
    parsed.name = canonicalize_name(parsed.name)
    return f"Requires-Dist: {parsed}"


def _refuse(wheel: Path, why: str, *evidence: str) -> NoReturn:
    raise WheelError(
        f"wheel {wheel.name} {why}",
        evidence=[line[:300] for line in evidence],
        next_step="The file is damaged or not a wheel to be trusted: fetch or build it again.",
    )


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        EOFError,
        FileNotFoundError,
        UnicodeError,
    ) as error:
        _refuse(wheel, "cannot be read", f"{type(error).__name__}: {error}")


def read_wheel(wheel: Path) -> ComparedWheel:
    """Hash every member but libraries, and read the fields that say what the wheel needs.

    Raises:
        WheelError: a wheel that cannot be read, or holds what no wheel may.
    """
    files: dict[str, str] = {}
    fields: set[str] = set()
    with _opened(wheel) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS or sum(m.file_size for m in members) > MAX_TOTAL:
            _refuse(wheel, f"has more than {MAX_MEMBERS} members or {MAX_TOTAL} bytes")
        for member in members:
            name = member.filename
            _check_member(wheel, member)
            if member.is_dir():
                continue
            first, _, rest = name.partition("/")
            if first.endswith(".dist-info"):
                if rest in ("METADATA", "WHEEL"):
                    fields |= set(_header(wheel, archive, member, rest))
                if rest in _OWN:
                    continue
                # setuptools puts licence files into licenses/ since 77 (PEP 639).
                name = f"{DIST_INFO}/{rest.removeprefix('licenses/')}"
            if name in files:
                _refuse(wheel, "has a member twice", name)
            files[name] = "" if kind_of(name) is Kind.EXTENSION else _hash(archive, member)
    return ComparedWheel(wheel, files, frozenset(fields))


def _check_member(wheel: Path, member: zipfile.ZipInfo) -> None:
    name = member.filename
    parts = name.rstrip("/").split("/")
    bad = name.startswith("/") or "\\" in name or any(p in ("", ".", "..") for p in parts)
    if bad or len(name) > MAX_NAME or not name.isprintable():
        _refuse(wheel, "has a member that would leave its directory", ascii(name))
    if stat.S_ISLNK(member.external_attr >> 16):
        _refuse(wheel, "has a symlink, which a wheel cannot hold", name)
    if member.flag_bits & 1:
        _refuse(wheel, "has an encrypted member", name)


def _hash(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    digest = hashlib.sha256()
    with archive.open(member) as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _header(
    wheel: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, which: str
) -> Iterator[str]:
    """The fields of METADATA or WHEEL that say what the wheel needs and where it runs."""
    if member.file_size > MAX_METADATA:
        _refuse(wheel, f"has a {which} of more than {MAX_METADATA} bytes")
    message = BytesParser().parsebytes(archive.read(member), headersonly=True)
    for key in ("Name", "Requires-Python", "Provides-Extra", "Root-Is-Purelib"):
        for value in message.get_all(key, ()):
            yield f"{key}: {' '.join(str(value).split())}"
    for value in message.get_all("Requires-Dist", ()):
        yield requirement(str(value))
    for tag in message.get_all("Tag", ()):
        # The platform is computed for each wheel; interpreter and ABI must be upstream's.
        yield f"Tag: {str(tag).rsplit('-', 1)[0]}"


@contextmanager
def unpacked(wheel: ComparedWheel, path: str) -> Iterator[Path]:
    """One library of the wheel as a file, never loaded, gone after the block.

    Raises:
        WheelError: the wheel cannot be read.
        DiskFullError: no room to unpack the library.
    """
    with tempfile.TemporaryDirectory(prefix="pinwheel-") as directory:
        target = Path(directory) / PurePosixPath(path).name
        with (
            _opened(wheel.path) as archive,
            archive.open(path) as source,
            writing(target),
            target.open("wb") as file,
        ):
            shutil.copyfileobj(source, file, CHUNK)
        yield target

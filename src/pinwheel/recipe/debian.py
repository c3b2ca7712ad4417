"""Debian archives read without apt or dpkg: signed releases, package indexes, dependency closure.

Everything here is pure: bytes in, records out. Formats: Debian wiki, "DebianRepository/Format"
(Release and Packages files); Debian Policy chapters 5 (control data) and 7 (relationships).
"""

from __future__ import annotations

import lzma
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from debian.debian_support import NativeVersion

from pinwheel.errors import HashMismatchError, ResolveError

# The largest Packages file that is unpacked, in bytes (Debian main is about 50 MB).
MAX_INDEX = 512 * 1024 * 1024

_RELATION = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.\-]*)(?::(?P<qualifier>[a-z0-9][a-z0-9\-]*))?"
    r"(?:\s*\(\s*(?P<op><<|<=|=|>=|>>|<|>)\s*(?P<version>[0-9A-Za-z][^\s()]*)\s*\))?"
    r"(?:\s*\[(?P<architectures>[^\]]*)\])?(?P<profiles>(?:\s*<[^>]*>)*)"
)
# Policy 7.1: plain "<" and ">" are obsolete spellings of "<=" and ">=".
_OPERATORS = {"<": "<=", ">": ">="}
_PRIORITIES = {"required": 0, "important": 1, "standard": 2, "optional": 3, "extra": 4}


@dataclass(frozen=True, slots=True)
class Relation:
    """One name in a relationship field, with its version condition if it has one."""

    name: str
    operator: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name

    def accepts(self, version: str) -> bool:
        """Whether ``version`` meets the condition (Policy 5.6.12 gives the order)."""
        if not self.operator:
            return True
        order = compare_versions(version, self.version)
        return {
            "<<": order < 0,
            "<=": order <= 0,
            "=": order == 0,
            ">=": order >= 0,
            ">>": order > 0,
        }[self.operator]


@dataclass(frozen=True, slots=True)
class Package:
    """One binary package of an index: where it lies, its hash, what it needs."""

    name: str
    version: str
    architecture: str
    path: str
    size: int  # bytes
    sha256: str
    essential: bool = False
    priority: str = "optional"
    # Relationship fields as written; most packages of an index are never asked for theirs.
    fields: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def needs(self) -> tuple[tuple[Relation, ...], ...]:
        """Pre-Depends and Depends, each a group of alternatives."""
        return tuple(
            group
            for name in ("Pre-Depends", "Depends")
            for group in parse_relations(self.fields.get(name, ""))
        )

    def provides(self) -> tuple[Relation, ...]:
        """Virtual packages this one stands in for."""
        return tuple(r for g in parse_relations(self.fields.get("Provides", "")) for r in g)

    def excludes(self) -> tuple[Relation, ...]:
        """Packages this one cannot be installed beside (Conflicts and Breaks)."""
        return tuple(
            r
            for name in ("Conflicts", "Breaks")
            for g in parse_relations(self.fields.get(name, ""))
            for r in g
        )


@dataclass(frozen=True, slots=True)
class Release:
    """What a suite's Release file states: its dates and the hash and size of each index."""

    suite: str
    codename: str
    date: datetime
    by_hash: bool
    valid_until: datetime | None  # None: the suite's releases do not expire
    files: Mapping[str, tuple[str, int]]  # path below dists/<suite>/ -> (sha256, bytes)

    @property
    def timestamp(self) -> str:
        """The date in the form snapshot archives use, such as ``20261130T000000Z``."""
        return self.date.strftime("%Y%m%dT%H%M%SZ")


def compare_versions(left: str, right: str) -> int:
    """Order of two Debian versions: negative, zero or positive.

    Raises:
        ResolveError: one of them is none (Policy 5.6.12).
    """
    try:
        a, b = NativeVersion(left), NativeVersion(right)
    except ValueError as error:
        raise ResolveError(
            f"{left[:80]!r} or {right[:80]!r} is no Debian version",
            evidence=[str(error)[:300]],
            next_step="Try another mirror.",
        ) from error
    return -1 if a < b else 1 if b < a else 0


def parse_relations(text: str) -> tuple[tuple[Relation, ...], ...]:
    """A relationship field as groups of alternatives (Policy 7.1).

    Raises:
        ResolveError: a part of the field is no package name with an optional condition.
    """
    groups = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        group = []
        for alternative in part.split("|"):
            found = _RELATION.fullmatch(alternative.strip())
            if found is None:
                raise ResolveError(
                    f"Debian relationship {alternative.strip()!r} cannot be read",
                    evidence=[f"in field: {text.strip()[:300]}"],
                    next_step="Try another mirror; report the package if the field is real.",
                )
            operator = found["op"] or ""
            group.append(
                Relation(found["name"], _OPERATORS.get(operator, operator), found["version"] or "")
            )
        groups.append(tuple(group))
    return tuple(groups)


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Control paragraphs as field dictionaries; a folded field keeps its lines, joined by LF.

    Raises:
        ResolveError: a line is neither a field, nor a continuation, nor a comment.
    """
    current: dict[str, str] = {}
    name = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip(" \t"):
            if current:
                yield current
            current, name = {}, ""
        elif line.startswith("#"):
            continue
        elif line[0] in " \t" and name:
            current[name] += "\n" + line[1:].rstrip()
        else:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip() or name in current:
                raise ResolveError(
                    f"Debian control data is malformed in line {number}",
                    evidence=[line[:200]],
                    next_step="Try another mirror.",
                )
            current[name] = value.strip()
    if current:
        yield current


def parse_release(text: str) -> Release:
    """A Release file (or the signed part of InRelease).

    Raises:
        ResolveError: it has no date or SHA256 section, or one of its fields is malformed.
    """
    found = next(paragraphs(text), {})
    files: dict[str, tuple[str, int]] = {}
    try:
        date = _date(found["Date"])
        valid_until = _date(found["Valid-Until"]) if "Valid-Until" in found else None
        for line in filter(None, found["SHA256"].split("\n")):
            digest, size, path = line.split()
            if not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise ValueError(f"no SHA-256: {digest}")
            files[path] = (digest, int(size))
    except (KeyError, ValueError, OverflowError) as error:
        raise ResolveError(
            "a Debian Release file cannot be read",
            evidence=[f"{type(error).__name__}: {error}"],
            next_step="Check that the mirror serves a Debian archive.",
        ) from error
    return Release(
        suite=found.get("Suite", ""),
        codename=found.get("Codename", ""),
        date=date,
        by_hash=found.get("Acquire-By-Hash", "").lower() == "yes",
        valid_until=valid_until,
        files=files,
    )


def _date(text: str) -> datetime:
    return parsedate_to_datetime(text.replace("UTC", "+0000")).astimezone(UTC)


def check_file(data: bytes, release: Release, path: str) -> bytes:
    """``data`` itself, when it is what ``release`` states for ``path``.

    Raises:
        ResolveError: the release does not list the path.
        HashMismatchError: size or SHA-256 differ.
    """
    import hashlib

    expected = release.files.get(path)
    if expected is None:
        raise ResolveError(
            f"Debian release {release.codename} lists no file {path}",
            next_step="Check suite, component and architecture in the data file.",
        )
    seen = (hashlib.sha256(data).hexdigest(), len(data))
    if seen != expected:
        raise HashMismatchError(
            f"Debian index {path} is not the file the release {release.codename} signs",
            evidence=[
                f"expected sha256 {expected[0]}, {expected[1]} bytes",
                f"received sha256 {seen[0]}, {seen[1]} bytes",
            ],
            next_step="A mirror in the middle of an update heals by itself; else try another one.",
        )
    return data


_KEPT = ("Pre-Depends", "Depends", "Provides", "Conflicts", "Breaks")


def parse_packages(text: str, architecture: str) -> dict[str, Package]:
    """A Packages file: the newest version of each package for ``architecture`` or ``all``.

    Raises:
        ResolveError: a package has no version, file name, size or SHA-256.
    """
    result: dict[str, Package] = {}
    for found in paragraphs(text):
        if found.get("Architecture") not in (architecture, "all"):
            continue
        try:
            package = Package(
                name=found["Package"],
                version=found["Version"],
                architecture=found["Architecture"],
                path=found["Filename"],
                size=int(found["Size"]),
                sha256=found["SHA256"].lower(),
                essential=found.get("Essential") == "yes",
                priority=found.get("Priority", "optional"),
                fields={k: found[k].replace("\n", " ") for k in _KEPT if k in found},
            )
        except (KeyError, ValueError) as error:
            raise ResolveError(
                f"the index entry of Debian package {found.get('Package', '?')} is incomplete",
                evidence=[f"{type(error).__name__}: {error}"],
                next_step="Try another mirror.",
            ) from error
        known = result.get(package.name)
        if known is None or compare_versions(known.version, package.version) < 0:
            result[package.name] = package
    return result


def unpack_index(data: bytes) -> str:
    """An xz-compressed index as text, at most `MAX_INDEX` bytes of it.

    Raises:
        ResolveError: the data is no xz stream, or unpacks to more.
    """
    try:
        unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=256 * 1024 * 1024)
        text = unpacker.decompress(data, max_length=MAX_INDEX)
        if not unpacker.eof:
            raise ValueError(f"unpacks to more than {MAX_INDEX} bytes, or is cut off")
        return text.decode()
    except (lzma.LZMAError, ValueError) as error:
        raise ResolveError(
            "a Debian package index cannot be unpacked",
            evidence=[str(error)],
            next_step="Try another mirror.",
        ) from error


def closure(
    packages: Mapping[str, Package], seeds: Iterable[str], *, essential: bool
) -> tuple[Package, ...]:
    """Seeds, essential packages if asked for, and all they depend on, sorted by name.

    Of several alternatives one that is already chosen wins, else the first that exists with a
    fitting version; of several providers of a virtual package the one of highest priority,
    then the lowest name. The order of `packages` does not matter.

    Raises:
        ResolveError: a seed or a dependency cannot be met, or two packages exclude each other.
    """
    providers: dict[str, list[tuple[Package, Relation]]] = {}
    for name in sorted(packages):
        if "Provides" in packages[name].fields:
            for virtual in packages[name].provides():
                providers.setdefault(virtual.name, []).append((packages[name], virtual))
    roots = sorted(p.name for p in packages.values() if essential and p.essential)
    chosen: dict[str, Package] = {}
    queue: deque[Package] = deque()

    def choose(package: Package) -> None:
        if package.name not in chosen:
            chosen[package.name] = package
            queue.append(package)

    def meeting(wanted: Relation) -> list[Package]:
        found = packages.get(wanted.name)
        result = [found] if found and wanted.accepts(found.version) else []
        # Policy 7.5: an unversioned Provides never meets a versioned dependency.
        virtual = [
            provider
            for provider, offer in providers.get(wanted.name, ())
            if not wanted.operator or (offer.operator == "=" and wanted.accepts(offer.version))
        ]
        return result + sorted(virtual, key=lambda p: (_PRIORITIES.get(p.priority, 5), p.name))

    for name in [*seeds, *roots]:
        if name not in packages:
            raise ResolveError(
                f"Debian package {name} is in no index of the suite",
                next_step="Correct the seed's name in the data file, or the mirror.",
            )
        choose(packages[name])
    while queue:
        package = queue.popleft()
        for group in package.needs():
            candidates = [c for wanted in group for c in meeting(wanted)]
            if not candidates:
                raise ResolveError(
                    f"Debian package {package.name} {package.version} depends on what is not there",
                    evidence=[" | ".join(map(str, group))],
                    next_step="The mirror is incomplete, or the suite lacks a component.",
                )
            if not any(c.name in chosen for c in candidates):
                choose(candidates[0])
    _check_exclusions(chosen)
    return tuple(chosen[name] for name in sorted(chosen))


def _check_exclusions(chosen: Mapping[str, Package]) -> None:
    virtual: dict[str, list[str]] = {}
    for package in chosen.values():
        for offer in package.provides():
            virtual.setdefault(offer.name, []).append(package.name)
    for package in chosen.values():
        for wanted in package.excludes():
            real = chosen.get(wanted.name)
            hit = [real.name] if real and wanted.accepts(real.version) else []
            if not wanted.operator:
                hit += virtual.get(wanted.name, [])
            # Policy 7.4: a package never excludes itself.
            if any(name != package.name for name in hit):
                raise ResolveError(
                    f"Debian packages {package.name} and {', '.join(hit)} exclude each other",
                    evidence=[f"{package.name} {package.version} excludes {wanted}"],
                    next_step="Change the seeds in the data file.",
                )

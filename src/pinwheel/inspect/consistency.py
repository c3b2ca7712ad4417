"""Compares what a wheel states about itself with what it holds: name, version, tags, RECORD."""

from __future__ import annotations

import base64
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from packaging.tags import Tag
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version

from pinwheel.inspect.dist_info import HASHES, CoreMetadata, RecordRow, WheelInfo
from pinwheel.inspect.region import printable

MAX_PROBLEMS = 100  # of each rule that are listed one by one

# Signatures of RECORD, which RECORD does not list ("Binary distribution format").
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


class WheelRule(StrEnum):
    """What a wheel states that is not so; none of it keeps the wheel from being read."""

    NOT_RECORDED = "file-not-in-record"
    NOT_THERE = "record-names-no-file"
    RECORDED_TWICE = "record-names-file-twice"
    WEAK_HASH = "record-hash-missing-or-weak"
    WRONG_HASH = "record-hash-differs"
    WRONG_SIZE = "record-size-differs"
    NAME = "names-disagree"
    VERSION = "versions-disagree"
    BUILD = "build-tags-disagree"
    PYTHON_TAGS = "python-or-abi-tags-disagree"
    PLATFORM_TAGS = "platform-tags-disagree"
    CASE = "paths-differ-in-case-only"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing a wheel states that is not so.

    Attributes:
        rule: which rule it breaks.
        path: the file within the wheel, or empty.
        detail: what was seen.
    """

    rule: WheelRule
    path: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """What a wheel's file name says.

    Attributes:
        name: normalized.
        version: parsed.
        build: build tag, or empty.
        tags: expanded.
    """

    name: str
    version: Version
    build: str
    tags: frozenset[Tag]


def statements(
    file_name: FileName, dist_info: str, metadata: CoreMetadata, wheel: WheelInfo
) -> Iterator[Problem]:
    """Where file name, dist-info directory, METADATA and WHEEL disagree."""
    stated_name, _, stated_version = dist_info.removesuffix(".dist-info").rpartition("-")
    names = {
        "file name": file_name.name,
        "METADATA": canonicalize_name(metadata.name),
        dist_info: canonicalize_name(stated_name),
    }
    if len(set(names.values())) != 1:
        yield Problem(WheelRule.NAME, "", _listed(names))
    versions = {
        "file name": str(file_name.version),
        "METADATA": str(metadata.version),
        dist_info: _normal(stated_version),
    }
    # 1.0 and 1.0.0 are one version (PEP 440), and installers take either for the other.
    if len({canonicalize_version(version) for version in versions.values()}) != 1:
        yield Problem(WheelRule.VERSION, "", _listed(versions))
    if wheel.build and wheel.build != file_name.build:
        builds = {"file name": file_name.build or "none", "WHEEL": wheel.build}
        yield Problem(WheelRule.BUILD, f"{dist_info}/WHEEL", _listed(builds))
    pairs = [{f"{t.interpreter}-{t.abi}" for t in tags} for tags in (file_name.tags, wheel.tags)]
    platforms = [{t.platform for t in tags} for tags in (file_name.tags, wheel.tags)]
    for rule, (outside, inside) in (
        (WheelRule.PYTHON_TAGS, pairs),
        (WheelRule.PLATFORM_TAGS, platforms),
    ):
        if outside != inside:
            tags = {"file name": _few(outside), "WHEEL": _few(inside)}
            yield Problem(rule, f"{dist_info}/WHEEL", _listed(tags))


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{where}: {printable(value, 200)}" for where, value in values.items())


def _few(values: Iterable[str]) -> str:
    return " ".join(sorted(values)[:10])


def _normal(version: str) -> str:
    try:
        return str(Version(version.replace("_", "-")))
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return version


def twins(names: Iterable[str]) -> Iterator[Problem]:
    """Paths that are one and the same where case or Unicode forms do not count."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if first != name:
            yield Problem(WheelRule.CASE, name, f"also there: {first}")


def record_problems(
    record: Sequence[RecordRow],
    dist_info: str,
    sizes: Mapping[str, int],
    digests: Mapping[str, Mapping[str, bytes]],
) -> Iterator[Problem]:
    """Where RECORD does not describe the wheel.

    Args:
        record: its rows.
        dist_info: name of the dist-info directory.
        sizes: path -> bytes, of every file of the wheel.
        digests: path -> algorithm -> digest, for every algorithm RECORD has for that path.
    """
    own = f"{dist_info}/RECORD"
    unlisted = {f"{dist_info}/{name}" for name in _SIGNATURES}
    listed: set[str] = set()
    for row in record:
        shown = printable(row.path, 300)
        if row.path in listed:
            yield Problem(WheelRule.RECORDED_TWICE, shown, "")
        listed.add(row.path)
        if row.path not in sizes:
            yield Problem(WheelRule.NOT_THERE, shown, "")
        elif row.path == own:
            if row.algorithm or row.size:
                yield Problem(WheelRule.WRONG_HASH, shown, "RECORD states a hash of itself")
        else:
            yield from _compare(row, sizes[row.path], digests[row.path])
    for name in sorted(sizes.keys() - listed - unlisted):
        yield Problem(WheelRule.NOT_RECORDED, name, "")


def _compare(row: RecordRow, size: int, digests: Mapping[str, bytes]) -> Iterator[Problem]:
    if row.size != str(size):
        detail = f"{size} bytes, RECORD says {printable(row.size, 40) or 'nothing'}"
        yield Problem(WheelRule.WRONG_SIZE, row.path, detail)
    if row.algorithm not in HASHES:
        stated = printable(row.algorithm, 40) or "none"
        yield Problem(WheelRule.WEAK_HASH, row.path, f"{stated} is not sha256 or better")
        return
    right = base64.urlsafe_b64encode(digests[row.algorithm]).rstrip(b"=").decode()
    if row.digest != right:
        detail = f"{row.algorithm}={right}, RECORD says {printable(row.digest, 100)}"
        yield Problem(WheelRule.WRONG_HASH, row.path, detail)


def limited(problems: Iterable[Problem]) -> Iterator[Problem]:
    """At most 100 of each rule, then how many more there are."""
    counts: Counter[WheelRule] = Counter()
    for problem in problems:
        counts[problem.rule] += 1
        if counts[problem.rule] <= MAX_PROBLEMS:
            yield problem
    for rule, count in sorted(counts.items()):
        if count > MAX_PROBLEMS:
            yield Problem(rule, "", f"and {count - MAX_PROBLEMS} more")

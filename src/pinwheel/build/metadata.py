"""Rewrites METADATA and WHEEL line by line, and writes the modules that state a wheel's version.

Nothing is parsed and printed again: a line that need not change keeps its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Parsed
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pinwheel.errors import WheelError
from pinwheel.recipe.models import Requirement
from pinwheel.verify.requirements import environment

MAX_BYTES = 16 << 20  # of METADATA or WHEEL; vLLM's METADATA has 10 kB

# Build tag of a wheel whose back end gave it none. A wheel for fewer capabilities has one that
# begins with 0 (pinwheel.build.order), and installers take any build tag before none (PEP 427), so
# the whole wheel has one too, with a larger number: where both lie in one index, it is installed.
WHOLE_BUILD = "1"

_FIELD = re.compile(rb"([A-Za-z0-9-]+):[ \t]*(.*?)[ \t]*(\r\n|\r|\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Field:
    """One header field of METADATA or WHEEL, with its continuation lines.

    Attributes:
        name: lower case.
        value: text without surrounding blanks, continuation lines joined by a blank.
        raw: its bytes, line end included.
        end: its line end.
    """

    name: str
    value: str
    raw: bytes
    end: bytes


def fields(data: bytes, what: str) -> tuple[tuple[Field, ...], bytes]:
    """Split a file of header fields into fields and the rest, from the first blank line on.

    The raw bytes of the fields and the rest, put together, are ``data``.

    Args:
        data: METADATA or WHEEL (core metadata specification: an e-mail header, in UTF-8).
        what: what messages call the file.

    Raises:
        WheelError: not such a file, or larger than 16 MiB.
    """
    if len(data) > MAX_BYTES:
        raise _refuse(what, f"{len(data)} bytes, more than {MAX_BYTES}")
    found: list[list[bytes]] = []
    position = 0
    # Bytes are split at \n, \r\n and \r only, text also at what Unicode calls a line end.
    for line in data.splitlines(keepends=True):
        if not line.strip(b"\r\n"):
            break
        if line[:1] in (b" ", b"\t"):
            if not found:
                raise _refuse(what, f"starts with a continuation line: {line[:80]!r}")
            found[-1].append(line)
        else:
            found.append([line])
        position += len(line)
    return tuple(_field(part, what) for part in found), data[position:]


def _field(lines: Sequence[bytes], what: str) -> Field:
    raw = b"".join(lines)
    match = _FIELD.fullmatch(lines[0])
    if match is None:
        raise _refuse(what, f"no field: {lines[0][:80]!r}")
    parts = [match[2], *(line.strip() for line in lines[1:])]
    try:
        value = b" ".join(parts).decode()
    except UnicodeDecodeError as error:
        raise _refuse(what, f"not UTF-8: {lines[0][:80]!r}") from error
    end = lines[-1][len(lines[-1].rstrip(b"\r\n")) :]
    return Field(match[1].decode().lower(), value, raw, end)


def _refuse(what: str, *evidence: str) -> WheelError:
    return WheelError(
        f"{what} of the raw wheel cannot be rewritten",
        evidence=evidence,
        next_step="Look at the build back end that wrote it; nothing was written.",
    )


def only(found: Sequence[Field], name: str, what: str) -> Field:
    """The one field of that name.

    Raises:
        WheelError: it is absent or there twice.
    """
    matching = [f for f in found if f.name == name.lower()]
    if len(matching) != 1:
        raise _refuse(what, f"{name} is there {len(matching)} times, must be once")
    return matching[0]


def normal_version(text: str, what: str) -> Version:
    """Parse a version that must be written in its normal form (version specifiers, PEP 440).

    Raises:
        WheelError: it is no version, or not in normal form.
    """
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise WheelError(
            f"{what} {text!r} is no version", next_step="Correct the recipe or the build back end."
        ) from error
    if str(version) != text:
        raise WheelError(
            f"{what} {text!r} is not in normal form",
            evidence=(f"normal form: {version}",),
            next_step="Write the normal form.",
        )
    return version


def rewrite_metadata(data: bytes, *, version: str, requirements: Sequence[Requirement]) -> bytes:
    """METADATA with another version and other pins, every other byte as it was.

    A line is found by meaning, not by text: ``torch (==2.4.0)`` is ``torch==2.4.0``.

    Args:
        data: METADATA of the raw wheel.
        version: the wheel's full version; its public part must be that of the raw wheel.
        requirements: what to rewrite; each ``old`` must be there exactly once.

    Raises:
        WheelError: a requirement is gone or there twice, the versions contradict each other, or
            a requirement of the result cannot be installed from an index (a local version or a
            direct URL).
    """
    found, rest = fields(data, "METADATA")
    stated = only(found, "Version", "METADATA")
    _same_public(stated.value, version)
    old: dict[str, tuple[Parsed, Requirement]] = {}
    for change in requirements:
        parsed = parse_requirement(change.old)
        if any(parsed == other for other, _ in old.values()):
            raise _refuse("METADATA", f"the recipe rewrites {change.old!r} twice")
        old[change.old] = (parsed, change)

    used: dict[str, int] = dict.fromkeys(old, 0)
    out: list[bytes] = []
    result: list[Parsed] = []
    for field in found:
        if field is stated:
            out.append(b"Version: " + version.encode() + field.end)
            continue
        if field.name != "requires-dist":
            out.append(field.raw)
            continue
        here = parse_requirement(field.value)
        key = next((k for k, (parsed, _) in old.items() if parsed == here), None)
        if key is None:
            out.append(field.raw)
            result.append(here)
            continue
        used[key] += 1
        change = old[key][1]
        result.append(parse_requirement(change.new))
        out.append(b"Requires-Dist: " + change.new.encode() + field.end)

    for key, count in used.items():
        if count != 1:
            raise _not_once(key, old[key][1], count, found)
    _must_be_installable(result)
    for change in requirements:
        wanted = parse_requirement(change.new)
        if sum(r == wanted for r in result) != 1:
            raise _refuse("METADATA", f"{change.new!r} would be there more than once")
    return b"".join(out) + rest


def _same_public(raw: str, version: str) -> None:
    full = normal_version(version, "the wheel's version")
    try:
        stated = Version(raw)
    except InvalidVersion as error:
        raise _refuse("METADATA", f"Version {raw!r} is no version") from error
    if Version(stated.public) != Version(full.public):
        raise WheelError(
            f"the raw wheel is version {stated.public}, the combo builds {full.public}",
            evidence=(f"METADATA: Version: {raw}", f"combo: {version}"),
            next_step="Build the source the recipe names; nothing was written.",
        )


def _not_once(key: str, change: Requirement, count: int, found: Sequence[Field]) -> WheelError:
    name = canonicalize_name(parse_requirement(key).name)
    near = [f.value for f in found if f.name == "requires-dist"]
    near = [v for v in near if canonicalize_name(parse_requirement(v).name) == name]
    what = "is no longer there" if count == 0 else f"is there {count} times"
    return WheelError(
        f"the requirement {key!r} that the recipe rewrites {what} in METADATA",
        evidence=[f"Requires-Dist: {v}" for v in near] or [f"no requirement on {name}"],
        next_step=f"Correct [[requirements]] (to become {change.new!r}) in recipe.toml: upstream "
        "or a patch changed the line.",
    )


def parse_requirement(text: str) -> Parsed:
    """Parse one requirement.

    Raises:
        WheelError: it is none.
    """
    try:
        return Parsed(text)
    except (InvalidRequirement, RecursionError) as error:
        raise _refuse("METADATA", f"no requirement: {text[:200]!r}") from error


def _must_be_installable(requirements: Sequence[Parsed]) -> None:
    for requirement in requirements:
        local = [str(s) for s in requirement.specifier if "+" in s.version]
        if requirement.url or local:
            raise WheelError(
                f"the requirement {str(requirement)!r} cannot be installed from an index",
                evidence=(
                    f"direct URL: {requirement.url}"
                    if requirement.url
                    else f"local version: {', '.join(local)}",
                ),
                next_step="Write the public form, torch==2.3.0 say: it matches every local "
                "version of 2.3.0 and an index that serves only 2.3.0.",
            )


def check_against_lock(data: bytes, locked: Mapping[str, str], *, python: str) -> None:
    """Refuse METADATA whose pins exclude what the lock installs beside the wheel.

    Args:
        data: METADATA, finished.
        locked: distribution name -> version, of the run environment.
        python: ``3.11``: markers are judged for it, on Linux x86_64, without extras.

    Raises:
        WheelError: a requirement excludes the locked version, or is not in the lock.
    """
    names = {canonicalize_name(n): v for n, v in locked.items()}
    here = environment(python)
    wrong: list[str] = []
    for field in fields(data, "METADATA")[0]:
        if field.name != "requires-dist":
            continue
        requirement = parse_requirement(field.value)
        marker = requirement.marker
        if marker is not None and not marker.evaluate(here):
            continue
        version = names.get(canonicalize_name(requirement.name))
        if version is None:
            wrong.append(f"METADATA: {field.value}; the lock has no {requirement.name}")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"METADATA: {field.value}; lock: {requirement.name} {version}")
    if wrong:
        raise WheelError(
            "METADATA contradicts the lock",
            evidence=wrong,
            next_step="Correct [[requirements]] in recipe.toml, or lock the combo again.",
        )


def rewrite_wheel_file(
    data: bytes, *, build: str, tags: Sequence[tuple[str, str]], platforms: Sequence[str]
) -> bytes:
    """WHEEL with the Build and Tag lines that the file name has, every other byte as it was.

    Args:
        data: WHEEL of the raw wheel.
        build: build tag of the finished wheel; what the raw one states must be that.
        tags: (python, abi) pairs, as the raw wheel has them.
        platforms: platform tags of the finished wheel.

    Raises:
        WheelError: no Tag lines, another build tag, or a wheel format other than 1.x.
    """
    found, rest = fields(data, "WHEEL")
    if not re.fullmatch(r"1\.\d+", only(found, "Wheel-Version", "WHEEL").value):
        raise _refuse("WHEEL", "Wheel-Version is not 1.x")
    if not any(f.name == "tag" for f in found):
        raise _refuse("WHEEL", "it has no Tag")
    stated = [f.value for f in found if f.name == "build"]
    if stated not in ([], [build]):
        raise _refuse("WHEEL", *(f"Build: {value}" for value in stated), f"to become: {build}")
    lines = (f"{python}-{abi}-{platform}" for python, abi in tags for platform in platforms)
    new = [*([] if stated else [f"Build: {build}"]), *(f"Tag: {line}" for line in lines)]
    return b"".join(_with_lines(found, new)) + rest


def _with_lines(found: Sequence[Field], new: Sequence[str]) -> Iterator[bytes]:
    """The fields with new lines in the place of the first Tag, and no other Tag."""
    written = False
    for field in found:
        if field.name != "tag":
            yield field.raw
        elif not written:
            written = True
            for line in new:
                yield line.encode() + (field.end or b"\n")


def version_module(version: str) -> str:
    """Source of ``_version.py``, with the names that setuptools-scm's file has.

    ``__version_tuple__`` has the release as integers, then pre, post and dev parts and the local
    part as text where there are any: ``(0, 6, 3, 'cu121.torch2.3')``.
    """
    v = normal_version(version, "the wheel's version")
    parts: list[int | str] = [f"{v.epoch}!"] if v.epoch else []
    parts += v.release
    if v.pre is not None:
        parts.append(f"{v.pre[0]}{v.pre[1]}")
    if v.post is not None:
        parts.append(f"post{v.post}")
    if v.dev is not None:
        parts.append(f"dev{v.dev}")
    if v.local is not None:
        parts.append(v.local)
    shown = ", ".join(repr(p) for p in parts) + ("," if len(parts) == 1 else "")
    return (
        '"""The version of this wheel; written when it was finished."""\n\n'
        f"__version__ = version = {version!r}\n"
        f"__version_tuple__ = version_tuple = ({shown})\n"
    )


def built_for_module(built_for: Mapping[str, str | bool]) -> str:
    """Source of ``_pinwheel.py``: what the extensions were compiled against, as constants."""
    for name in built_for:
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            raise ValueError(f"{name!r} is no name of a constant")
    lines = "".join(f"{name} = {value!r}\n" for name, value in sorted(built_for.items()))
    return '"""What the extensions of this wheel were compiled against."""\n\n' + lines

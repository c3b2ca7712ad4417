"""Applies a series of patches exactly, or not at all.

``patch`` of the host is not used: a host may have none, and its fuzz would let a hunk land where
its context does not match.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pinwheel.errors import PatchError
from pinwheel.files import writing
from pinwheel.inputs.patch_file import (
    ChangeKind,
    FileChange,
    Hunk,
    Patch,
    printable,
    read_patch,
    read_series,
    refuse,
)

__all__ = [
    "AppliedFile",
    "AppliedPatch",
    "AppliedSeries",
    "ChangeKind",
    "Patch",
    "apply_series",
    "read_patch",
    "read_series",
]

_SHOWN = 12  # lines of a hunk quoted in an error


@dataclass(frozen=True, slots=True)
class AppliedFile:
    """One file of an applied patch; ``offsets`` are lines each hunk was moved by (0: none)."""

    path: str
    kind: ChangeKind
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AppliedPatch:
    """One applied patch, as the manifest states it."""

    name: str
    sha256: str
    subject: str
    files: tuple[AppliedFile, ...]


@dataclass(frozen=True, slots=True)
class AppliedSeries:
    """A series that was applied, whole."""

    patches: tuple[AppliedPatch, ...]

    @property
    def paths(self) -> frozenset[str]:
        """Every path the series touched."""
        return frozenset(file.path for patch in self.patches for file in patch.files)

    def as_dict(self) -> list[dict[str, object]]:
        """The series as plain data, in order of application."""
        return [
            {
                "name": patch.name,
                "sha256": patch.sha256,
                "subject": patch.subject,
                "files": [
                    {"path": f.path, "change": f.kind.value, "offsets": list(f.offsets)}
                    for f in patch.files
                ],
            }
            for patch in self.patches
        ]


@dataclass(slots=True)
class _State:
    """A file as it is after the patches so far; ``data`` is None where there is no file."""

    data: bytes | None
    mode: int
    existed: bool


def apply_series(tree: Path, patches: Iterable[Patch], *, mtime: int) -> AppliedSeries:
    """Apply ``patches`` in order to the source tree, each hunk at the exact context it names.

    A hunk may sit at other lines than it says (the offset is reported) if its old lines are
    there exactly once; fuzz is never allowed. Nothing is written before every hunk fits.

    Args:
        tree: the unpacked source.
        patches: as :func:`read_series` gives them.
        mtime: seconds since 1970 (the build's SOURCE_DATE_EPOCH) that every file written, and
            every directory written to, gets.

    Raises:
        PatchError: a hunk that does not fit (patch, file, hunk, the lines expected and those
            there), a file missing or in the way, a path through a symlink.
    """
    states: dict[str, _State] = {}
    applied = []
    for patch in patches:
        files = tuple(_apply(tree, patch.name, change, states) for change in patch.files)
        applied.append(AppliedPatch(patch.name, patch.sha256, patch.subject, files))
    _write(tree, states, mtime)
    return AppliedSeries(tuple(applied))


def _load(tree: Path, patch: str, path: str) -> _State:
    where = tree
    for part in PurePosixPath(path).parts:
        where = where / part
        try:
            status = where.lstat()
        except FileNotFoundError:
            return _State(None, 0o644, existed=False)
        kind = status.st_mode
        last = where == tree / path
        if not (stat.S_ISREG(kind) if last else stat.S_ISDIR(kind)):
            refuse(
                patch,
                f"touches {path}, which is not a plain file in a plain directory",
                (f"{where.relative_to(tree)} is a {'symlink' if stat.S_ISLNK(kind) else 'other'}",),
            )
    return _State(where.read_bytes(), stat.S_IMODE(status.st_mode), existed=True)


def _apply(tree: Path, patch: str, change: FileChange, states: dict[str, _State]) -> AppliedFile:
    state = states.get(change.path) or _load(tree, patch, change.path)
    states[change.path] = state
    stale = "The source is not the one this series was made for; make the patch anew for it."
    if change.kind is ChangeKind.CREATE:
        if state.data is not None:
            refuse(patch, f"creates {change.path}, which is there already", (), stale)
        state.data, state.mode = b"".join(change.hunks[0].new), change.mode or 0o644
        return AppliedFile(change.path, change.kind, (0,))
    if state.data is None:
        first = change.hunks[0]
        refuse(
            patch,
            f"changes {change.path}, which does not exist",
            (f"file: {change.path}", f"hunk {first.number}: {printable(first.header)}"),
            stale,
        )
    lines = [line + b"\n" for line in state.data.split(b"\n")]
    lines[-1] = lines[-1].removesuffix(b"\n")
    if not lines[-1]:
        lines.pop()
    offsets: list[int] = []
    grown = floor = 0
    for hunk in change.hunks:
        named = hunk.start - 1 + grown
        found = _places(lines, hunk.old, floor)
        if named in found and not any(offsets):
            at = named
        elif len(found) == 1:
            at = found[0]
        else:
            raise _does_not_fit(patch, change.path, hunk, lines, named, found)
        lines[at : at + len(hunk.old)] = hunk.new
        offsets.append(at - named)
        grown += len(hunk.new) - len(hunk.old)
        floor = at + len(hunk.new)
    state.data = b"".join(lines)
    if change.kind is ChangeKind.DELETE:
        if state.data:
            refuse(patch, f"deletes {change.path}, which has more lines than the patch", (), stale)
        state.data = None
    return AppliedFile(change.path, change.kind, tuple(offsets))


def _places(lines: list[bytes], old: tuple[bytes, ...], floor: int) -> list[int]:
    last = len(lines) - len(old)
    wanted = list(old)
    return [
        i
        for i in range(floor, last + 1)
        if lines[i] == old[0] and lines[i : i + len(old)] == wanted
    ]


def _does_not_fit(
    patch: str, path: str, hunk: Hunk, lines: list[bytes], named: int, found: list[int]
) -> PatchError:
    evidence = [f"file: {path}", f"hunk {hunk.number}: {printable(hunk.header)}"]
    if found:
        evidence.append(f"its lines are in {len(found)} places: {[i + 1 for i in found]}")
    else:
        there = lines[max(named, 0) : max(named, 0) + len(hunk.old)]
        if lines[named : named + len(hunk.new)] == list(hunk.new):
            evidence.append("the lines it would write are there: it seems to be applied already")
        differs = next((i for i, line in enumerate(hunk.old) if there[i : i + 1] != [line]), 0)
        first = max(0, min(differs - 3, len(hunk.old) - _SHOWN))
        for title, side in (("expected", hunk.old), ("there", tuple(there))):
            shown = side[first : first + _SHOWN]
            evidence += [f"{title} {named + 1 + first + i}: {printable(line)}"
                         for i, line in enumerate(shown)]  # fmt: skip
            if not shown:
                evidence.append(f"{title}: nothing (the file has {len(lines)} lines)")
    return PatchError(
        f"patch {patch} does not apply: hunk {hunk.number} of {path}",
        evidence=evidence,
        next_step="Nothing was changed. Make the patch anew for this source, or build the "
        "version it was made for.",
    )


def _write(tree: Path, states: dict[str, _State], mtime: int) -> None:
    staged: list[tuple[Path, Path]] = []
    try:
        for path, state in states.items():
            if state.data is None:
                continue
            target = tree / path
            temporary = target.with_name(f".{target.name}.pinwheel")
            with writing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                staged.append((temporary, target))
                temporary.write_bytes(state.data)
                temporary.chmod(state.mode)
                os.utime(temporary, (mtime, mtime))
        for temporary, target in staged:
            with writing(target):
                temporary.replace(target)
    finally:
        for temporary, _ in staged:
            temporary.unlink(missing_ok=True)
    for path, state in states.items():
        target = tree / path
        if state.data is None and state.existed:
            with writing(target):
                target.unlink()
        for parent in PurePosixPath(path).parents:
            if (tree / parent).is_dir():
                os.utime(tree / parent, (mtime, mtime))

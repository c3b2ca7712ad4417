"""Reads one patch file strictly: its header, and a unified diff in which nothing is skipped.

unidiff parses the diff. What it passes over in silence (a damaged hunk header, text between
hunks, a rename) would make a patch do less than it says, so all of that is refused here.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NoReturn

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as RawHunk
from unidiff.patch import PatchedFile, PatchSet

from pinwheel.errors import PatchError

MAX_PATCH = 4 << 20  # bytes; a patch series is meant to be read
FIELDS = ("Subject", "Why", "Upstream", "Checked-by")
_NAME = re.compile(r"(\d{4})-[a-z0-9][a-z0-9.-]*\.patch")
_DIFF_START = re.compile(rb"^(?:diff --git |--- \S)", re.MULTILINE)
# All that may stand between hunks; anything else is text no reader of the patch would expect.
_BETWEEN = re.compile(
    r"diff --git a/\S+ b/\S+|index [0-9a-f]+\.\.[0-9a-f]+(?: \d+)?|new file mode 100(?:644|755)"
    r"|deleted file mode 100(?:644|755)|--- [^\t]+(?:\t.*)?|\+\+\+ [^\t]+(?:\t.*)?"
    r"|@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@.*|\\ No newline at end of file"
)


class ChangeKind(StrEnum):
    """What a patch does to one file."""

    MODIFY = "modify"
    CREATE = "create"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk: its number within the file, its header, and the lines before and after.

    ``start`` is the 1-based line of the old file; lines keep their line ends, as bytes.
    """

    number: int
    header: str
    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FileChange:
    """What one patch does to one file; ``mode`` is set for a created file only."""

    path: str
    kind: ChangeKind
    hunks: tuple[Hunk, ...]
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch file: its header, what it changes, and the hash of its bytes."""

    name: str
    subject: str
    why: str
    upstream: str
    checked_by: str
    files: tuple[FileChange, ...]
    sha256: str

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path the patch touches, in its order."""
        return tuple(change.path for change in self.files)


def read_patch(path: Path) -> Patch:
    """Read one patch file: ``NNNN-title.patch``, a header, then a unified diff for ``-p1``.

    The header has ``Subject:``, ``Why:``, ``Upstream:`` and ``Checked-by:``, once each; a line
    that starts with a space continues the one above.

    Raises:
        PatchError: a name, header or diff that is not as described, a binary change, a rename,
            or a path that leaves the source tree.
    """
    if not _NAME.fullmatch(path.name):
        refuse(path.name, "has a name that is not NNNN-title.patch", ())
    try:
        data = path.read_bytes()
    except OSError as error:
        refuse(path.name, "cannot be read", (str(error),))
    if len(data) > MAX_PATCH:
        refuse(path.name, f"is larger than {MAX_PATCH} bytes", (f"{len(data)} bytes",))
    start = _DIFF_START.search(data)
    if start is None:
        refuse(path.name, "has no diff", ())
    header = _read_header(path.name, data[: start.start()])
    return Patch(
        name=path.name,
        subject=header["Subject"],
        why=header["Why"],
        upstream=header["Upstream"],
        checked_by=header["Checked-by"],
        files=_read_diff(path.name, data[start.start() :]),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def read_series(paths: Iterable[Path]) -> tuple[Patch, ...]:
    """Read a series in the order of its numbers.

    Raises:
        PatchError: as :func:`read_patch`, or two patches with one number.
    """
    patches = tuple(read_patch(path) for path in sorted(paths, key=lambda p: p.name))
    for before, after in pairwise(patches):
        if before.name[:4] == after.name[:4]:
            refuse(after.name, "has the number of another patch", (before.name,))
    return patches


def refuse(name: str, why: str, evidence: Iterable[str], next_step: str = "") -> NoReturn:
    """Raise PatchError about patch ``name``, in one sentence that ``why`` completes."""
    raise PatchError(
        f"patch {name} {why}",
        evidence=evidence,
        next_step=next_step or "Correct the patch; docs/patches.md describes its form.",
    )


def _read_header(name: str, data: bytes) -> dict[str, str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        refuse(name, "has a header that is not UTF-8", (str(error),))
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        key, colon, value = line.partition(":")
        if not line.strip() or line == "---":
            continue
        if line[0] in " \t" and current is not None:
            current.append(line.strip())
        elif colon and key in FIELDS and key not in found:
            current = found[key] = [value.strip()]
        else:
            refuse(name, f"has a header line that is no field of its own (line {number})", (line,))
    values = {key: " ".join(filter(None, lines)) for key, lines in found.items()}
    missing = [field for field in FIELDS if not values.get(field)]
    if missing:
        refuse(name, f"has no {', '.join(missing)} in its header", ())
    return values


def _read_diff(name: str, data: bytes) -> tuple[FileChange, ...]:
    # latin-1 maps every byte to one character and back, so no byte is lost on the way.
    text = data.decode("latin-1")
    lines = text.split("\n")
    if lines.pop():
        refuse(name, "ends in the middle of a line", ())
    try:
        parsed = PatchSet(text)
    except (UnidiffParseError, ValueError) as error:  # a line number of thousands of digits
        refuse(name, "has a diff that cannot be parsed", (printable(str(error)),))
    for file in parsed:
        if file.is_binary_file:
            refuse(name, "has a binary change", (printable(file.path),))

    inside = {line.diff_line_no for file in parsed for hunk in file for line in hunk}
    between = [(n, line) for n, line in enumerate(lines, 1) if n not in inside]
    for number, line in between:
        if not _BETWEEN.fullmatch(line):
            refuse(name, f"has a line that is no part of a diff (line {number} of the diff)",
                    (printable(line),))  # fmt: skip
    headers = [line.split("\t")[0] for _, line in between]
    counts = Counter(line.split(" ", 1)[0] for line in headers)
    hunks = sum(len(file) for file in parsed)
    if counts["@@"] != hunks or any(counts[k] != len(parsed) for k in ("---", "+++")):
        refuse(name, "has a change without lines (a rename, a mode, an empty or binary file)", ())
    named = zip(
        (line[4:] for line in headers if line.startswith("--- ")),
        (line[4:] for line in headers if line.startswith("+++ ")),
        strict=True,
    )
    modes = iter(line for line in headers if line.startswith("new file mode "))
    changes = tuple(
        _file_change(name, file, names, modes) for file, names in zip(parsed, named, strict=True)
    )
    for path, times in Counter(change.path for change in changes).items():
        if times > 1:
            refuse(name, "changes one file twice", (path,))
    return changes


def _file_change(
    name: str, file: PatchedFile, names: tuple[str, str], modes: Iterator[str]
) -> FileChange:
    old, new = names
    if (file.source_file, file.target_file) != names:
        refuse(name, "names a file in two ways", (printable(f"{old} and {file.source_file}"),))
    kind = ChangeKind.MODIFY
    if old == "/dev/null":
        kind = ChangeKind.CREATE
    elif new == "/dev/null":
        kind = ChangeKind.DELETE
    stripped = {
        side[2:] if side.startswith(prefix) else None
        for side, prefix in ((old, "a/"), (new, "b/"))
        if side != "/dev/null"
    }
    path = stripped.pop() if len(stripped) == 1 else None
    if path is None:
        refuse(name, "does not name a file as a/PATH and b/PATH", (printable(f"{old} -> {new}"),))
    parts = PurePosixPath(path).parts
    if path != "/".join(parts) or ".." in parts or path[:1] in ("", "/") or "\\" in path:
        refuse(name, "names a path outside the source tree", (printable(path),))
    if not path.isascii() or not path.isprintable():
        refuse(name, "names a path with characters this project does not use", (ascii(path),))
    hunks = tuple(_hunk(raw, number) for number, raw in enumerate(file, 1))
    for hunk in hunks:
        if kind is ChangeKind.MODIFY and not hunk.old:
            refuse(name, "has a hunk without context, which fits anywhere", (hunk.header,))
    if kind is not ChangeKind.MODIFY and (
        len(hunks) != 1 or (hunks[0].old if kind is ChangeKind.CREATE else hunks[0].new)
    ):
        refuse(name, f"does not {kind} {path} as a whole", tuple(h.header for h in hunks))
    mode = int(next(modes, "644")[-3:], 8) if kind is ChangeKind.CREATE else None
    return FileChange(path, kind, hunks, mode)


def _hunk(raw: RawHunk, number: int) -> Hunk:
    old: list[bytes] = []
    new: list[bytes] = []
    last: tuple[list[bytes], ...] = ()
    for line in raw:
        if line.line_type == "\\":  # "No newline at end of file", about the line before
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
            continue
        last = {" ": (old, new), "-": (old,), "+": (new,)}[line.line_type]
        for side in last:
            side.append(line.value.encode("latin-1"))
    return Hunk(number, str(raw).split("\n", 1)[0], raw.source_start, tuple(old), tuple(new))


def printable(line: str | bytes) -> str:
    """``line`` for a message: its end dropped, control characters and odd bytes as escapes."""
    text = line.decode("utf-8", "backslashreplace") if isinstance(line, bytes) else line
    text = text.removesuffix("\n")[:200]
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text)

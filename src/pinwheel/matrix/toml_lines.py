"""Finding the line of a key in a TOML text, for errors that name file, line and key.

``tomllib`` keeps no positions. This is a reader of headers and keys only, good for pointing a
person at a line; a key it cannot find is answered with the nearest table around it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import lru_cache

_KEY_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_KEY = rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
_INLINE = re.compile(rf"[{{,][ \t]*({_KEY})[ \t]*=")

Path = tuple[str | int, ...]


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line (from 1) where ``path`` is written, or where the nearest table around it is.

    Args:
        text: the TOML text.
        path: keys from the top, numbers being places in an array of tables.
    """
    wanted: Path = tuple(path)
    best, best_depth = 1, 0
    for start, found, number in _keys(text):
        depth = 0
        for mine, theirs in zip(wanted, found, strict=False):
            if mine != theirs:
                break
            depth += 1
        if depth >= start and depth > best_depth:
            best, best_depth = number, depth
    return best


@lru_cache(maxsize=1)
def _keys(text: str) -> tuple[tuple[int, Path, int], ...]:
    """Every header and key: from which depth on it is written here, its path, its line.

    Kept for the next question: a file with a thousand faults is read once.
    """
    result: list[tuple[int, Path, int]] = []
    table: Path = ()
    seen: dict[Path, int] = {}
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quote:
            if quote in line:
                quote = ""
            continue
        if header := _HEADER.match(line):
            table = _split(header.group(2))
            if header.group(1) == "[[":
                index = seen.get(table, -1) + 1
                seen[table] = index
                table = (*table, index)
            elif seen:
                table = _inside(table, seen)
            result.append((1, table, number))
        elif assignment := _ASSIGNMENT.match(line):
            here = (*table, *_split(assignment.group(1)))
            result.append((len(table) + 1, here, number))
            for inline in _INLINE.finditer(line, assignment.end()):
                inner = (*here, *_split(inline.group(1)))
                result.append((len(inner), inner, number))
        for mark in ('"""', "'''"):
            if line.count(mark) % 2:
                quote = mark
    return tuple(result)


def line_of_syntax_error(error: tomllib.TOMLDecodeError) -> int:
    """The line a TOML syntax error names, or 1."""
    match = re.search(r"at line (\d+)", str(error))
    return int(match.group(1)) if match else 1


def dotted(path: Sequence[str | int]) -> str:
    """``path`` as a person writes it in TOML: ``cuda."12.4".newest-gcc``."""
    parts = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part + 1}]")
        elif re.fullmatch(r"[A-Za-z0-9_-]+", part):
            parts.append(f".{part}")
        else:
            parts.append(f'."{part}"')
    return "".join(parts).removeprefix(".")


def _split(key: str) -> Path:
    """The parts of a dotted key, unquoted by the real parser."""
    try:
        node: object = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return (key,)
    parts: list[str | int] = []
    while isinstance(node, dict):
        name, node = next(iter(node.items()))
        parts.append(name)
    return tuple(parts)


def _inside(table: Path, seen: dict[Path, int]) -> Path:
    """A header below an array of tables means the array's latest element."""
    done: Path = ()
    for part in table:
        done = (*done, part)
        if done in seen:
            done = (*done, seen[done])
    return done

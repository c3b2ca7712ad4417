"""Reads which PyTorch operators a library registers, from its strings, without running it.

``TORCH_LIBRARY(ns, m) { m.def("name(Tensor x) -> ()") }`` leaves the schema text in ``.rodata``
(torch/library.h). Where ``m.def("name", &function)`` has torch infer the schema only the name is
there, beside a C++ function of that name among the dynamic symbols. Two limits follow. Which
operator belongs to which of a library's namespaces cannot be read. And a compiler may build the
tail of a string with instructions: a return type that does not parse is unknown, not wrong.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from pinwheel.errors import WheelError
from pinwheel.files import CHUNK

# Bounds on what a hostile file can make us read; vLLM 0.6.3's largest library has 0.7 MB of
# read-only data and 1.8 MB of symbol names.
MAX_SECTION = 64 << 20  # bytes
MAX_NAME = 200  # characters of an operator's name that is looked for
MAX_SCHEMA = 8192  # characters; the longest of 0.6.3 has fewer than 600

#: pyelftools meets damage with whatever its parsing runs into.
STUMBLES = (
    ELFError,
    OSError,  # an offset that no file can have
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    LookupError,
    AssertionError,
    OverflowError,
    MemoryError,
    RecursionError,
    struct.error,
)

# Types of schemas: torch/csrc/jit/frontend/schema_type_parser.cpp, and classes by their full name.
_BASE = (
    r"(?:Tensor|int|float|bool|str|complex|number|Scalar|ScalarType|SymInt|SymBool|Device|Stream"
    r"|Layout|MemoryFormat|Generator|Dimname|Storage|QScheme|Any|AnyEnumType|NoneType"
    r"|DeviceIndex|Dict\([^()]*\)|__torch__(?:\.\w+)+)"
)
_TYPE = _BASE + r"(?:\([a-z0-9!|*> -]{1,20}\)|[!?]|\[\d*\])*"
_ARGUMENT = re.compile(rf"(?:\*|{_TYPE} \w+(?:=.+)?)")
_RETURN = re.compile(rf"\( ?\)|{_TYPE}(?: \w+)?|\((?:{_TYPE}(?: \w+)?(?:, ?|(?=\))))+\)")
_SCHEMA = re.compile(r"([A-Za-z_]\w*(?:\.\w+)?)\((.*)\) ?-> ?(.*)")
_PRINTABLE = re.compile(rb"[\x20-\x7e\t\n]{2,%d}" % MAX_SCHEMA)
_WORD = 8  # bytes of a register
_CONSTANT = (".text", ".rodata")  # with the sections whose names begin so, ".rodata.cst16" say
_FUNCTION = re.compile(rb"(?:^|\0)_Z(\d{1,3})([A-Za-z_]\w+)")


@dataclass(frozen=True, slots=True, order=True)
class Schema:
    """One operator schema: name with its overload, arguments with white space evened out.

    ``returns`` is None where it cannot be read.
    """

    name: str
    arguments: str
    returns: str | None


@dataclass(frozen=True, slots=True)
class Operators:
    """What one library registers, as its strings tell.

    Attributes:
        namespaces: candidates.
        schemas: sorted.
        bare: names without a schema.
        bound: names of schemas, and of those asked for, that a string ends with: as which
            ``m.impl("name", ...)`` binds a kernel. Linkers merge a string into the end of another.
    """

    namespaces: tuple[str, ...]
    schemas: tuple[Schema, ...]
    bare: tuple[str, ...]
    bound: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Every operator name, without namespace."""
        return frozenset(schema.name for schema in self.schemas) | frozenset(self.bare)


def operator_names(path: Path, namespace: str, wanted: Iterable[str] = ()) -> Operators:
    """Read the operators a library registers.

    Args:
        path: an ELF shared library; nothing of it runs.
        namespace: the extension's own, ``_C``; ``_C_cache_ops`` and the like count as its too.
        wanted: names that :attr:`Operators.bound` is to tell of, too.

    Raises:
        WheelError: not an ELF file, damaged, or with tables beyond the bounds above.
    """
    with _opened(path) as file:
        texts, symbols = _sections(file)
    return operators_in(texts, symbols, namespace, wanted)


def traced(path: Path, names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` that a library has in pieces, as compilers copy a short string.

    They write words of eight bytes as operands of instructions or as constants, so every whole
    word of a name must be somewhere in code or constants, and four bytes of what is left over. A
    name whose last bytes alone were changed passes.

    Raises:
        WheelError: as :func:`operator_names`.
    """
    left = {name: _pieces(name) for name in names}
    every = {piece for pieces in left.values() for piece in pieces}
    with _opened(path) as file:
        for section in ELFFile(file).iter_sections():
            if section["sh_type"] == "SHT_NOBITS" or not section.name.startswith(_CONSTANT):
                continue
            file.seek(section["sh_offset"])
            size, before = section["sh_size"], b""
            while every and size > 0 and (block := file.read(min(size, CHUNK))):
                size -= len(block)
                data = before + block
                every -= {piece for piece in every if piece in data}
                before = data[-_WORD:]
    return frozenset(name for name, pieces in left.items() if not pieces & every)


def _pieces(name: str) -> frozenset[bytes]:
    text = name.encode("ascii", "replace")
    words = {text[at : at + _WORD] for at in range(0, len(text) - _WORD + 1, _WORD)}
    rest = text[len(text) // _WORD * _WORD :][: _WORD // 2]
    return frozenset(words | {rest} if len(rest) == _WORD // 2 or not words else words)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A library; whatever pyelftools stumbles over within the block is one error."""
    with path.open("rb") as file:
        try:
            yield file
        except STUMBLES as error:
            raise WheelError(
                f"{path.name} cannot be read as an ELF shared library",
                evidence=(f"{type(error).__name__}: {error}"[:300],),
                next_step="The wheel it comes from is damaged or not what it should be.",
            ) from error


def _sections(file: IO[bytes]) -> tuple[bytes, bytes]:
    elf = ELFFile(file)
    found: dict[str, list[bytes]] = {".rodata": [], ".dynstr": []}
    left = MAX_SECTION
    for section in elf.iter_sections():
        kind = ".rodata" if section.name.startswith(".rodata") else section.name
        if kind in found and section["sh_type"] != "SHT_NOBITS":
            left -= section["sh_size"]
            if left < 0:
                raise ValueError(f"{section.name} is larger than {MAX_SECTION} bytes")
            found[kind].append(section.data())
    return b"\0".join(found[".rodata"]), b"\0".join(found[".dynstr"])


def operators_in(
    texts: bytes, symbols: bytes, namespace: str, wanted: Iterable[str] = ()
) -> Operators:
    """The operators in read-only data ``texts`` and symbol names ``symbols``."""
    schemas: set[Schema] = set()
    own = re.compile(rf"{re.escape(namespace)}(?:_\w+)?")
    namespaces: set[str] = set()
    literals: set[str] = set()
    run: list[str] = []
    end, near = -1, False
    for match in _PRINTABLE.finditer(texts):
        text = match[0].decode("ascii")
        if not text.isidentifier():
            if "->" in text and (schema := parse_schema(text)):
                schemas.add(schema)
            continue
        # The registering source's short literals lie end to end, its namespaces among them;
        # a name elsewhere is a __func__ in some message.
        if match.start() != end + 1:
            run, near = [], False
        end = match.end()
        run.append(text)
        if own.fullmatch(text):
            namespaces.add(text)
            near = True
        if near:
            literals.update(run)
            run = []
    named = {schema.name.split(".", 1)[0] for schema in schemas}
    functions = {
        text[: int(length)].decode("ascii")
        for length, text in _FUNCTION.findall(symbols)
        if 0 < int(length) <= len(text)
    }
    return Operators(
        namespaces=tuple(sorted(namespaces)),
        schemas=tuple(sorted(schemas, key=lambda s: (s.name, s.arguments, s.returns or ""))),
        bare=tuple(sorted((literals & functions) - named)),
        bound=_bound(texts, {schema.name for schema in schemas}.union(wanted)),
    )


def _bound(texts: bytes, names: set[str]) -> frozenset[str]:
    """Those of ``names`` that some string ends with."""
    looked_for = {name.encode("ascii", "replace") for name in names if len(name) <= MAX_NAME}
    lengths = sorted({len(name) for name in looked_for})
    found: set[bytes] = set()
    for match in _PRINTABLE.finditer(texts) if looked_for else ():
        text = match[0]
        if texts[match.end() : match.end() + 1] in (b"\0", b""):
            for length in lengths:
                if length > len(text):
                    break
                if text[-length:] in looked_for:
                    found.add(text[-length:])
    return frozenset(name.decode("ascii") for name in found)


def parse_schema(text: str) -> Schema | None:
    """``text`` as an operator schema, or None if it is something else."""
    match = _SCHEMA.fullmatch(" ".join(text.split()))
    if match is None:
        return None
    name, inside, returns = match.groups()
    arguments = _split(inside)
    if not all(_ARGUMENT.fullmatch(argument) for argument in arguments):
        return None
    known = _RETURN.fullmatch(returns) is not None
    return Schema(name, ", ".join(arguments), returns.replace("( )", "()") if known else None)


def _split(inside: str) -> list[str]:
    """The arguments between the parentheses: split at commas of no inner bracket."""
    parts = [""]
    depth = 0
    for character in inside:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    stripped = [part.strip() for part in parts]
    return [] if stripped == [""] else stripped

"""Mangled C++ names: which entity one means, whatever flag its standard library was used with.

libstdc++ has two of each string and list (its manual, "Dual ABI"): ``_GLIBCXX_USE_CXX11_ABI=1``
puts them into ``std::__cxx11`` and tags functions that return them, so one function has two
mangled names. :func:`entity` gives both of them the same key.

A demangler does not serve: its text writes substitutions out, which grows without bound on a
hostile name, and gives the constructors of a class one text. Here a part is a digest of its
parts, so a name costs time and memory by its length alone.

Source of the grammar: Itanium C++ ABI, section 5.1 "External Names".
"""

from __future__ import annotations

from dataclasses import dataclass

from pinwheel.verify.abi_grammar import CLONE, Key, UnreadableError
from pinwheel.verify.abi_parser import Parser

__all__ = ["Entity", "UnreadableError", "entity"]

LONGEST = 16_384  # characters; the longest name of torch 2.3.0 has 1,995


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """What a mangled name means.

    Attributes:
        key: equal for two names exactly when they mean the same entity; the ABI flag does not
            count.
        path: identifiers of the qualified name, ``("c10", "cuda", "SetDevice")``; a part without
            identifier (an operator, a lambda, a constructor) is left out.
        identifiers: identifiers outside ``std`` as they are spelled, ``"9SetDevice"``: each name
            of an entity contains all of them.
        head: what each name of an entity begins with, ``"_ZN3c104cuda9SetDevice"``; empty for one
            of ``std``.
        cxx11: the name shows flag 1: ``std::__cxx11`` or the tag ``cxx11``.
        old: the name shows flag 0: a string or list outside ``std::__cxx11``.
    """

    key: Key
    path: tuple[str, ...]
    identifiers: frozenset[str]
    head: str
    cxx11: bool
    old: bool


def entity(name: str) -> Entity:
    """Read one mangled name, ``_ZN3c104cuda9SetDeviceEi``.

    Raises:
        UnreadableError: it is none, or uses what this reader does not know; also for names longer
            or nested deeper than any compiler writes.
    """
    if not name.startswith("_Z") or len(name) > LONGEST:
        raise UnreadableError(name[:100])
    parser = Parser(name)
    try:
        key = parser.encoding()
    except (IndexError, RecursionError) as error:
        raise UnreadableError(name[:100]) from error
    if not CLONE.fullmatch(name, parser.at):
        raise UnreadableError(name[:100])
    return Entity(
        key=key,
        path=tuple(parser.path),
        identifiers=frozenset(parser.identifiers),
        head=name[: parser.head],
        cxx11=parser.cxx11,
        old=parser.old,
    )

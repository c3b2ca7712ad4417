"""The pieces of mangled C++ names: tables of codes, digests of parts, and a cursor over a name.

Source: Itanium C++ ABI, section 5.1 "External Names". :mod:`pinwheel.verify.abi_mangling` is what
puts them together.
"""

from __future__ import annotations

import re
from hashlib import blake2b

BUILTIN = frozenset("vwbcahstijlmxynofdegz")
BUILTIN_D = frozenset("defhisuacn")  # after D: decimal floats, char8, auto, nullptr and so on
UNARY = ("ps", "ng", "ad", "de", "co", "nt", "aw", "dl", "da")
BINARY = (
    "pl", "mi", "ml", "dv", "rm", "an", "or", "eo", "aS", "pL", "mI", "mL", "dV", "rM", "aN", "oR",
    "eO", "ls", "rs", "lS", "rS", "eq", "ne", "lt", "gt", "le", "ge", "ss", "aa", "oo", "cm", "pm",
    "ix",
)  # fmt: skip
OPERATORS = frozenset([*UNARY, *BINARY, "nw", "na", "pp", "mm", "pt", "cl", "qu"])
# What follows the code of an expression: e expression, t type, u unresolved name, a template
# argument; with * as many of them as come before an E.
EXPRESSIONS = {
    **dict.fromkeys([*UNARY, "sp", "te", "sz", "az", "nx", "tw", "sZ"], "e"),
    **dict.fromkeys([*BINARY, "ds"], "ee"),
    **dict.fromkeys(["ti", "st", "at"], "t"),
    **dict.fromkeys(["sc", "dc", "rc", "cc"], "te"),
    **dict.fromkeys(["cl", "il", "cp"], "e*"),
    **dict.fromkeys(["dt", "pt"], "eu"),
    "qu": "eee",
    "tl": "te*",
    "sr": "tu",
    "sP": "a*",
    "tr": "",
}
NUMBER = re.compile(r"n?[0-9]{1,20}")
LENGTH = re.compile(r"[1-9][0-9]{0,4}")
SEQUENCE = re.compile(r"[0-9A-Z]{0,8}_")
LITERAL = re.compile(r"[-0-9a-zA-DF-Z_.]*E")
FLOAT = re.compile(r"[0-9]{1,4}[_bx]")
MEMBER_QUALIFIERS = re.compile(r"H?[rVK]*[RO]?")
QUALIFIERS = re.compile(r"[rVK]+")
FUNCTION_PARAMETER = re.compile(r"([0-9]+p)?[rVK]*(T|[0-9]*_)")
DISCRIMINATOR = re.compile(r"(_[0-9]|__[0-9]{1,20}_)?")
SPECIAL_MEMBER = re.compile(r"C[1-5]|D[0-24-5]")
CALL_OFFSET = re.compile(r"hn?[0-9]{1,20}_|vn?[0-9]{1,20}_n?[0-9]{1,20}_")
CLONE = re.compile(r"(\.[A-Za-z0-9_.]+)?")

# libstdc++ names that exist in std and in std::__cxx11: those of <string>, <list>, <sstream>,
# <regex> and the locale facets that take or give strings (libstdc++ manual, "Dual ABI").
DUAL = frozenset(
    {
        "basic_string", "list", "basic_stringbuf", "basic_istringstream", "basic_ostringstream",
        "basic_stringstream", "basic_regex", "regex_traits", "sub_match", "match_results",
        "regex_iterator", "regex_token_iterator", "collate", "collate_byname", "messages",
        "messages_byname", "money_get", "money_put", "moneypunct", "moneypunct_byname",
        "numpunct", "numpunct_byname", "time_get", "time_get_byname",
    }
)  # fmt: skip

Key = bytes


class UnreadableError(ValueError):
    """The name is no mangled name, or one of a kind that is not known here."""


def digest(kind: str, *parts: Key | str) -> Key:
    """One part of a name, from the parts it is made of: equal for equal parts only."""
    total = blake2b(kind.encode(), digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(b":%d:" % len(data) + data)
    return total.digest()


STD = digest("name", "std")
CXX11 = digest("name", "std::__cxx11")  # as a scope it counts as std
_CHAR = digest("builtin", "c")


def _std(name: str, *arguments: Key) -> Key:
    inside = digest("in", STD, digest("name", name))
    return digest("template", inside, *arguments) if arguments else inside


_TRAITS = _std("char_traits", _CHAR)
# Itanium C++ ABI 5.1.10, "Compression": what each abbreviation stands for.
ABBREVIATIONS = {
    "a": _std("allocator"),
    "b": _std("basic_string"),
    "s": _std("basic_string", _CHAR, _TRAITS, _std("allocator", _CHAR)),
    "i": _std("basic_istream", _CHAR, _TRAITS),
    "o": _std("basic_ostream", _CHAR, _TRAITS),
    "d": _std("basic_iostream", _CHAR, _TRAITS),
}


class Cursor:
    """A place in a name, and what can be taken there."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 2
        self.candidates: list[Key] = []  # for substitution, in the order of the standard

    def wrong(self) -> UnreadableError:
        """The name cannot be read from here on."""
        return UnreadableError(f"{self.text[:100]} at {self.at}")

    def look(self, offset: int = 0) -> str:
        """The next character, or one further on; empty behind the end."""
        return self.text[self.at + offset : self.at + offset + 1]

    def take(self, text: str) -> bool:
        """Go past ``text`` when it is next."""
        found = self.text.startswith(text, self.at)
        if found:
            self.at += len(text)
        return found

    def want(self, text: str) -> None:
        """Go past ``text``, which has to be next."""
        if not self.take(text):
            raise self.wrong()

    def match(self, pattern: re.Pattern[str]) -> str:
        """Go past what the pattern matches, and give it."""
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.wrong()
        self.at = found.end()
        return found.group()

    def code(self) -> str:
        """Go past two letters, and give them."""
        self.at += 2
        return self.text[self.at - 2 : self.at]

    def add(self, node: Key) -> Key:
        """Make a part a candidate for substitution."""
        self.candidates.append(node)
        return node

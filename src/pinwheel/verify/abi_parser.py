"""Reads one mangled C++ name into a digest of what it means; see pinwheel.verify.abi_mangling.

Source: Itanium C++ ABI, section 5.1 "External Names", whose productions the methods are named
after. What it leaves open is done as gcc does it, which compiles torch and its extensions.
"""

from __future__ import annotations

from pinwheel.verify import abi_grammar as g
from pinwheel.verify.abi_grammar import CXX11, STD, Cursor, Key, digest


class Parser(Cursor):
    """One pass over one name. It never goes back, so its time is linear in the name's length."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.path: list[str] = []
        self.identifiers: set[str] = set()
        self.cxx11 = self.old = False
        #: How much of the text every name of the entity begins with, whatever the flag.
        self.head = 0
        self._fixed = False  # what follows may differ by the flag, so the head is over
        self._aside = 0  # within template arguments and the like, which are no part of the path
        self._named = False  # the first name is over; what follows is no part of the path

    def _one(self, what: str) -> Key:
        """One part of the kind that a letter in ``EXPRESSIONS`` stands for."""
        if what == "e":
            return self._expression()
        if what == "t":
            return self._type()
        return self._argument() if what == "a" else self._unresolved()

    def _many(self, what: str) -> list[Key]:
        """Parts up to an ``E``, none of them part of the path."""
        found = []
        self._aside += 1
        while not self.take("E"):
            found.append(self._one(what))
        self._aside -= 1
        return found

    # --- names ---------------------------------------------------------------------------------

    def encoding(self) -> Key:
        """A function with its types, or a variable, or what the compiler makes of a class."""
        if self.look() in ("T", "G"):
            return self._special()
        name = self._name()
        types = []
        while self.at < len(self.text) and self.look() not in ("E", "."):
            requires = self.take("Q")
            types.append(digest("requires", self._expression()) if requires else self._type())
        return digest("function", name, *types) if types else name

    def _special(self) -> Key:
        kind = self.code()
        if kind in ("TV", "TT", "TI", "TS"):
            return digest(kind, self._type())
        if kind in ("Th", "Tv", "Tc"):
            self.at -= kind != "Tc"
            offsets = [self.match(g.CALL_OFFSET) for _ in range(2 if kind == "Tc" else 1)]
            return digest(kind, *offsets, self.encoding())
        if kind == "TC":
            derived, offset = self._type(), self.match(g.NUMBER)
            self.want("_")
            return digest(kind, derived, offset, self._type())
        if kind in ("TW", "TH", "GV"):
            return digest(kind, self._name())
        if kind == "GR":
            return digest(kind, self._name(), self.match(g.SEQUENCE))
        if kind == "TA":
            return digest(kind, self._argument())
        if kind == "GT" and self.look() in ("t", "n"):
            self.at += 1
            return digest(kind, self.encoding())
        raise self.wrong()

    def _name(self) -> Key:
        if self.take("N"):
            node = self._nested()
        elif self.take("Z"):
            node = self._local()
        elif self.look() == "S" and self.look(1) != "t":
            node = digest("template", self._substitution(), *self._arguments())
        else:
            node = self._unqualified(STD if self.take("St") else None)
            if self.look() == "I":
                self.add(node)
                node = digest("template", node, *self._arguments())
        self._named = self._named or not self._aside
        return node

    def _nested(self) -> Key:
        qualifiers = self.match(g.MEMBER_QUALIFIERS)
        scope: Key | None = None
        whole = False  # more than a substitution
        while not self.take("E"):
            whole = True
            if self.look() == "S" and scope is None:
                scope = STD if self.take("St") else self._substitution()
                whole = False
                continue
            if self.look() == "I" and scope is not None:
                scope = digest("template", scope, *self._arguments())
            elif self.look() == "T" and scope is None:
                scope = self._parameter()
            elif self.look() == "D" and self.look(1) in ("t", "T"):
                scope = self._decltype()
            else:
                scope = self._unqualified(scope)
            self.add(scope)
            self.take("M")  # what follows is in the initializer of that member
        if scope is None or not whole:
            raise self.wrong()
        self.candidates.pop()  # the whole is none; as a type it is added again
        return digest("qualified", scope, qualifiers) if qualifiers else scope

    def _local(self) -> Key:
        function = self.encoding()
        self.want("E")
        if self.take("s"):  # a string literal
            return digest("local", function, self.match(g.DISCRIMINATOR))
        default = self.match(g.SEQUENCE) if self.take("d") else ""
        return digest("local", function, default, self._name(), self.match(g.DISCRIMINATOR))

    def _unqualified(self, scope: Key | None) -> Key:
        """One component; its scope is written before it."""
        self.take("F")  # a friend that its class defines
        self.take("L")  # internal linkage
        first, second = self.look(), self.look(1)
        if first.isdigit():
            identifier = self._source()
            if scope == STD and identifier == "__cxx11":
                self.cxx11 = True
                return CXX11
            self._spelled(identifier, scope)
            part = digest("name", identifier)
        elif first == "U" and second == "t":
            self.at += 2
            part = digest("unnamed", self.match(g.SEQUENCE))
        elif first == "U" and second == "l":
            self.at += 2
            part = digest("lambda", *self._many("a"), self.match(g.SEQUENCE))
        elif first == "D" and second == "C":
            self.at += 2
            part = digest("binding", *self._sources())
        elif first in ("C", "D") and second != "I":
            part = digest("special", self.match(g.SPECIAL_MEMBER))
        elif first == "C":
            self.at += 3
            part = digest("inheriting", self.look(-1), self._type())
        else:
            part = self._operator()
        part = self._tags(part)
        if scope is None:
            return part
        return digest("in", STD if scope == CXX11 else scope, part)

    def _spelled(self, identifier: str, scope: Key | None) -> None:
        if scope == STD and identifier in g.DUAL:
            self.old = True
        if scope in (STD, CXX11):  # flag 0 may abbreviate what is in std
            self._fixed = True
        else:
            self.identifiers.add(f"{len(identifier)}{identifier}")
        if not self._aside and not self._named:
            self.path += ["std"] if scope in (STD, CXX11) and not self.path else []
            self.path.append(identifier)
            if not self._fixed:
                self.head = self.at

    def _source(self) -> str:
        length = int(self.match(g.LENGTH))
        if self.at + length > len(self.text):
            raise self.wrong()
        self.at += length
        return self.text[self.at - length : self.at]

    def _sources(self) -> list[str]:
        found = []
        while not self.take("E"):
            found.append(self._source())
        return found

    def _tags(self, node: Key) -> Key:
        while self.take("B"):
            self._fixed = True
            tag = self._source()
            if tag == "cxx11":
                self.cxx11 = True
            else:
                node = digest("tag", node, tag)
        return node

    def _operator(self) -> Key:
        code = self.code()
        if code == "cv":
            self._aside += 1
            target = self._type(conversion=True)
            self._aside -= 1
            return digest("conversion", target)
        if code == "li":
            return digest("literal", self._source())
        if code in g.OPERATORS:
            return digest("operator", code)
        raise self.wrong()

    def _substitution(self) -> Key:
        self.want("S")
        self._fixed = True
        if (abbreviation := self.look()) in g.ABBREVIATIONS:
            self.at += 1
            self.old = self.old or abbreviation in "bs"
            if not self._aside and not self._named and not self.path:
                self.path.append("std")
            node = g.ABBREVIATIONS[abbreviation]
            tagged = self._tags(node)
            return node if tagged == node else self.add(tagged)
        sequence = self.match(g.SEQUENCE)[:-1]
        return self.candidates[int(sequence, 36) + 1 if sequence else 0]

    # --- types ---------------------------------------------------------------------------------

    def _type(self, *, conversion: bool = False) -> Key:
        """A type. What follows the target of a conversion are the operator's own arguments."""
        first, second = self.look(), self.look(1)
        if first and first in g.BUILTIN:
            self.at += 1
            return digest("builtin", first)
        if first == "D" and (second == "F" or (second and second in g.BUILTIN_D)):
            code = self.code()
            return digest("builtin", code, self.match(g.FLOAT) if second == "F" else "")
        if first and first in "rVK":
            qualifiers = self.match(g.QUALIFIERS)
            # Those of a member function are part of its type, and no candidate of their own.
            inner = self._function() if self._at_function() else self._type()
            return self.add(digest("qualified", inner, qualifiers))
        if first and first in "PROCG":
            self.at += 1
            return self.add(digest("to", first, self._type()))
        if first == "S" and second != "t":
            node = self._substitution()
        elif first == "T" and second not in ("s", "u", "e"):
            node = self.add(self._parameter())
        else:
            return self.add(self._compound())
        if self.look() == "I" and not conversion:
            return self.add(digest("template", node, *self._arguments()))
        return node

    def _compound(self) -> Key:
        first, second = self.look(), self.look(1)
        if self._at_function():
            return self._function()
        if first == "D" and second in ("t", "T"):
            return self._decltype()
        if self.take("Dp"):
            return digest("expansion", self._type())
        if self.take("Dv") or self.take("A"):
            size: Key | str = ""
            if self.look() != "_":
                size = self.match(g.NUMBER) if self.look().isdigit() else self._expression()
            self.want("_")
            return digest("array" if first == "A" else "vector", size, self._type())
        if self.take("M"):
            return digest("member", self._type(), self._type())
        if self.take("u"):
            return digest("vendor", self._source())
        if first == "U" and second.isdigit():
            self.at += 1
            vendor = self._source()
            extra = self._arguments() if self.look() == "I" else []
            return digest("vendor", vendor, *extra, self._type())
        if first == "T":
            self.at += 2  # struct, union or enum, said before its name
        elif not first.isdigit() and first not in ("N", "Z", "S", "U"):
            raise self.wrong()
        return self._name()

    def _at_function(self) -> bool:
        first, second = self.look(), self.look(1)
        return first == "F" or (first == "D" and second in ("o", "O", "w", "x"))

    def _function(self) -> Key:
        exception: list[Key] = []
        if self.take("Do"):
            exception = [digest("noexcept")]
        elif self.take("DO"):
            exception = [self._expression()]
            self.want("E")
        elif self.take("Dw"):
            exception = self._many("t")
        self.take("Dx")
        self.want("F")
        self.take("Y")  # extern "C"
        types: list[Key] = []
        reference = ""
        while not self.take("E"):
            if self.look() in ("R", "O") and self.look(1) == "E":
                reference = self.look()
                self.at += 1
            else:
                types.append(self._type())
        return digest("signature", *types, reference, *exception)

    def _decltype(self) -> Key:
        self.at += 2
        node = digest("decltype", self._expression())
        self.want("E")
        return node

    def _parameter(self) -> Key:
        self.want("T")
        level = "L" + self.match(g.NUMBER) + self.match(g.SEQUENCE) if self.take("L") else ""
        return digest("parameter", level, self.match(g.SEQUENCE))

    def _declaration(self) -> Key:
        """A template parameter of a generic lambda or a template template argument."""
        kind = self.code()
        if kind == "Ty":
            return digest(kind)
        if kind == "Tn":
            return digest(kind, self._type())
        if kind == "Tt":
            return digest(kind, *self._many("a"))
        return digest(kind, self._declaration())

    def _arguments(self) -> list[Key]:
        self.want("I")
        self._fixed = True
        return self._many("a")

    def _argument(self) -> Key:
        if self.take("X"):
            node = digest("expression", self._expression())
            self.want("E")
            return node
        if self.take("J") or self.take("I"):  # I is how gcc before 4.9 writes a pack
            return digest("pack", *self._many("a"))
        if self.look() == "L":
            return self._primary()
        if self.take("Q"):
            return digest("requires", self._expression())
        if self.look() == "T" and self.look(1) in ("y", "n", "t", "p"):
            return self._declaration()
        return self._type()

    # --- expressions ---------------------------------------------------------------------------

    def _primary(self) -> Key:
        self.want("L")
        if self.take("_Z") or self.take("Z"):
            node = digest("reference", self.encoding())
            self.want("E")
            return node
        return digest("value", self._type(), self.match(g.LITERAL))

    def _expression(self) -> Key:
        first, second = self.look(), self.look(1)
        if first == "L":
            return self._primary()
        if first == "T":
            return self._parameter()
        if first.isdigit() or (second == "n" and first in ("o", "d")):
            return self._unresolved()
        self.take("gs")
        code = self.code()
        if code == "fp" or (code == "fL" and self.look().isdigit()):
            return digest("fp", self.match(g.FUNCTION_PARAMETER))
        if code in ("fl", "fr", "fL", "fR"):
            operator = self._operator()
            operands = [self._expression() for _ in range(1 if code in ("fl", "fr") else 2)]
            return digest(code, operator, *operands)
        if code in ("pp", "mm"):
            return digest(code, "prefix" if self.take("_") else "", self._expression())
        if code == "cv":
            target = self._type(conversion=True)
            several = self.take("_")
            return digest(code, target, *(self._many("e") if several else [self._expression()]))
        if code not in g.EXPRESSIONS:
            raise self.wrong()
        parts: list[Key] = []
        steps = g.EXPRESSIONS[code]
        for step, after in zip(steps, [*steps[1:], ""], strict=True):
            if after == "*":
                parts += self._many(step)
            elif step != "*":
                parts.append(self._one(step))
        return digest(code, *parts)

    def _unresolved(self) -> Key:
        if self.take("sr"):
            return digest("sr", self._type(), self._unresolved())
        if self.take("on"):
            node = self._operator()
        elif self.take("dn"):
            node = digest("dn", self._unresolved() if self.look().isdigit() else self._type())
        else:
            node = digest("name", self._source())
        return digest("template", node, *self._arguments()) if self.look() == "I" else node

"""Compares a finished wheel with upstream's official one, reading both, running neither.

Every difference is listed; one is explained when the recipe, the patch series or the build says
why it is there. Explanations that explain nothing are differences too, so a list of exceptions
cannot outlive its reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from pinwheel.files import sha256_file
from pinwheel.inspect.compared import (
    ComparedWheel,
    Kind,
    kind_of,
    read_wheel,
    requirement,
    unpacked,
)
from pinwheel.inspect.operators import Operators, Schema, operator_names, traced

_SHORT = 15  # characters that a std::string holds within itself


class Change(StrEnum):
    """How a path of our wheel relates to the official one's."""

    ADDED = "added"
    MISSING = "missing"
    DIFFERENT = "different"
    UNUSED = "unused explanation"


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One difference; ``reason`` is empty when nothing explains it."""

    kind: Kind
    path: str
    change: Change
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ExtensionParity:
    """Operators of one library both wheels have; ``unreadable`` have a return type unknown."""

    path: str
    official: int
    ours: int
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parity:
    """The comparison, whole. ``same`` counts identical files by kind."""

    official: str
    official_sha256: str
    same: dict[str, int]
    differences: tuple[Difference, ...]
    extensions: tuple[ExtensionParity, ...]

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences that nothing explains."""
        return tuple(d for d in self.differences if not d.reason)

    @property
    def ok(self) -> bool:
        """Whether every difference is explained."""
        return not self.unexplained

    def as_dict(self) -> dict[str, object]:
        """The comparison as plain data for the manifest; the same wheels give the same."""
        return {
            "official": self.official,
            "official-sha256": self.official_sha256,
            "ok": self.ok,
            "same": dict(sorted(self.same.items())),
            "differences": [
                {"kind": d.kind.value, "path": d.path, "change": d.change.value, "reason": d.reason}
                for d in self.differences
            ],
            "extensions": [
                {
                    "path": e.path,
                    "official-operators": e.official,
                    "operators": e.ours,
                    "unreadable-returns": list(e.unreadable),
                }
                for e in self.extensions
            ],
        }


def compare_wheels(
    ours: Path,
    official: Path,
    *,
    absent_ok: Mapping[str, str],
    patched: Collection[str],
    generated: Mapping[str, str] | None = None,
    requirements: Mapping[str, str] | None = None,
    namespaces: Mapping[str, str] | None = None,
    registered: Mapping[str, Collection[str]] | None = None,
    unbound: Mapping[str, Mapping[str, str]] | None = None,
) -> Parity:
    """Compare two wheels of one release.

    Args:
        ours: the finished wheel.
        official: upstream's, from the index.
        absent_ok: path the official wheel has and ours need not -> reason; a path that ends in
            ``/`` stands for all below it.
        patched: paths the patch series touches (paths outside the wheel do not matter).
        generated: path only ours has -> reason; ``*.dist-info/NAME`` for one in dist-info.
        requirements: requirement line of the official METADATA -> ours, as the recipe has them.
        namespaces: library -> its operator namespace; by default its stem.
        registered: library -> operator names that torch listed after loading ours, or a recipe
            lists, as ``name`` or ``namespace::name``. Each must be in our library, if only in
            pieces (a compiler may build a short schema with instructions), and the library may
            show no other.
        unbound: library -> operator that ours declares and has no kernel for -> reason.

    Raises:
        WheelError: a wheel that cannot be read, or holds what no wheel may.
        DiskFullError: no room to unpack one library.
    """
    mine, theirs = read_wheel(ours), read_wheel(official)
    reasons = _Reasons(absent_ok, generated or {})
    found: list[Difference] = []
    same: dict[str, int] = {}
    for path in sorted(mine.files.keys() | theirs.files.keys()):
        kind = kind_of(path)
        if path not in mine.files:
            found.append(Difference(kind, path, Change.MISSING, reasons.absent(path)))
        elif path not in theirs.files:
            reason = "created by the patch series" if path in patched else reasons.added(path)
            found.append(Difference(kind, path, Change.ADDED, reason))
        elif kind is Kind.EXTENSION:
            continue
        elif mine.files[path] != theirs.files[path]:
            reason = "changed by the patch series" if path in patched else ""
            found.append(Difference(kind, path, Change.DIFFERENT, reason))
        else:
            same[kind.value] = same.get(kind.value, 0) + 1
            if path in patched:
                found.append(Difference(kind, path, Change.UNUSED))
    found += [Difference(kind_of(p), p, Change.UNUSED) for p in reasons.unused()]
    found += _fields(mine.fields, theirs.fields, requirements or {})

    extensions = []
    for path in sorted(mine.files.keys() & theirs.files.keys()):
        if kind_of(path) is Kind.EXTENSION:
            stem = PurePosixPath(path).name.split(".", 1)[0]
            namespace = (namespaces or {}).get(path, stem)
            known = (registered or {}).get(path)
            parity, differences = _operators(mine, theirs, path, namespace, known)
            extensions.append(parity)
            found += _bound(path, differences, (unbound or {}).get(path, {}))
    return Parity(
        official=official.name,
        official_sha256=sha256_file(official),
        same=same,
        differences=tuple(sorted(found)),
        extensions=tuple(extensions),
    )


_UNBOUND = ", as the name that a kernel is bound to"


def _bound(
    path: str, differences: list[Difference], reasons: Mapping[str, str]
) -> Iterator[Difference]:
    """The differences with the reasons there are for operators without a kernel."""
    named = {f"{path}: {name}{_UNBOUND}": reason for name, reason in reasons.items()}
    missing = {d.path for d in differences if d.change is Change.MISSING}
    for difference in differences:
        reason = named.get(difference.path, "") if difference.change is Change.MISSING else ""
        yield Difference(difference.kind, difference.path, difference.change, reason)
    for unused in named.keys() - missing:
        yield Difference(Kind.OPERATOR, unused, Change.UNUSED)


class _Reasons:
    """The explanations given, and which of them were of use."""

    def __init__(self, absent: Mapping[str, str], generated: Mapping[str, str]) -> None:
        self._absent, self._generated = absent, generated
        self._used: set[str] = set()

    def absent(self, path: str) -> str:
        return self._look(
            path, {k: v for k, v in self._absent.items() if k.endswith("/") or k == path}
        )

    def added(self, path: str) -> str:
        return self._look(path, {k: v for k, v in self._generated.items() if k == path})

    def _look(self, path: str, rules: Mapping[str, str]) -> str:
        for rule, reason in sorted(rules.items(), key=lambda r: -len(r[0])):
            if path == rule or (rule.endswith("/") and path.startswith(rule)):
                self._used.add(rule)
                return reason
        return ""

    def unused(self) -> list[str]:
        return sorted({*self._absent, *self._generated} - self._used)


def _fields(
    ours: frozenset[str], official: frozenset[str], requirements: Mapping[str, str]
) -> Iterator[Difference]:
    """Differences of METADATA and WHEEL, by field; a rewritten requirement is one of two lines."""
    pairs = {requirement(old): requirement(new) for old, new in requirements.items()}
    unused = {old for old, new in pairs.items() if old not in official or new not in ours}
    news = {new for old, new in pairs.items() if old not in unused}
    for line in official - ours:
        known = line in pairs and line not in unused
        reason = f"the recipe has {pairs[line]}" if known else ""
        yield Difference(Kind.METADATA, line, Change.MISSING, reason)
    for line in ours - official:
        reason = "a requirement of the recipe" if line in news else ""
        yield Difference(Kind.METADATA, line, Change.ADDED, reason)
    for line in unused:
        yield Difference(Kind.METADATA, line, Change.UNUSED)


def _operators(
    mine: ComparedWheel,
    theirs: ComparedWheel,
    path: str,
    namespace: str,
    registered: Collection[str] | None,
) -> tuple[ExtensionParity, list[Difference]]:
    listed = {name.rsplit("::", 1)[-1] for name in registered or ()}
    with unpacked(theirs, path) as there, unpacked(mine, path) as here:
        official = operator_names(there, namespace, listed)
        ours = operator_names(here, namespace, listed)
        known, spaces = set(ours.names), set(ours.namespaces)
        added = known - official.names
        if registered is not None:
            known = _found(here, ours, official, listed)
            hidden = known - official.names
            added = (added - listed) | (hidden - official.bound - traced(there, hidden))
            if named := {n.split("::", 1)[0] for n in registered if "::" in n}:
                spaces = (spaces & named) | (spaces - set(official.namespaces))
                spaces |= traced(here, named - spaces)
    pairs = [
        *((Change.MISSING, name) for name in (official.names | listed) - known),
        *((Change.ADDED, name) for name in added),
        *((Change.MISSING, f"namespace {name}") for name in set(official.namespaces) - spaces),
        *((Change.ADDED, f"namespace {name}") for name in spaces - set(official.namespaces)),
    ]
    before, after = ({s.name: s for s in o.schemas} for o in (official, ours))
    both = sorted(before.keys() & after.keys())
    pairs += ((Change.DIFFERENT, n) for n in both if not _agree(before[n], after[n]))
    # A schema declares an operator, the string that is its name binds a kernel to it.
    unbound = (official.bound - ours.bound).intersection(both)
    pairs += ((Change.MISSING, f"{name}{_UNBOUND}") for name in unbound)
    unreadable = [n for n in both if None in (before[n].returns, after[n].returns)]
    parity = ExtensionParity(path, len(official.names), len(known), tuple(unreadable))
    return parity, [Difference(Kind.OPERATOR, f"{path}: {what}", change) for change, what in pairs]


def _found(path: Path, ours: Operators, official: Operators, listed: Collection[str]) -> set[str]:
    """The operators that were listed and that the library itself has, in whatever form.

    Compilers hide short strings in instructions, so a name that is not read as an operator's
    counts as there when the library has it in pieces; of a schema, with the bracket behind it.
    Where one short name without a schema is whole, its compiler hides none of that kind.
    """
    whole = {schema.name for schema in official.schemas}
    short = {name for name in official.bare if len(name) <= _SHORT}
    shown = short if short.intersection(ours.bare) else set()
    wanted = {
        name: f"{name}(" if name in whole else name
        for name in listed
        if name not in ours.names and (name in whole or name not in ours.bound)
    }
    lost = shown.intersection(wanted)
    there = traced(path, wanted.values()) if wanted else frozenset()
    return {
        name
        for name in listed
        if name not in wanted or (wanted[name] in there and name not in lost)
    }


def _agree(one: Schema, other: Schema) -> bool:
    if one.arguments != other.arguments:
        return False
    return None in (one.returns, other.returns) or one.returns == other.returns

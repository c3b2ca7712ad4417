"""Which torch builds a wheel's libraries fit, and what breaks each of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from pinwheel.inspect.elf import Elf, Symbol
from pinwheel.inspect.loadable import other_machine
from pinwheel.verify.abi_names import names
from pinwheel.verify.classify import (
    Cause,
    Missing,
    Sighting,
    SymbolKey,
    classify,
    drift,
    entity_of,
    sighted,
)
from pinwheel.verify.closure import Answer, Closure, Family, Needed, Resolution, close_all
from pinwheel.verify.snapshot import MACHINE, Snapshot

#: Missing symbols of one library that are looked into and listed; more are only counted.
MAX_MISSING = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One library against one torch build.

    Attributes:
        library: path within the wheel.
        missing: symbols the loader would not find, with the reason.
        needed: NEEDED entries the loader would not find.
        preloaded: symbols that are found only because torch loads their library.
        counts: how many symbols come from where.
        machine: what it is for, where that is another machine than the torch builds'; or empty.
    """

    library: str
    missing: tuple[Missing, ...]
    needed: tuple[Needed, ...]
    preloaded: tuple[Resolution, ...]
    counts: Mapping[str, int]
    machine: str = ""

    @property
    def fits(self) -> bool:
        """Everything is found, by a process that can load it at all."""
        return not self.missing and not self.needed and not self.machine

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "library": self.library,
            "fits": self.fits,
            "missing": [m.as_dict() for m in self.missing],
            "needed": [
                {"name": n.name, "how": n.need.value, "path": n.path, "nearest": n.nearest}
                for n in self.needed
            ],
            "preloaded": [{"symbol": r.name, "library": r.library} for r in self.preloaded],
            "symbols": dict(self.counts),
            "another-machine": self.machine or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A wheel against one torch build.

    Attributes:
        build: torch build.
        cxx11_abi: its ABI flag.
        libraries: one fit for each library, in the wheel's order.
    """

    build: str
    cxx11_abi: bool
    libraries: tuple[Fit, ...]

    @property
    def fits(self) -> bool:
        """Every library does."""
        return all(fit.fits for fit in self.libraries)

    @property
    def missing(self) -> tuple[tuple[str, Missing], ...]:
        """Library and symbol of all that is missing."""
        return tuple((fit.library, m) for fit in self.libraries for m in fit.missing)

    def reasons(self, known: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Each reason in a sentence, with the symbols and NEEDED entries that it explains.

        Names that torch brought and dropped at different times are one reason where some build
        has all of them.

        Args:
            known: all torch builds, oldest first.
        """
        drifted = [m for _, m in self.missing if m.cause is Cause.TORCH_VERSION and m.builds]
        common = set(known).intersection(*(m.builds for m in drifted))
        together = drift(common, known, self.build) if common else ""
        found: dict[str, dict[str, None]] = {}
        for fit in self.libraries:
            if fit.machine:
                found.setdefault(f"for another machine: {fit.machine}", {})[fit.library] = None
            for needed in fit.needed:
                there = f", there is {needed.nearest}" if needed.nearest else ""
                what = f"NEEDED, {needed.need.value}{there}"
                found.setdefault(what, {})[needed.name] = None
            for m in fit.missing:
                merged = together and m.cause is Cause.TORCH_VERSION and m.builds
                found.setdefault(together if merged else m.what, {})[m.name] = None
        return {what: tuple(of) for what, of in found.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "build": self.build,
            "cxx11-abi": self.cxx11_abi,
            "fits": self.fits,
            "libraries": [fit.as_dict() for fit in self.libraries],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stable:
    """How a library uses torch.

    Attributes:
        library: path within the wheel.
        functions: C functions of the stable ABI that it uses, sorted.
        others: names it uses of torch beside those, sorted; with any, its torch is exact.
        since: oldest known torch build from which on every known one has all the functions, and
            from which on torch keeps them; empty when there is none.
        unknown: functions that no known build has.
    """

    library: str
    functions: tuple[str, ...]
    others: tuple[str, ...]
    since: str
    unknown: tuple[str, ...]

    @property
    def uses_torch(self) -> bool:
        """It takes anything from torch at all."""
        return bool(self.functions or self.others)

    @property
    def stable(self) -> bool:
        """It uses torch through the stable ABI alone, so a minimum torch is enough."""
        return bool(self.functions) and not self.others

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "library": self.library,
            "stable": self.stable,
            "functions": len(self.functions),
            "others": len(self.others),
            "since": self.since,
            "unknown": list(self.unknown),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A wheel against all torch builds that are known, oldest first."""

    rows: tuple[Row, ...]
    stable: tuple[Stable, ...]

    @property
    def fitting(self) -> tuple[str, ...]:
        """Builds the whole wheel fits."""
        return tuple(row.build for row in self.rows if row.fits)

    def fitting_library(self, library: str) -> tuple[str, ...]:
        """Builds that one library fits."""
        return tuple(
            row.build
            for row in self.rows
            if any(fit.library == library and fit.fits for fit in row.libraries)
        )

    def row(self, build: str) -> Row:
        """The row of one build.

        Raises:
            KeyError: it was not among the snapshots.
        """
        for row in self.rows:
            if row.build == build:
                return row
        raise KeyError(build)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "builds": [row.as_dict() for row in self.rows],
            "fits": list(self.fitting),
            "stable": [s.as_dict() for s in self.stable if s.uses_torch],
        }


def table(libraries: Sequence[Elf], snapshots: Iterable[Snapshot]) -> Table:
    """Hold a wheel's libraries against torch builds.

    Args:
        libraries: all ELF libraries of the wheel.
        snapshots: torch builds in any order; each is looked at once and may be let go then.
    """
    family = Family(libraries)
    keys = {(s.name, s.version) for of in family.undefined.values() for s in of}
    machines = {elf.name: other_machine(elf, MACHINE) for elf in libraries}
    seen: dict[str, _Seen] = {}
    for snapshot in snapshots:
        closures = tuple(_slim(closure) for closure in close_all(snapshot, family))
        unresolved = {(r.name, r.version) for slim in closures for r in slim.unresolved}
        seen[snapshot.build] = _Seen(
            cxx11_abi=snapshot.cxx11_abi,
            closures=closures,
            sightings=sighted(keys, unresolved, snapshot),
        )
    seen = {build: seen[build] for build in sorted(seen, key=Version)}
    exports = {
        build: frozenset(name for (name, _), s in of.sightings.items() if s.torch)
        for build, of in seen.items()
    }
    return Table(
        rows=tuple(
            Row(
                build=build,
                cxx11_abi=of.cxx11_abi,
                libraries=tuple(
                    _fit(slim, build, seen, machines[slim.library]) for slim in of.closures
                ),
            )
            for build, of in seen.items()
        ),
        stable=tuple(stable(elf.name, family.undefined[elf.name], exports) for elf in libraries),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slim:
    """What is kept of a closure."""

    library: str
    unresolved: tuple[Resolution, ...]
    needed: tuple[Needed, ...]
    preloaded: tuple[Resolution, ...]
    counts: Mapping[str, int]


def _slim(closure: Closure) -> _Slim:
    return _Slim(
        library=closure.library,
        unresolved=closure.unresolved[:MAX_MISSING],
        needed=closure.missing,
        preloaded=closure.of(Answer.PRELOADED),
        counts=closure.counts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What is kept of a torch build."""

    cxx11_abi: bool
    closures: tuple[_Slim, ...]
    sightings: Mapping[SymbolKey, Sighting]

    def of(self, symbol: Resolution, build: str) -> Sighting:
        nothing = Sighting(build=build, cxx11_abi=self.cxx11_abi)
        return self.sightings.get((symbol.name, symbol.version), nothing)


def _fit(slim: _Slim, build: str, seen: Mapping[str, _Seen], machine: str) -> Fit:
    return Fit(
        library=slim.library,
        missing=tuple(
            classify(symbol, [of.of(symbol, other) for other, of in seen.items()], build)
            for symbol in slim.unresolved
        ),
        needed=slim.needed,
        preloaded=slim.preloaded,
        counts=slim.counts,
        machine=machine,
    )


def stable(
    library: str, undefined: Iterable[Symbol], exports: Mapping[str, frozenset[str]]
) -> Stable:
    """How a library uses torch, and the minimum torch where that is through the stable ABI.

    torch's libraries also export parts of the C++ library they were linked with. Such a name is no
    use of torch, but a build without it is too old all the same.

    Args:
        library: path within the wheel.
        undefined: its undefined symbols.
        exports: torch build -> which names torch exports there, oldest build first.
    """
    facts = names()
    anywhere = frozenset().union(*exports.values())
    functions: set[str] = set()
    others: set[str] = set()
    along: set[str] = set()
    for symbol in undefined:
        if symbol.version or symbol.weak:  # torch's own have no versions
            continue
        meant = entity_of(symbol.name)
        if facts.is_stable(symbol.name):
            functions.add(symbol.name)
        elif meant is not None and facts.is_header_only(meant.path):
            continue
        elif meant is not None and facts.is_torch(meant.path):
            others.add(symbol.name)
        elif symbol.name in anywhere:
            is_library = meant is not None and facts.is_standard(meant.path)
            (along if is_library else others).add(symbol.name)
    since = ""
    for build, names_there in reversed(list(exports.items()) if functions else []):
        if not functions | along <= names_there or Version(build) < facts.stable_since:
            break
        since = build
    return Stable(
        library=library,
        functions=tuple(sorted(functions)),
        others=tuple(sorted(others)),
        since=since,
        unknown=tuple(sorted(functions - anywhere)),
    )

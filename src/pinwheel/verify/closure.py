"""Where each undefined symbol of an extension comes from, against one torch build.

As ld.so does it for a library that ``import torch`` precedes: a NEEDED entry is found by the
SONAME of what is loaded, by the library's own search path, or not at all; a symbol by the
libraries reached through NEEDED, and by those that torch loaded for everyone. Nothing is loaded
to find out. Sources: ld.so(8), dlopen(3); for versions the Linux Standard Base, "Symbol
Versioning".
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pinwheel.inspect.elf import Elf, Symbol
from pinwheel.inspect.region import unreadable
from pinwheel.verify.abi_names import Names, names
from pinwheel.verify.abi_system import owners, system_libraries
from pinwheel.verify.snapshot import MACHINE, Library, Loaded, Provider, Providers, Snapshot

# Libraries of a wheel times what all of them need: what is followed at most. 200 libraries with
# 40 each come to 1,600,000.
MAX_STEPS = 10_000_000


class Answer(StrEnum):
    """Where a symbol comes from."""

    TORCH = "torch"
    CUDA = "cuda"  # a CUDA wheel of this torch build, which the library names as NEEDED
    WHEEL = "wheel"  # another library of the same wheel
    DRIVER = "driver"
    PYTHON = "python"
    SYSTEM = "system"
    ABSENT = "absent"  # weak, and nothing has it: the loader lets that be
    PRELOADED = "preloaded"  # a library that is there only because torch needs it
    UNRESOLVED = "unresolved"


class Need(StrEnum):
    """How a NEEDED entry is found."""

    TORCH = "torch"
    CUDA = "cuda"
    WHEEL = "wheel"
    DRIVER = "driver"
    PYTHON = "python"
    SYSTEM = "system"
    APART = "apart"  # in the same wheel, and nothing leads the loader there
    UNLOADED = "unloaded"  # in torch or a CUDA wheel, but import torch does not load it
    NOWHERE = "nowhere"

    @property
    def fits(self) -> bool:
        """The loader finds it after ``import torch``."""
        return self not in (Need.APART, Need.UNLOADED, Need.NOWHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """One NEEDED entry.

    Attributes:
        name: as the library has it, ``libcudart.so.12``.
        need: how it is found.
        path: the file that answers to it, from site-packages on; empty when none is known.
        nearest: for one that is nowhere, the same library under another version.
    """

    name: str
    need: Need
    path: str = ""
    nearest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """One undefined symbol.

    Attributes:
        name: mangled, as the file has it.
        version: symbol version asked for, or empty.
        answer: where it comes from.
        library: SONAME or path of the library that has it; for one that is unresolved, of a
            library that has it and is not among those the loader looks in.
        instead: the NEEDED entry that is nowhere, where ``library`` is another version of it.
    """

    name: str
    version: str
    answer: Answer
    library: str = ""
    instead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """One library against one torch build.

    Attributes:
        library: path within the wheel.
        build: torch build.
        needed: every NEEDED entry, in file order.
        symbols: every undefined symbol, sorted.
    """

    library: str
    build: str
    needed: tuple[Needed, ...]
    symbols: tuple[Resolution, ...]

    def of(self, answer: Answer) -> tuple[Resolution, ...]:
        """The symbols with this answer."""
        return tuple(s for s in self.symbols if s.answer is answer)

    @property
    def unresolved(self) -> tuple[Resolution, ...]:
        """Symbols the loader would not find."""
        return self.of(Answer.UNRESOLVED)

    @property
    def missing(self) -> tuple[Needed, ...]:
        """NEEDED entries the loader would not find."""
        return tuple(n for n in self.needed if not n.need.fits)

    @property
    def fits(self) -> bool:
        """Everything it asks for is found."""
        return not self.unresolved and not self.missing

    @property
    def counts(self) -> Mapping[str, int]:
        """How many symbols have which answer."""
        return {a.value: n for a in Answer if (n := len(self.of(a)))}


class Family:
    """The libraries of one wheel, and which of them has what another one lacks.

    Attributes:
        libraries: all of them.
        undefined: path -> undefined symbols, sorted.
        wanted: names that are undefined in any of them.
        exporting: those of the names that one of them exports, with which.
        called: what NEEDED may say -> those of them that it may mean.
        search: path -> directories of its own search path, as far as they are in site-packages.

    Raises:
        ArtifactError: they need each other so often that following it would take for ever.
    """

    def __init__(self, libraries: Iterable[Elf]) -> None:
        self.libraries = tuple(libraries)
        steps = len(self.libraries) * sum(len(elf.needed) for elf in self.libraries)
        if steps > MAX_STEPS:
            raise unreadable(
                "the wheel",
                "its libraries need more of each other than any wheel's do",
                f"{len(self.libraries)} libraries, each reaching up to "
                f"{steps // len(self.libraries)} NEEDED entries",
            )
        self.undefined = {elf.name: elf.undefined for elf in self.libraries}
        self.wanted = frozenset(s.name for of in self.undefined.values() for s in of)
        self.exporting: dict[str, list[tuple[Elf, Symbol]]] = {}
        self.called: dict[str, list[Elf]] = {}
        self.search = {elf.name: frozenset(_search(elf)) for elf in self.libraries}
        for elf in self.libraries:
            for name in {elf.soname, posixpath.basename(elf.name)} - {""}:
                self.called.setdefault(name, []).append(elf)
            for symbol in elf.exported:
                if symbol.name in self.wanted:
                    self.exporting.setdefault(symbol.name, []).append((elf, symbol))


def close(elf: Elf, snapshot: Snapshot, siblings: Sequence[Elf] = ()) -> Closure:
    """Resolve one library against one torch build.

    Args:
        elf: the library.
        snapshot: the torch build.
        siblings: the libraries of its wheel; it may be among them itself.
    """
    family = Family([elf, *(s for s in siblings if s.name != elf.name)])
    return next(close_all(snapshot, family))


def close_all(snapshot: Snapshot, family: Family) -> Iterator[Closure]:
    """Resolve the libraries of a wheel against one torch build, one after the other."""
    providers = snapshot.find(family.wanted)
    for elf in family.libraries:
        yield _Resolver(elf, snapshot, family).closure(providers)


class _Resolver:
    def __init__(self, elf: Elf, snapshot: Snapshot, family: Family) -> None:
        self.elf, self.snapshot, self.family = elf, snapshot, family
        self.names: Names = names()
        self.system = system_libraries(elf.machine)
        # The loader passes over libraries of another machine.
        self.by_name: Mapping[str, int] = snapshot.by_name if elf.machine == MACHINE else {}
        # What is reached through NEEDED: places in the snapshot, siblings by path, the rest.
        self.reached: set[int] = set()
        self.beside: dict[str, Elf] = {}
        self.others: set[str] = set()
        #: Libraries there are -> NEEDED entries that are another version of them, and nowhere.
        self.instead: Mapping[str, str] = {}
        #: Places in the snapshot that this wheel's own libraries name themselves.
        self.direct: set[int] = set()

    def closure(self, providers: Mapping[str, Providers]) -> Closure:
        providers = providers if self.elf.machine == MACHINE else {}
        needed = tuple(self.needed(self.elf, name) for name in self.elf.needed)
        self.instead = {n.nearest: n.name for n in needed if n.nearest}
        self.walk()
        return Closure(
            library=self.elf.name,
            build=self.snapshot.build,
            needed=needed,
            symbols=tuple(
                self.resolve(s, providers.get(s.name, ()), self.family.exporting.get(s.name, ()))
                for s in self.family.undefined[self.elf.name]
            ),
        )

    # --- NEEDED --------------------------------------------------------------------------------

    def needed(self, elf: Elf, name: str) -> Needed:
        """How the loader finds what ``elf`` names."""
        place = self.by_name.get(name)
        library = None if place is None else self.snapshot.libraries[place]
        if library is not None and library.loaded is not Loaded.NO:
            return Needed(name=name, need=_of(library), path=library.path)
        directories = self.family.search[elf.name]
        of = self.family.called.get(name, ())
        if sibling := next((s for s in of if s.name != self.elf.name), None):
            found = posixpath.dirname(sibling.name) in directories
            return Needed(name=name, need=Need.WHEEL if found else Need.APART, path=sibling.name)
        if library is not None:
            found = posixpath.dirname(library.path) in directories
            return Needed(
                name=name, need=_of(library) if found else Need.UNLOADED, path=library.path
            )
        if name in self.names.driver:
            return Needed(name=name, need=Need.DRIVER)
        if name in self.system or self.names.loader.fullmatch(name):
            return Needed(name=name, need=Need.SYSTEM)
        if self.names.python_library.fullmatch(name):
            return Needed(name=name, need=Need.PYTHON)
        return Needed(name=name, need=Need.NOWHERE, nearest=self.nearest(name))

    def nearest(self, name: str) -> str:
        stem = name.partition(".so")[0]
        found = (x.soname for x in self.snapshot.libraries if x.soname.partition(".so")[0] == stem)
        return next(found, "")

    def walk(self) -> None:
        """Follow NEEDED, as the loader does for the libraries whose symbols it searches."""
        todo: list[Elf | Library] = [self.elf]
        while todo:
            item = todo.pop()
            ours = isinstance(item, Elf)
            for name in item.needed:
                answer = self.needed(item if isinstance(item, Elf) else self.elf, name)
                place = self.by_name.get(name)
                if ours and answer.need in (Need.WHEEL, Need.APART):
                    if answer.path not in self.beside:
                        found = next(s for s in self.family.called[name] if s.name == answer.path)
                        self.beside[answer.path] = found
                        todo.append(found)
                elif place is None:
                    self.others.add(name)
                else:
                    if ours:
                        self.direct.add(place)
                    if place not in self.reached:
                        self.reached.add(place)
                        todo.append(self.snapshot.libraries[place])

    # --- symbols -------------------------------------------------------------------------------

    def resolve(
        self, symbol: Symbol, providers: Providers, inside: Sequence[tuple[Elf, Symbol]]
    ) -> Resolution:
        def answer(answer: Answer, library: str = "") -> Resolution:
            unresolved = answer is Answer.UNRESOLVED
            return Resolution(
                name=symbol.name,
                version=symbol.version,
                answer=answer,
                library=library,
                instead=self.instead.get(library, "") if unresolved else "",
            )

        # A version says where it belongs, whoever else exports the name.
        system_version = symbol.library in self.system and symbol.library in self.others
        if system_version or self.names.loader.fullmatch(symbol.library):
            return answer(Answer.SYSTEM, symbol.library)
        kin = [
            s.name
            for s, e in inside
            if s.name != self.elf.name and binds(symbol, e.version, e.default)
        ]
        if beside := [name for name in kin if name in self.beside]:
            return answer(Answer.WHEEL, beside[0])
        fitting = self.ranked([p for p in providers if binds(symbol, p.version, p.default)])
        best = self.snapshot.libraries[fitting[0].library] if fitting else None
        reached = bool(fitting) and fitting[0].library in self.reached
        if best and reached and (best.torch or fitting[0].library in self.direct):
            return answer(Answer.TORCH if best.torch else Answer.CUDA, best.soname)
        system = (symbol.library,) if symbol.version else owners().get(symbol.name, ())
        system = tuple(name for name in system if name in self.system)
        if named := [name for name in system if name in self.elf.needed]:
            return answer(Answer.SYSTEM, named[0])
        driver = symbol.library if symbol.library in self.names.driver else ""
        driver = driver or ("" if symbol.library else self.names.driver_of(symbol.name))
        if driver and driver in self.others:
            return answer(Answer.DRIVER, driver)
        if best and (reached or best.loaded is Loaded.GLOBAL):
            return answer(Answer.PRELOADED, best.soname)
        if there := [name for name in system if name in self.others]:
            return answer(Answer.PRELOADED, there[0])
        if not symbol.version and self.names.is_python(symbol.name):
            return answer(Answer.PYTHON)
        if symbol.weak:
            return answer(Answer.ABSENT)
        unlinked = [*kin, *([best.soname] if best else []), *system, driver]
        return answer(Answer.UNRESOLVED, next(filter(None, unlinked), ""))

    def ranked(self, providers: Sequence[Provider]) -> list[Provider]:
        """torch's libraries and those named as NEEDED first, then those reached, those loaded."""
        order = (Loaded.GLOBAL, Loaded.LOCAL, Loaded.NO)

        def rank(provider: Provider) -> tuple[bool, bool, int, int]:
            at = provider.library
            library = self.snapshot.libraries[at]
            near = at in self.direct or (library.torch and at in self.reached)
            return (not near, at not in self.reached, order.index(library.loaded), at)

        return sorted(providers, key=rank)


def binds(symbol: Symbol, version: str, default: bool) -> bool:
    """Whether an undefined symbol binds to a definition of its name.

    A reference with a version takes that version, or a definition without any; one without takes
    the default version (glibc, elf/dl-lookup.c, check_match).
    """
    if symbol.version:
        return version in (symbol.version, "")
    return default


def _of(library: Library) -> Need:
    return Need.TORCH if library.torch else Need.CUDA


def _search(elf: Elf) -> Iterator[str]:
    """Directories of its own search path that lie in site-packages, from there on."""
    for _, paths in elf.search_paths:
        for path in paths.split(":"):
            origin = path.replace("${ORIGIN}", "$ORIGIN")
            if origin == "$ORIGIN" or origin.startswith("$ORIGIN/"):
                relative = "." + origin.removeprefix("$ORIGIN")
                yield posixpath.normpath(posixpath.join(posixpath.dirname(elf.name), relative))

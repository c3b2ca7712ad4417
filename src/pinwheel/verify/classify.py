"""Why a symbol is missing: the ABI flag, another torch or CUDA, the package itself, or a link.

Pure functions over names and over what snapshots know of them. What none of the reasons explains
stays unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import islice

from packaging.version import Version

from pinwheel.inspect.region import printable
from pinwheel.verify.abi_mangling import Entity, UnreadableError, entity
from pinwheel.verify.abi_names import names
from pinwheel.verify.closure import Resolution
from pinwheel.verify.snapshot import Providers, Snapshot

SHOWN = 3  # names that an answer quotes
# Names of one build that are looked at, and read, for all missing ones together. vllm 0.22.1
# against torch 2.3.0 takes about 50 of each.
MAX_LOOKS = 500_000
MAX_READS = 5_000

SymbolKey = tuple[str, str]  # name and version


class Cause(StrEnum):
    """Why a symbol is missing."""

    ABI_FLAG = "abi-flag"  # built with the other _GLIBCXX_USE_CXX11_ABI
    TORCH_VERSION = "torch-version"  # built for another torch
    CUDA_VERSION = "cuda-version"  # built for another CUDA
    INTERNAL = "internal"  # of the package itself: a source was left out
    MISSING_LINK = "missing-link"  # of a library that is there, but not among its NEEDED
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one torch build has of a name.

    Attributes:
        build: torch build.
        cxx11_abi: its ABI flag.
        torch: one of torch's own libraries exports exactly this name.
        cuda: SONAME of the CUDA wheel's library that exports it, under the version asked for.
        other_version: the same name under another symbol version, ``cudaMalloc@libcudart.so.13``.
        twin: the same entity as the other ABI flag names it, exported by torch.
        namesakes: names of the same qualified name with other arguments; not all of them.
    """

    build: str
    cxx11_abi: bool
    torch: bool = False
    cuda: str = ""
    other_version: str = ""
    twin: str = ""
    namesakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """One missing symbol with its reason.

    Attributes:
        name: mangled, as the library has it.
        version: symbol version asked for, or empty.
        cause: the reason.
        what: the same in a sentence, for people.
        builds: known torch builds that have exactly what is asked for.
        evidence: what the answer rests on, a line each.
    """

    name: str
    version: str
    cause: Cause
    what: str
    builds: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Plain data, for ``--json``."""
        return {
            "symbol": self.name,
            "version": self.version,
            "cause": self.cause.value,
            "what": self.what,
            "builds": list(self.builds),
            "evidence": list(self.evidence),
        }


@lru_cache(maxsize=4096)
def entity_of(name: str) -> Entity | None:
    """What a name means; None for a C name, or one that cannot be read."""
    try:
        return entity(name)
    except UnreadableError:
        return None


def sight(wanted: Iterable[Resolution], snapshot: Snapshot) -> dict[SymbolKey, Sighting]:
    """What one torch build has of each symbol, by name and version.

    For those it has not, twins and namesakes are looked for, up to a bound.
    """
    keys = {(r.name, r.version) for r in wanted}
    found = sighted(keys, keys, snapshot)
    nothing = Sighting(build=snapshot.build, cxx11_abi=snapshot.cxx11_abi)
    return {key: found.get(key, nothing) for key in keys}


def sighted(
    keys: Collection[SymbolKey], unresolved: Iterable[SymbolKey], snapshot: Snapshot
) -> dict[SymbolKey, Sighting]:
    """As :func:`sight`, without the symbols of which the build has nothing.

    Args:
        keys: symbols, by name and version.
        unresolved: those of them whose twins and namesakes are looked for.
        snapshot: the build.
    """
    providers = snapshot.find({name for name, _ in keys})
    found = {
        (name, version): _exact(name, version, providers[name], snapshot)
        for name, version in keys
        if name in providers
    }
    missing = [key for key in sorted(set(unresolved)) if key[0] not in providers]
    search = Search(snapshot)
    for name, version in missing:
        if (meant := entity_of(name)) is None:
            continue
        twin = search.twin(meant)
        namesakes = tuple(islice(search.namesakes(name, meant), SHOWN))
        if twin or namesakes:
            found[name, version] = Sighting(
                build=snapshot.build,
                cxx11_abi=snapshot.cxx11_abi,
                twin=twin,
                namesakes=namesakes,
            )
    return found


def _exact(name: str, version: str, of: Providers, snapshot: Snapshot) -> Sighting:
    libraries = snapshot.libraries
    cuda = [p for p in of if not libraries[p.library].torch]
    exact = [p for p in cuda if (p.version in (version, "") if version else p.default)]
    return Sighting(
        build=snapshot.build,
        cxx11_abi=snapshot.cxx11_abi,
        torch=any(libraries[p.library].torch for p in of),
        cuda=libraries[exact[0].library].soname if exact else "",
        other_version=f"{name}@{cuda[0].version}" if cuda and not exact else "",
    )


class Search:
    """Looks for names in one torch build, within bounds for all of them together."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._looks = iter(range(MAX_LOOKS))
        self._reads = iter(range(MAX_READS))

    def _beginning(self, head: str) -> Iterator[str]:
        yield from (name for name, _ in zip(self.snapshot.beginning(head), self._looks))  # noqa: B905

    def _read(self, names: Iterable[str]) -> Iterator[tuple[str, Entity]]:
        for name, _ in zip(names, self._reads):  # noqa: B905 - whichever ends first
            if (meant := entity_of(name)) is not None:
                yield name, meant

    def twin(self, meant: Entity) -> str:
        """How torch names the same entity under its own ABI flag, or empty.

        Only a name that shows flag 1 differs from its twin by the flag: under flag 0 the same
        function has no tag, and its strings are those without ``__cxx11``.
        """
        if meant.cxx11 == self.snapshot.cxx11_abi or not meant.head:
            return ""
        candidates = (
            name
            for name in self._beginning(meant.head)
            if ("cxx11" in name) != meant.cxx11 and all(i in name for i in meant.identifiers)
        )
        for name, other in self._read(candidates):
            if other.key == meant.key and other.cxx11 != meant.cxx11:
                return name
        return ""

    def namesakes(self, name: str, meant: Entity) -> Iterator[str]:
        """Names torch exports for the same qualified name with other arguments."""
        if not meant.head:
            return
        plain = meant.head.replace("_ZNK", "_ZN", 1)
        for head in dict.fromkeys((plain, plain.replace("_ZN", "_ZNK", 1))):
            candidates = (
                text
                for text in self._beginning(head)
                # A digit would begin one more component of a nested name.
                if text != name and not ("_ZN" in head and text[len(head) :][:1].isdigit())
            )
            for text, other in self._read(candidates):
                if other.path == meant.path:
                    yield text


def classify(symbol: Resolution, sightings: Sequence[Sighting], build: str) -> Missing:
    """Why a symbol is missing from one torch build.

    Args:
        symbol: one that is unresolved.
        sightings: what each known torch build has of it, ``build`` among them, oldest first.
        build: the torch build it was held against.
    """
    here = next(s for s in sightings if s.build == build)
    known = [s.build for s in sightings]
    has = tuple(s.build for s in sightings if s.torch)
    meant = entity_of(symbol.name)

    def missing(cause: Cause, what: str, *evidence: str, of: tuple[str, ...] = ()) -> Missing:
        return Missing(
            name=symbol.name,
            version=symbol.version,
            cause=cause,
            what=what,
            builds=of,
            evidence=evidence,
        )

    if symbol.instead:
        what = f"CUDA drift: built for {symbol.instead}, torch {build} has {symbol.library}"
        return missing(Cause.CUDA_VERSION, what)
    if symbol.library:
        what = f"{symbol.library} has it, and is not among the libraries this one NEEDs"
        return missing(Cause.MISSING_LINK, what)
    if here.torch or here.cuda:
        return missing(Cause.UNKNOWN, f"torch {build} has it, for another machine")
    shown = _shown_flag(meant)
    if here.twin or (
        meant and names().is_torch(meant.path) and shown not in (None, here.cxx11_abi)
    ):
        flag = int(here.cxx11_abi)
        what = (
            f"ABI flag mismatch: built with _GLIBCXX_USE_CXX11_ABI={1 - flag}, "
            f"torch {build} has {flag}"
        )
        line = f"torch {build} has {here.twin}" if here.twin else _has(has, known)
        return missing(Cause.ABI_FLAG, what, *filter(None, [line]), of=has)
    near = tuple(f"torch {build} has {other}" for other in here.namesakes)
    if has:
        return missing(Cause.TORCH_VERSION, drift(has, known, build), *near, of=has)
    if cuda := tuple(s.build for s in sightings if s.cuda):
        library = next(s.cuda for s in sightings if s.cuda)
        what = f"CUDA drift: {library} of torch {span(cuda, known)} has it, {build} does not"
        return missing(Cause.CUDA_VERSION, what, *filter(None, [here.other_version]), of=cuda)
    if here.other_version:
        what = f"CUDA drift: torch {build} has it under another symbol version"
        return missing(Cause.CUDA_VERSION, what, here.other_version)
    if meant is not None:
        cause, what = _of_nobody(meant, sightings, build)
        qualified = printable("::".join(meant.path), 100)
        return missing(cause, what, *filter(None, [qualified]), *near)
    if names().is_stable(symbol.name):
        what = f"torch version drift: of the stable ABI, and in no torch up to {known[-1]}"
        return missing(Cause.TORCH_VERSION, what)
    return missing(Cause.UNKNOWN, _NOWHERE.format(build))


_NOWHERE = "in no library of torch {} or of any other torch known"


def _of_nobody(meant: Entity, sightings: Sequence[Sighting], build: str) -> tuple[Cause, str]:
    """The reason for a C++ name that no known torch exports."""
    others = [s.build for s in sightings if s.twin]
    alike = [s.build for s in sightings if s.namesakes]
    if names().is_torch(meant.path) or (len(meant.path) == 1 and alike):
        what = "torch version drift: it is torch's, and no torch known has this form"
        if others:
            known = [s.build for s in sightings]
            what += f"; torch {span(others, known)} has it under the other ABI flag"
        return Cause.TORCH_VERSION, what
    if names().is_standard(meant.path):
        return Cause.UNKNOWN, _NOWHERE.format(build)
    what = (
        "in no torch at all: it is the package's own, a source was left out of the build (by a "
        "capability filter, say) and its caller kept"
    )
    return Cause.INTERNAL, what


def _shown_flag(meant: Entity | None) -> bool | None:
    """The ABI flag a name was made with, where it shows one."""
    if meant is None or meant.cxx11 == meant.old:
        return None
    return meant.cxx11


def _has(builds: Sequence[str], known: Sequence[str]) -> str:
    return f"torch {span(builds, known)} has it as it is" if builds else ""


def drift(builds: Iterable[str], known: Sequence[str], build: str) -> str:
    """What to say of names that ``builds`` have and ``build`` has not."""
    return f"torch version drift: built for torch {span(builds, known)}, not {build}"


def span(builds: Iterable[str], known: Sequence[str]) -> str:
    """Torch builds in few words: ``2.1 to 2.2`` where all known builds of those minors are meant.

    Args:
        builds: what is meant.
        known: all builds there are, oldest first.
    """
    meant = set(builds)
    by_minor: dict[str, list[str]] = {}
    for build in known:
        by_minor.setdefault("{0.major}.{0.minor}".format(Version(build)), []).append(build)
    parts: list[tuple[str, str]] = []
    last = -2
    for place, (minor, of) in enumerate(by_minor.items()):
        inside = [build for build in of if build in meant]
        if inside == of and last == place - 1 and parts:
            parts[-1] = (parts[-1][0], minor)
            last = place
        elif inside == of:
            parts.append((minor, minor))
            last = place
        else:
            parts += [(build, build) for build in inside]
            last = -2
    return ", ".join(first if first == end else f"{first} to {end}" for first, end in parts)

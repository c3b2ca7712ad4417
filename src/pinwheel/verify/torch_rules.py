"""The rules on libtorch: is the build known, does every symbol resolve, has torch the code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from pinwheel.inspect.elf import Elf
from pinwheel.inspect.loadable import other_machine
from pinwheel.inspect.region import printable
from pinwheel.matrix.capability import Capability, KnownCapabilities, parse_capability
from pinwheel.verify import snapshot as snapshots
from pinwheel.verify.classify import (
    Cause,
    Missing,
    Sighting,
    SymbolKey,
    classify,
    sighted,
    span,
)
from pinwheel.verify.closure import (
    Answer,
    Closure,
    Family,
    Need,
    Needed,
    Resolution,
    close_all,
)
from pinwheel.verify.code import LibraryCode
from pinwheel.verify.library import shortened
from pinwheel.verify.model import Checked, Problem
from pinwheel.verify.snapshot import Snapshot

# Unresolved symbols of one library that are looked into; a real one has twelve, a hostile one may
# have a million.
MOST = 500
ABI_RULES = (
    "abi-flag",
    "abi-version",
    "abi-internal",
    "abi-link",
    "abi-resolved",
    "abi-preload",
)
_RULE = {
    Cause.ABI_FLAG: "abi-flag",
    Cause.TORCH_VERSION: "abi-version",
    Cause.CUDA_VERSION: "abi-version",
    Cause.INTERNAL: "abi-internal",
    Cause.MISSING_LINK: "abi-link",
    Cause.UNKNOWN: "abi-resolved",
}
_NEXT = {
    Cause.ABI_FLAG: "Build against the torch build that will be there, or install the one this "
    "was built for.",
    Cause.TORCH_VERSION: "Install a torch that has them, or build for this one; "
    "`pinwheel abi WHEEL` shows which builds fit.",
    Cause.CUDA_VERSION: "Install the torch build of the CUDA line this was built for; "
    "`pinwheel abi WHEEL` shows which builds fit.",
    Cause.INTERNAL: "Report it to the package: a source is missing from its build, often by a "
    "capability filter. torch is not to blame.",
    Cause.MISSING_LINK: "Link against the library that has it.",
    Cause.UNKNOWN: "Find the library that has them, and link against it.",
}


def builds_named(text: str, builds: Collection[str]) -> tuple[str, ...]:
    """The torch builds that a person may mean: one by its whole name, or all of a release.

    Args:
        text: ``2.3.0+cu121`` or ``2.3.0``.
        builds: those there are.

    Returns:
        One when it is plain which is meant, several of one release, or none.
    """
    try:
        wanted = Version(text)
    except ValueError:  # also a number of thousands of digits
        return ()
    same = tuple(build for build in builds if Version(build) == wanted)
    if same or wanted.local:
        return same
    return tuple(build for build in builds if Version(Version(build).public) == wanted)


def load_snapshot(build: str, source: str) -> tuple[Snapshot | None, Checked]:
    """The snapshot of the torch build a wheel is held against, and ``torch-known``.

    Args:
        build: torch build; empty when unknown.
        source: where it comes from, or why it is unknown.

    Raises:
        SnapshotError: the snapshot is damaged.
    """
    rule = "torch-known"
    if not build:
        return None, Checked(unsure={rule: source})
    known = snapshots.builds()
    if build not in known:
        meant = builds_named(build, known)
        problem = Problem(
            rule=rule,
            subject=printable(build, 60),
            what=f"torch {printable(build, 60)} may be any of {', '.join(meant)}"
            if meant
            else f"torch build {printable(build, 60)} is not known",
            evidence=(f"from: {source}", f"known: {', '.join(known) or 'none'}"),
            next_step="Name a build with --torch, or make its snapshot: "
            "scripts/torch_snapshots.py BUILD.",
            unknown=True,
        )
        return None, Checked(problems=(problem,))
    found = snapshots.load(build)
    return found, Checked(looked={rule: f"{build}, {source}"})


def check_abi(host: Sequence[Elf], snapshot: Snapshot | None) -> Checked:
    """Resolve every library of a wheel against a torch build.

    Args:
        host: its libraries, those the loader loads.
        snapshot: the torch build; None when unknown.

    Raises:
        SnapshotError: another build's snapshot, which a missing symbol is looked for in, is
            damaged.
    """
    if not host:
        return Checked(skipped=dict.fromkeys(ABI_RULES, "the wheel holds no library"))
    if snapshot is None:
        return Checked(unsure=dict.fromkeys(ABI_RULES, "the torch build is unknown"))
    closures = list(close_all(snapshot, Family(host)))
    missing = _classified(closures, snapshot)
    problems = [
        *(p for c in closures for p in _symbols(c, missing[c.library])),
        *(p for c in closures for p in _needed(c)),
        *(p for c in closures for p in _preloaded(c)),
        *(p for elf in host for p in _loaded_otherwise(elf)),
        *(p for elf in host for p in _of_another_machine(elf, snapshot.build)),
    ]
    count = sum(len(c.symbols) for c in closures)
    of = {a: sum(len(c.of(a)) for c in closures) for a in Answer}
    flag = int(snapshot.cxx11_abi)
    return Checked(
        looked={
            "abi-flag": f"torch {snapshot.build} has _GLIBCXX_USE_CXX11_ABI={flag}",
            "abi-version": f"{of[Answer.TORCH]} symbols of torch, {of[Answer.CUDA]} of CUDA",
            "abi-internal": f"{of[Answer.WHEEL]} symbols come from another library of the wheel",
            "abi-link": f"{sum(len(c.needed) for c in closures)} NEEDED entries",
            "abi-resolved": f"{count} symbols of {len(closures)} libraries",
            "abi-preload": "",
        },
        problems=tuple(problems),
        facts={"abi": {c.library: _facts(c, missing[c.library]) for c in closures}},
    )


def _classified(
    closures: Sequence[Closure], snapshot: Snapshot
) -> Mapping[str, tuple[Missing, ...]]:
    """Library -> its unresolved symbols with their reasons; other builds are read only then."""
    looked_into = {c.library: c.unresolved[:MOST] for c in closures}
    keys = {(r.name, r.version) for some in looked_into.values() for r in some}
    if not keys:
        return dict.fromkeys(looked_into, ())
    seen = {build.build: _Seen(build, keys, of=snapshot) for build in _all(snapshot)}
    # Names like it are looked for in every build only for what no build has: that takes long.
    if lost := {key for key in keys if not any(of.exact(key) for of in seen.values())}:
        for build in _all(snapshot):
            seen[build.build].search(build, lost)

    def reason(symbol: Resolution) -> Missing:
        key = (symbol.name, symbol.version)
        return classify(symbol, [of.sighting(key) for of in seen.values()], snapshot.build)

    return {library: tuple(reason(r) for r in some) for library, some in looked_into.items()}


class _Seen:
    """What one torch build has of the missing symbols."""

    def __init__(self, build: Snapshot, keys: Collection[SymbolKey], *, of: Snapshot) -> None:
        self._nothing = Sighting(build=build.build, cxx11_abi=build.cxx11_abi)
        self._found = sighted(keys, keys if build is of else (), build)

    def search(self, build: Snapshot, keys: Collection[SymbolKey]) -> None:
        """Look for names like these, too."""
        self._found |= sighted(keys, keys, build)

    def exact(self, key: SymbolKey) -> bool:
        """The build has exactly that."""
        sighting = self.sighting(key)
        return sighting.torch or bool(sighting.cuda)

    def sighting(self, key: SymbolKey) -> Sighting:
        return self._found.get(key, self._nothing)


def _all(snapshot: Snapshot) -> Iterator[Snapshot]:
    """Every known build, oldest first, that one not read twice."""
    for build in snapshots.builds():
        yield snapshot if build == snapshot.build else snapshots.load(build)


def _symbols(closure: Closure, missing: Sequence[Missing]) -> Iterator[Problem]:
    """One problem for each cause."""
    by_cause: dict[Cause, list[Missing]] = {}
    for symbol in missing:
        by_cause.setdefault(symbol.cause, []).append(symbol)
    for cause, symbols in by_cause.items():
        what = f"{closure.library} misses {len(symbols)} symbols in torch {closure.build}"
        if len(symbols) == 1:
            what = f"{closure.library} misses a symbol in torch {closure.build}"
        reasons = list(dict.fromkeys(s.what for s in symbols))
        fitting = _fitting(symbols)
        yield Problem(
            rule=_RULE[cause],
            subject=closure.library,
            what=f"{what}: {reasons[0]}" if len(reasons) == 1 else what,
            evidence=(
                *shortened([_line(s, reasons) for s in symbols]),
                *([f"torch builds that have all of them: {fitting}"] if fitting else []),
            ),
            next_step=_NEXT[cause],
        )
    if (rest := len(closure.unresolved) - len(missing)) > 0:
        yield Problem(
            rule="abi-resolved",
            subject=closure.library,
            what=f"{closure.library} misses {rest} more symbols, which nobody looked into",
            next_step=_NEXT[Cause.UNKNOWN],
        )


def _line(symbol: Missing, reasons: Sequence[str]) -> str:
    name = printable(f"{symbol.name}@{symbol.version}" if symbol.version else symbol.name)
    return name if len(reasons) == 1 else f"{name}: {symbol.what}"


def _fitting(symbols: Sequence[Missing]) -> str:
    """Known torch builds that have every one of them."""
    common = set(symbols[0].builds).intersection(*(s.builds for s in symbols))
    return span(common, snapshots.builds()) if common else ""


def _needed(closure: Closure) -> Iterator[Problem]:
    for needed in closure.missing:
        other_line = needed.need is Need.NOWHERE and bool(needed.nearest)
        yield Problem(
            # libcudart.so.12 where that torch build has libcudart.so.13: another CUDA line.
            rule="abi-version" if other_line else "abi-link",
            subject=closure.library,
            what=f"{closure.library} needs {printable(needed.name, 100)}, {_why(needed, closure)}",
            evidence=(f"torch {closure.build} has {needed.nearest}",) if other_line else (),
            next_step=_NEXT[Cause.CUDA_VERSION if other_line else Cause.MISSING_LINK],
        )


def _why(needed: Needed, closure: Closure) -> str:
    match needed.need:
        case Need.APART:
            return f"which is in the wheel as {needed.path}, where nothing leads the loader"
        case Need.UNLOADED:
            return f"which torch {closure.build} has and does not load: {needed.path}"
        case _:
            return f"which nothing brings that torch {closure.build} is installed with"


def _preloaded(closure: Closure) -> Iterator[Problem]:
    by_library: dict[str, list[str]] = {}
    for symbol in closure.of(Answer.PRELOADED):
        by_library.setdefault(symbol.library, []).append(symbol.name)
    for library, names in sorted(by_library.items()):
        yield Problem(
            rule="abi-preload",
            subject=closure.library,
            what=f"{closure.library} uses {library} without naming it as NEEDED; "
            "it works because torch loads it first",
            evidence=shortened([printable(name) for name in names]),
            next_step=f"Link against {library}.",
        )


def _loaded_otherwise(elf: Elf) -> Iterator[Problem]:
    """Libraries brought in by DT_AUDIT, DT_FILTER and the like, which resolving does not follow."""
    if elf.also_loads:
        yield Problem(
            rule="abi-resolved",
            subject=elf.name,
            what=f"{elf.name} has the loader load libraries by other tags than NEEDED",
            evidence=shortened([printable(f"{tag}: {name}") for tag, name in elf.also_loads]),
            next_step="An extension has no use for these tags: find out who put them there.",
        )


def _of_another_machine(elf: Elf, build: str) -> Iterator[Problem]:
    """A library that this torch's process cannot load."""
    if other := other_machine(elf, snapshots.MACHINE):
        yield Problem(
            rule="abi-resolved",
            subject=elf.name,
            what=f"{elf.name} is for another machine than torch {build}",
            evidence=(
                f"it is for {other}",
                f"torch {build} is known for {snapshots.MACHINE}, 64 bits, little-endian",
            ),
            next_step="Take the wheel of this machine; of wheels for others nothing is known.",
        )


def _facts(closure: Closure, missing: Iterable[Missing]) -> dict[str, Any]:
    return {
        "torch": closure.build,
        "needed": {n.name: n.need.value for n in closure.needed},
        "symbols": dict(closure.counts),
        "missing": [m.as_dict() for m in missing],
    }


def torch_code(snapshot: Snapshot | None, *, known: KnownCapabilities) -> LibraryCode | None:
    """Device code of torch's main CUDA library, as its snapshot has it; None when unknown.

    Raises:
        CapabilityError: it holds code for a capability the matrix does not know.
    """
    if snapshot is None:
        return None
    for library in snapshot.libraries:
        if library.torch and library.soname == "libtorch_cuda.so" and library.cubins is not None:
            return LibraryCode(
                name=library.soname,
                cubins=_counts(library.cubins, known),
                ptx=_counts(library.ptx or {}, known),
            )
    return None


def _counts(counts: Mapping[str, int], known: KnownCapabilities) -> dict[Capability, int]:
    return {parse_capability(name, known=known): count for name, count in counts.items()}

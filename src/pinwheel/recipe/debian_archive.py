"""Reads Debian archives over the network: signed releases and the indexes they vouch for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from pinwheel.errors import FetchError, HashMismatchError, PinwheelError, ResolveError
from pinwheel.http import Client
from pinwheel.recipe.data import Part, Suite, keyring_bytes
from pinwheel.recipe.debian import (
    Package,
    Release,
    check_file,
    parse_packages,
    parse_release,
    unpack_index,
)
from pinwheel.recipe.openpgp import verified_text
from pinwheel.settings import redact

# An archive by date has its timestamp in the path, as SourceKind.DEBIAN inputs are asked for there.
_BY_DATE = re.compile(r"/(\d{8}T\d{6}Z)(?:/|$)")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A suite as its signed release of ``date`` describes it: packages by component and name."""

    date: datetime
    packages: Mapping[str, Mapping[str, Package]]

    def merged(self, components: Iterable[str]) -> dict[str, Package]:
        """Packages of several components; the first that has a name wins."""
        result: dict[str, Package] = {}
        for component in components:
            for name, package in self.packages[component].items():
                result.setdefault(name, package)
        return result


def read_suite(
    client: Client, mirrors: Iterable[str], suite: Suite, *, now: datetime | None = None
) -> Snapshot:
    """The packages of a suite, from the first mirror that serves it rightly.

    Args:
        client: the HTTP client.
        mirrors: base URLs, in the order they are asked.
        suite: which suite, and the keys that may sign it.
        now: when it must be valid, where the mirror is no archive by date; default the clock.

    Raises:
        ResolveError: no valid signature, or the release is of another suite or has expired.
        HashMismatchError: an index is not what the release signs, on every mirror.
        FetchError: no mirror could be asked.
    """
    bases = tuple(mirrors)
    base = f"dists/{suite.suite}"
    keyring = keyring_bytes(suite.keyring)

    def read_release(mirror: str) -> Release:
        page = client.get(f"{mirror}/{base}/InRelease")
        text = verified_text(page.content, keyring, name=f"InRelease of {suite.suite}")
        found = parse_release(text)
        # A mirror could answer with another suite that is signed just as well.
        if suite.suite not in (found.codename, found.suite):
            raise ResolveError(
                f"the release served for Debian {suite.suite} is of {found.codename}",
                next_step="Use another mirror.",
            )
        check_current(found, suite.suite, mirror, now or datetime.now(UTC))
        return found

    release = _first(bases, read_release)
    packages: dict[str, Mapping[str, Package]] = {}
    for component in suite.components:
        path = f"{component}/binary-{suite.architecture}/Packages.xz"

        def read_index(mirror: str, path: str = path) -> bytes:
            place = path
            if release.by_hash and path in release.files:
                # Names by content cannot change under us while the mirror is updated.
                place = f"{path.rpartition('/')[0]}/by-hash/SHA256/{release.files[path][0]}"
            try:
                data = client.get(f"{mirror}/{base}/{place}").content
            except FetchError:
                if place == path:
                    raise
                data = client.get(f"{mirror}/{base}/{path}").content
            return check_file(data, release, path)

        packages[component] = parse_packages(
            unpack_index(_first(bases, read_index)), suite.architecture
        )
    return Snapshot(release.date, packages)


def check_current(release: Release, suite: str, mirror: str, now: datetime) -> None:
    """Refuse a release that is past its Valid-Until (DebianRepository/Format).

    Its signature is good for ever, so this alone tells a mirror that stands still, or is made to,
    from one that is current. An archive by date serves old releases by nature: there it must have
    been valid on the date that the URL names.

    Raises:
        ResolveError: it has expired.
    """
    asked = now
    if named := _BY_DATE.search(mirror):
        try:
            date = datetime.strptime(named[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            date = now  # no date, such as a thirteenth month
        asked = min(date, now)
    if release.valid_until is None or asked <= release.valid_until:
        return
    raise ResolveError(
        f"the release that {redact(mirror)} serves for Debian {suite} has expired",
        evidence=[
            f"of {release.date:%Y-%m-%d %H:%M} UTC",
            f"valid until {release.valid_until:%Y-%m-%d %H:%M} UTC",
            f"asked for as of {asked:%Y-%m-%d %H:%M} UTC",
        ],
        next_step="Use a mirror that is kept up to date. To lock old packages on purpose, name an "
        "archive by date: [mirrors] debian with the timestamp in its URL (docs/locks.md).",
    )


def find_part(snapshot: Snapshot, part: Part) -> Package:
    """The Debian package of a toolkit part, whose version must begin with upstream's.

    Raises:
        ResolveError: it is not there, or of another version.
    """
    package = snapshot.packages.get(part.component, {}).get(part.name)
    if package is None:
        raise ResolveError(
            f"Debian component {part.component} has no package {part.name}",
            next_step="Correct the toolkit's data file, or the mirror.",
        )
    rest = package.version.removeprefix(part.version)
    if rest == package.version or (rest and rest[0] not in "~-+"):
        raise ResolveError(
            f"Debian's {part.name} is version {package.version}, the toolkit wants {part.version}",
            evidence=["another compiler or library is another product"],
            next_step="Point [mirrors] debian at an archive of the right date, "
            "or write a data file for the new toolkit.",
        )
    return package


def _first(mirrors: tuple[str, ...], read: Callable[[str], _T]) -> _T:
    """What the first mirror gives that can; else the last one's error, with the others' words."""
    problems: list[tuple[str, PinwheelError]] = []
    for mirror in mirrors:
        try:
            return read(mirror)
        except (FetchError, HashMismatchError, ResolveError) as error:
            problems.append((redact(mirror), error))
    if not problems:
        raise ResolveError("no Debian mirror is configured", next_step="Set [mirrors] debian.")
    *earlier, (_, last) = problems
    last.evidence = (*last.evidence, *(f"before that, {m}: {error.what}" for m, error in earlier))
    raise last

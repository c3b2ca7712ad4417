"""Filling the store: every locked input from the first of its places that has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from pinwheel.console import BYTES, Console, Progress, counted
from pinwheel.errors import (
    BusyError,
    DiskFullError,
    FetchError,
    HashMismatchError,
    MissingInputsError,
    NotWritableError,
    PinwheelError,
)
from pinwheel.files import disk_full, free_bytes, human_bytes
from pinwheel.http import Client, UnreachableError
from pinwheel.inputs import index
from pinwheel.inputs.download import StoppedError, WrongBytesError, download, size_of
from pinwheel.inputs.report import Fetched, FetchReport
from pinwheel.inputs.store import Store, describe
from pinwheel.recipe.lock import Input, SourceKind
from pinwheel.settings import Settings, redact
from pinwheel.simple_api import Pages

_POLL = 0.2  # seconds between looks at a lock another process holds
WORKERS = 4  # files at once; more only divides one line among more of them


def distinct(inputs: Iterable[Input]) -> tuple[Input, ...]:
    """One input per hash, in order: two names of the same bytes are one file in the store."""
    return tuple({item.sha256: item for item in reversed(list(inputs))}.values())[::-1]


def missing(inputs: Iterable[Input], store: Store) -> tuple[Input, ...]:
    """The inputs that are not in the store, one per hash, in order."""
    return tuple(item for item in distinct(inputs) if not store.has(item))


def fetch(
    inputs: Iterable[Input],
    store: Store,
    settings: Settings,
    console: Console,
    *,
    snapshot: str = "",
    command: str = "pinwheel fetch",
    client: Client | None = None,
    workers: int = WORKERS,
) -> FetchReport:
    """Bring every input into the store.

    A file that is there with another size is put aside and fetched again, with a warning;
    other bytes of the right size are found when the file is used (:meth:`Store.get`).

    Args:
        inputs: what a lock names.
        store: where they go.
        settings: the URLs of the sources, and whether the network may be used.
        console: where progress is shown.
        snapshot: the lock's Debian snapshot timestamp, for archives by date.
        command: what to run with network access, named when offline inputs are missing.
        client: an HTTP client to use instead of an own one.
        workers: downloads at once.

    Raises:
        MissingInputsError: offline, and inputs are missing; every one is listed.
        FetchError: an input is at none of its places; names each place and its answer.
        HashMismatchError: a place gave other bytes and none gave the right ones; or a file of
            the store has another size, and it cannot be had again: offline, a store that cannot
            be written, or a lock whose size is wrong.
        DiskFullError, NotWritableError: the store cannot be written, or would not hold it all.
        SettingsError: a source that is needed has no URL.
    """
    wanted = distinct(inputs)
    altered = _put_aside(wanted, store, console, offline=settings.offline)
    absent = missing(wanted, store)
    gone = {item.sha256 for item in absent}
    started = time.monotonic()
    job = _Job(store, settings, snapshot)
    # Files of the project itself need no network, offline or not.
    local = [item for item in absent if item.source is SourceKind.PROJECT]
    remote = [item for item in absent if item.source is not SourceKind.PROJECT]
    problems = _each(local, job.from_project)
    if settings.offline and altered:
        raise _together(altered)
    if settings.offline and remote:
        raise offline_error(remote, command)
    if remote:
        for kind in {item.source for item in remote}:
            job.bases(kind)
        _check_space(remote, store)
        own = client or Client()
        try:
            job.pages = Pages(own)
            problems += job.run(own, remote, console, workers)
        finally:
            if client is None:
                own.close()
    if problems:
        raise _together(problems)
    kept = [item for item in wanted if item.sha256 not in gone]
    return FetchReport(
        present=len(kept),
        bytes_present=sum(item.size for item in kept),
        fetched=tuple(job.fetched),
        bytes_received=job.received,
        bytes_resumed=job.resumed,
        seconds=time.monotonic() - started,
    )


def offline_error(absent: Iterable[Input], command: str) -> MissingInputsError:
    """The error that lists every missing input at once."""
    items = list(absent)
    total = sum(item.size for item in items)
    verb = "is" if len(items) == 1 else "are"
    return MissingInputsError(
        f"{counted(len(items), 'input')} {verb} not in the store ({human_bytes(total)}), "
        "and pinwheel is offline",
        evidence=[*map(describe, items), f"{total} bytes in all"],
        next_step=f"Run `{command}` with network access, or copy the files into the store of "
        "this machine from one that has them.",
    )


def _put_aside(
    inputs: Iterable[Input], store: Store, console: Console, *, offline: bool
) -> list[PinwheelError]:
    """Put every stored file of another size aside; the errors of those that stay lost offline.

    Raises:
        HashMismatchError: files that could not be put aside.
    """
    stuck: list[PinwheelError] = []
    lost: list[PinwheelError] = []
    for item in inputs:
        if not store.altered(item):
            continue
        try:
            store.get(item)
        except MissingInputsError:
            pass  # another process has moved it just now
        except HashMismatchError as error:
            if store.altered(item):
                stuck.append(error)
            elif offline and item.source is not SourceKind.PROJECT:
                lost.append(error)
            else:
                console.warn("; ".join((error.what, *error.evidence)))
    if stuck:
        raise _together(stuck + lost)
    return lost


def _check_space(items: list[Input], store: Store) -> None:
    need = sum(max(0, item.size - size_of(store.partial(item.sha256))) for item in items)
    if need > free_bytes(store.path):
        raise disk_full(store.path, f"{human_bytes(need)} ({need} bytes) are still to be fetched")


def _each(items: Iterable[Input], action: Callable[[Input], None]) -> list[PinwheelError]:
    problems: list[PinwheelError] = []
    for item in items:
        try:
            action(item)
        except (FetchError, HashMismatchError) as error:
            problems.append(error)
    return problems


def _together(problems: list[PinwheelError]) -> PinwheelError:
    if len(problems) == 1:
        return problems[0]
    kind = HashMismatchError if any(isinstance(p, HashMismatchError) for p in problems) else None
    return (kind or FetchError)(
        f"{len(problems)} inputs could not be had",
        evidence=[line for p in problems for line in (p.what, *(f"  {e}" for e in p.evidence))],
        next_step=problems[0].next_step,
    )


@dataclass(slots=True)
class _Job:
    """One run of :func:`fetch`, shared by its threads."""

    store: Store
    settings: Settings
    snapshot: str
    pages: Pages | None = None
    fetched: list[Fetched] = field(default_factory=list)
    received: int = 0
    resumed: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def bases(self, kind: SourceKind) -> list[str]:
        """Where inputs of a kind may be, in the order they are tried."""
        if kind is SourceKind.INDEX:
            return list(self.settings.require("index"))
        dated = [
            f"{base}/archive/debian/{self.snapshot}"
            for base in self.settings.urls("debian-snapshot")
            if self.snapshot
        ]
        if dated and not self.settings.debian:
            return dated
        return [*self.settings.require("debian"), *dated]

    def run(
        self, client: Client, items: list[Input], console: Console, workers: int
    ) -> list[PinwheelError]:
        problems: list[PinwheelError] = []
        total = sum(item.size for item in items)
        # Largest first: the last to finish is then a small one, and the line stays full.
        ordered = sorted(items, key=lambda item: (-item.size, item.path))
        with (
            console.progress(total, BYTES, f"fetching {counted(len(items), 'input')}") as progress,
            ThreadPoolExecutor(max_workers=max(1, workers)) as pool,
        ):
            futures = [pool.submit(self.from_network, client, i, progress) for i in ordered]
            try:
                for future in as_completed(futures):
                    try:
                        future.result()
                    except (DiskFullError, NotWritableError):
                        raise
                    except (FetchError, HashMismatchError) as error:
                        console.detail(f"{error.what}")
                        problems.append(error)
            except BaseException:
                self.stop.set()
                for future in futures:
                    future.cancel()
                raise
        return problems

    def from_project(self, item: Input) -> None:
        """Copy a file of the recipe repository into the store."""
        roots = dict.fromkeys([self.settings.project, *(r.parent for r in self.settings.recipes)])
        for root in roots:
            path = (root / item.path).resolve()
            if path.is_file() and path.is_relative_to(root.resolve()):
                self.store.put_file(path, item.sha256, item.size, name=Path(item.path).name)
                self._record(item, item.path)
                return
        raise FetchError(
            f"{item.name}: {item.path} is not in the project",
            evidence=[f"looked in {root}" for root in roots],
            next_step="Check out the revision the lock belongs to, or run `pinwheel lock` again.",
        )

    def from_network(self, client: Client, item: Input, progress: Progress) -> None:
        """Bring one input into the store from the first place that has it."""
        with ExitStack() as held:
            # Polled, not waited for in the kernel, so that an interrupt ends this thread too.
            while not self.stop.is_set():
                try:
                    held.enter_context(self.store.lock(item.sha256, wait=False))
                    break
                except BusyError:
                    progress.describe(f"{Path(item.path).name}, by another process")
                    self.stop.wait(_POLL)
            if self.stop.is_set():
                return
            if self.store.has(item):
                progress.skip(item.size)
                self._record(item, "another process")
                return
            self._locked(client, item, progress)

    def _locked(self, client: Client, item: Input, progress: Progress) -> None:
        name = Path(item.path).name
        partial = self.store.partial(item.sha256)
        counted = there = size_of(partial)
        progress.skip(there)
        with self.guard:
            self.resumed += there

        def count(amount: int) -> None:
            nonlocal counted
            counted += amount
            if amount > 0:
                with self.guard:
                    self.received += amount
            progress.advance(amount)

        progress.describe(name)
        said: list[str] = []
        wrong = False
        for base, url in self._places(item, said):
            try:
                download(
                    client, url, partial, item.size, item.sha256, on_bytes=count, stop=self.stop
                )
            except UnreachableError as error:
                said.append(error.what)
            except WrongBytesError as error:
                wrong = True
                aside = self.store.quarantine(partial, name)
                count(-counted)
                said.append(f"{redact(url)}: sent other bytes ({error}), kept at {aside}")
            except StoppedError:
                return
            else:
                self.store.put_file(partial, item.sha256, item.size, name=name, known=item.sha256)
                self._record(item, redact(base))
                return
        raise self._nowhere(item, said, wrong)

    def _places(self, item: Input, said: list[str]) -> Iterator[tuple[str, str]]:
        for base in self.bases(item.source):
            if item.source is SourceKind.INDEX:
                if self.pages is None:
                    raise AssertionError("pages are made before the first index input is fetched")
                try:
                    yield base, index.find(self.pages, base, item).url
                except UnreachableError as error:
                    said.append(error.what)
            else:
                yield base, f"{base}/{quote(item.path)}"

    def _nowhere(self, item: Input, said: list[str], wrong: bool) -> PinwheelError:
        lines = [describe(item), *said]
        if wrong or any("offers other bytes" in line for line in said):
            return HashMismatchError(
                f"{item.name} {item.version}: no place has the bytes the lock names",
                evidence=lines,
                next_step="Somebody replaced the file, or a proxy answers in its place: look at "
                "what was kept aside. If the new file is meant, run `pinwheel lock`.",
            )
        hint = ""
        if item.source is SourceKind.DEBIAN and not self.settings.debian_snapshot:
            hint = (
                " A mirror drops superseded packages: name an archive by date with "
                "PINWHEEL_MIRRORS_DEBIAN_SNAPSHOT"
                + (f" (the lock was made as of {self.snapshot})." if self.snapshot else ".")
            )
        return FetchError(
            f"{item.name} {item.version} could not be had from any place",
            evidence=lines,
            next_step="Run the same command again when the places answer, or name another one: "
            f"[mirrors] {item.source} in pinwheel.toml.{hint}",
        )

    def _record(self, item: Input, place: str) -> None:
        with self.guard:
            self.fetched.append(Fetched(item.name, item.version, item.path, item.size, place))

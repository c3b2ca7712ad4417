"""Goes through a wheel's files in threads, so that its libraries can be read while others unpack.

Inflating, hashing and writing leave the interpreter free, so threads are enough. What comes out
is the same however they run: a file's index decides which of two errors counts.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from threading import Condition, Thread
from types import TracebackType

from pinwheel.files import writing
from pinwheel.inspect.dist_info import HASHES, RecordRow
from pinwheel.inspect.elf import is_elf
from pinwheel.inspect.loadable import HEAD, check_start, from_its_start
from pinwheel.inspect.region import Region, open_region
from pinwheel.inspect.zip_layout import Member, read_contents

# A wheel has two or three large files; further threads would only wait for these.
MAX_THREADS = 4
THREADS = "pinwheel-contents"  # their name


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one file came to: digests by algorithm, whether it is an ELF file."""

    digests: Mapping[str, bytes]
    elf: bool


class Contents:
    """The files of a wheel, each gone through once, beside whoever holds the ``with`` block.

    :meth:`finish` waits for all files; leaving the block ends the threads at the next piece of
    theirs.

    Args:
        whole: the wheel.
        members: its files, in the order they lie.
        directory: where compressed libraries are unpacked; the caller's to remove.
        record: which digests are wanted beside sha256.
    """

    def __init__(
        self,
        whole: Region,
        members: Sequence[Member],
        directory: Path,
        record: Sequence[RecordRow],
    ) -> None:
        self._whole = whole
        self._members = members
        self._directory = directory
        self._places = {member.name: index for index, member in enumerate(members)}
        self._wanted: dict[str, set[str]] = {}
        for row in record:
            if row.algorithm in HASHES:
                self._wanted.setdefault(row.path, set()).add(row.algorithm)
        # The largest first: no thread is left with it when the others have nothing to do.
        self._order = deque(sorted(range(len(members)), key=lambda index: -members[index].packed))
        self._threads: list[Thread] = []
        # All below is changed under this lock only.
        self._changed = Condition()
        self._taken: dict[int, _Taken] = {}
        self._libraries: list[str] = []
        self._regions: dict[str, Region] = {}
        self._limit = len(members)  # files from this index on need not be gone through
        self._error: BaseException | None = None  # of the file at the limit
        self._left = len(members)
        self._files = ExitStack()

    def __enter__(self) -> Contents:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._files:
            with self._changed:
                self._limit = -1
            for thread in self._threads:
                if thread.ident is not None:  # it was started
                    thread.join()

    def start(self) -> None:
        """Begin with the files; once, within the block."""
        for _ in range(min(MAX_THREADS, len(os.sched_getaffinity(0)), len(self._members))):
            self._threads.append(Thread(target=self._work, name=THREADS))
            try:
                self._threads[-1].start()
            except RuntimeError:  # the system gives no more of them
                self._threads.pop()
                break
        if not self._threads:
            self._work()

    def finish(self) -> None:
        """Wait until every file was gone through.

        Raises:
            ArtifactError: one is damaged; of several, the one that lies first.
            DiskFullError, NotWritableError: a library cannot be unpacked.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
            if self._error is not None:
                raise self._error

    def ready(self) -> Iterator[str]:
        """Paths of the libraries, each as soon as it can be read, in whatever order that is.

        Raises:
            ArtifactError, DiskFullError, NotWritableError: as :meth:`finish`.
        """
        seen = 0
        while (name := self._after(seen)) is not None:
            seen += 1
            yield name
        self.finish()

    def _after(self, seen: int) -> str | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or self._error is not None or len(self._libraries) > seen
            )
            more = self._error is None and len(self._libraries) > seen
            return self._libraries[seen] if more else None

    @property
    def libraries(self) -> tuple[str, ...]:
        """Paths of all ELF files, sorted; waits and raises as :meth:`finish`."""
        self.finish()
        return tuple(sorted(self._libraries))

    @property
    def digests(self) -> dict[str, Mapping[str, bytes]]:
        """Path -> algorithm -> digest, of all files; waits and raises as :meth:`finish`."""
        self.finish()
        return {m.name: self._taken[index].digests for index, m in enumerate(self._members)}

    def library(self, name: str) -> Region:
        """An ELF file that :meth:`ready` or :attr:`libraries` named, open until the block ends.

        Raises:
            KeyError: it is none.
            ArtifactError: it cannot be opened.
        """
        index = self._places[name]
        with self._changed:
            if not self._taken[index].elf:
                raise KeyError(name)
            if name not in self._regions:
                member = self._members[index]
                if member.stored:
                    region = self._whole.part(member.offset, member.size, name).named(name)
                else:
                    region = self._files.enter_context(open_region(self._unpacked(index), name))
                self._regions[name] = region
            return self._regions[name]

    @property
    def _ended(self) -> bool:
        """Every file was gone through, or is one behind the first that cannot be read."""
        return self._left == 0

    # --- in the threads ------------------------------------------------------------------------

    def _work(self) -> None:
        """Go through files until none is left."""
        while True:
            try:
                index = self._order.popleft()
            except IndexError:
                return
            taken, failed = None, None
            try:
                taken = self._take(index) if index < self._limit else None
            except BaseException as error:
                failed = error
            with self._changed:
                self._left -= 1
                if failed is not None and index < self._limit:
                    self._limit, self._error = index, failed
                if taken is not None:
                    self._taken[index] = taken
                    if taken.elf:
                        self._libraries.append(self._members[index].name)
                if self._ended or failed is not None or (taken is not None and taken.elf):
                    self._changed.notify_all()

    def _take(self, index: int) -> _Taken | None:
        """Read a file to its end; None when that is no longer wanted."""
        member = self._members[index]
        algorithms = {"sha256"} | self._wanted.get(member.name, set())
        hashes = {name: hashlib.new(name) for name in algorithms}
        elf = False
        with ExitStack() as files:
            file: FileIO | None = None
            start = b""
            for number, chunk in enumerate(from_its_start(read_contents(self._whole, member))):
                start = start or chunk[:HEAD]
                if index >= self._limit:
                    return None
                for digest in hashes.values():
                    digest.update(chunk)
                if number == 0 and is_elf(chunk):
                    elf = True
                    if not member.stored:
                        file = files.enter_context(_created(self._unpacked(index)))
                if file is not None:
                    with writing(self._unpacked(index)):
                        _write(file, chunk)
        check_start(self._whole.name, member.name, start)
        return _Taken({name: digest.digest() for name, digest in hashes.items()}, elf)

    def _unpacked(self, index: int) -> Path:
        return self._directory / str(index)


@contextmanager
def _created(path: Path) -> Iterator[FileIO]:
    with writing(path):
        file = FileIO(path, "xb")
    with file:
        yield file


def _write(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:  # a raw file may take a part
        view = view[file.write(view) :]

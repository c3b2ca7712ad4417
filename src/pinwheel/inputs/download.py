"""One file from one URL into a partial file: resumed, bounded by the expected size, hashed."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from pinwheel.files import CHUNK, writing
from pinwheel.http import Client, UnreachableError, backoff

# Tries in a row that bring less than the client's floor; else a place that hangs up after every
# byte would be asked once for each.
POOR_TRIES = 20


class WrongBytesError(Exception):
    """A place sent another file; what came is in the partial file.

    Attributes:
        actual: sha256 of what came.
        length: bytes of what came; reading stops at the first byte too many.
    """

    def __init__(self, actual: str, length: int) -> None:
        super().__init__(f"sha256 {actual}, {length} bytes")
        self.actual, self.length = actual, length


class StoppedError(Exception):
    """The whole fetch is being given up; the partial file stays for the next one."""


def size_of(path: Path) -> int:
    """Bytes of a file, 0 when it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def download(
    client: Client,
    url: str,
    partial: Path,
    size: int,
    sha256: str,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> None:
    """Complete ``partial`` from ``url`` until it has ``size`` bytes and hash ``sha256``.

    Bytes already there are kept and the rest asked for; the hash of the whole decides whether
    they belonged together, and if not the file is asked for once more from its first byte.
    A connection that breaks is taken up again as long as each try brings some bytes, and a few
    times when it brings none or brings them too slowly.

    Args:
        client: the HTTP client; its ``attempts`` bounds tries without progress, its ``floor``
            says what is slow.
        url: where the file is.
        partial: where it is collected; the caller holds its lock.
        size: bytes it must have.
        sha256: hash it must have.
        on_bytes: told of every change of the partial file's size, negative when bytes proved
            void.
        stop: give up when set.

    Raises:
        UnreachableError: the place does not give the file.
        WrongBytesError: it gives another one.
        StoppedError: ``stop`` was set.
        DiskFullError, NotWritableError: the partial file cannot be written.
    """
    stop = stop or threading.Event()
    failures = poor = 0
    while True:
        before = size_of(partial)
        if before > size:
            before = _restart(partial, on_bytes)
        try:
            _once(client, url, partial, size, sha256, on_bytes, stop)
            return
        except WrongBytesError:
            if not before:
                raise
            _restart(partial, on_bytes)
        except UnreachableError as error:
            after = size_of(partial)
            if error.status == 416 and before:
                _restart(partial, on_bytes)
            elif not error.transient:
                raise
            little = after - before < client.floor.bytes
            poor = poor + 1 if little else 0
            progress = after > before and not (error.stalled and little)
            failures = 1 if progress else failures + 1
            if failures >= client.attempts or poor >= POOR_TRIES:
                raise
            if stop.is_set():
                raise StoppedError from error
            client.sleep(backoff(failures, error.wait))


def _restart(partial: Path, on_bytes: Callable[[int], None]) -> int:
    on_bytes(-size_of(partial))
    with writing(partial):
        partial.unlink(missing_ok=True)
    return 0


def _once(
    client: Client,
    url: str,
    partial: Path,
    size: int,
    sha256: str,
    on_bytes: Callable[[int], None],
    stop: threading.Event,
) -> None:
    digest = hashlib.sha256()
    with writing(partial):
        file = partial.open("a+b", buffering=0)
    with file:
        file.seek(0)
        while chunk := file.read(CHUNK):
            digest.update(chunk)
        have = file.tell()
        if have < size or not size:
            with client.stream(url, offset=have) as stream:
                if stream.offset != have:  # the server knows no ranges and starts over
                    file.truncate(0)
                    on_bytes(-have)
                    have, digest = 0, hashlib.sha256()
                announced = None if stream.length is None else stream.offset + stream.length
                for chunk in stream.chunks:
                    if stop.is_set():
                        raise StoppedError
                    # Innermost, so that a full disk is never taken for the server's fault.
                    with writing(partial):
                        _write(file.fileno(), chunk)
                    digest.update(chunk)
                    have += len(chunk)
                    on_bytes(len(chunk))
                    if have > size:
                        raise WrongBytesError(digest.hexdigest(), have)
                if have < size and announced != have:
                    raise UnreachableError(
                        url, f"ended after {have} of {size} bytes", transient=True
                    )
        if have != size or digest.hexdigest() != sha256:
            raise WrongBytesError(digest.hexdigest(), have)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]

"""The one HTTP client: pages and streamed files over http, https and file URLs.

It follows what pip users have already set up: certificate bundles (``PIP_CERT``,
``SSL_CERT_FILE``, ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``), proxies (``HTTPS_PROXY`` and
kin, ``NO_PROXY``), ``netrc``, and user and password inside a URL. Credentials never reach a
message: every URL shown is redacted.
"""

from __future__ import annotations

import email.utils
import logging
import netrc
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from pinwheel import __version__
from pinwheel.errors import FetchError, SettingsError
from pinwheel.files import CHUNK, human_bytes
from pinwheel.settings import redact

ATTEMPTS = 4  # tries of one request in all
CONNECT_TIMEOUT = 15.0  # seconds
READ_TIMEOUT = 60.0  # seconds without a byte
# An answer that brings fewer bytes than this in that many seconds of waiting counts as lost, since
# one byte now and then would else hold a fetch for ever. It is 5 kB/s: four files at a time still
# come through a line of 160 kbit/s, and 1 GB, a large CUDA package, would take two days and more.
STALL_BYTES = 300_000
STALL_SECONDS = 60.0
PAGE_LIMIT = 256 << 20  # bytes; no index page or Packages file comes near
_LONGEST_WAIT = 30.0  # seconds, also when a server asks for more
#: Answers that may differ next time (RFC 9110 section 15, RFC 6585 section 4).
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_BUNDLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class UnreachableError(FetchError):
    """A URL gave no usable answer.

    Attributes:
        reason: what happened, without the URL: ``404 Not Found``, ``connection refused``.
        status: HTTP status when there was an answer (404 also for an absent local file).
        transient: whether trying again may help.
        wait: seconds the server asked to wait.
        stalled: bytes came, but too slowly.
    """

    def __init__(
        self,
        url: str,
        reason: str,
        *,
        status: int | None = None,
        transient: bool = False,
        wait: float = 0.0,
        stalled: bool = False,
    ) -> None:
        super().__init__(
            f"{redact(url)}: {reason}",
            next_step="Check the network and the configured mirrors (docs/configuration.md).",
        )
        self.reason, self.status, self.transient, self.wait = reason, status, transient, wait
        self.stalled = stalled

    @property
    def absent(self) -> bool:
        """The server answered that there is no such thing."""
        return self.status in (404, 410)


@dataclass(frozen=True, slots=True)
class Floor:
    """How slow an answer may be: at least ``bytes`` in each ``seconds`` spent waiting for it."""

    bytes: int = STALL_BYTES
    seconds: float = STALL_SECONDS


class _Paced(httpx.SyncByteStream):
    """The bytes of an answer, given up once they come slower than a floor.

    Only the time spent waiting counts, not what is done with the bytes: a slow disk is not the
    server's fault.
    """

    def __init__(
        self,
        stream: httpx.SyncByteStream,
        url: str,
        floor: Floor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._url, self._floor, self._clock = stream, url, floor, clock

    def __iter__(self) -> Iterator[bytes]:
        pieces, waited, came = iter(self._stream), 0.0, 0
        while True:
            asked = self._clock()
            piece = next(pieces, None)
            if piece is None:
                return
            waited += self._clock() - asked
            came += len(piece)
            yield piece
            if waited >= self._floor.seconds:
                if came < self._floor.bytes:
                    reason = f"too slow, {human_bytes(came)} in {waited:.0f} s"
                    raise UnreachableError(self._url, reason, transient=True, stalled=True)
                waited, came = 0.0, 0

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True, slots=True)
class Page:
    """A small answer, whole. ``url`` is where it finally came from."""

    url: str
    content: bytes
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """A large answer in pieces.

    Attributes:
        offset: position of the first byte in the whole file; 0 when the server ignored the range.
        length: bytes that follow, None when the server does not say.
        chunks: the bytes.
    """

    offset: int
    length: int | None
    chunks: Iterator[bytes]


class Client:
    """One connection pool, safe to share between threads. Use as a context manager.

    Args:
        env: the environment, for certificates and netrc (proxies are read by httpx itself).
        attempts: tries of one page before giving up.
        sleep: how to wait between tries.
        read_timeout: seconds without a byte after which a connection counts as lost.
        floor: bytes in a time below which it does, too.

    Raises:
        SettingsError: a certificate bundle or the netrc file cannot be used.
    """

    def __init__(
        self,
        env: Mapping[str, str] = os.environ,
        *,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
        read_timeout: float = READ_TIMEOUT,
        floor: Floor = Floor(),
    ) -> None:
        # httpx logs every URL, with its password, at INFO.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self.attempts, self.sleep, self.floor = attempts, sleep, floor
        self._hosts: dict[str, tuple[str, str]] = {}
        self._netrc, self._netrc_problem = _netrc(env)
        verify = _certificates(env)
        try:
            self._http = httpx.Client(
                verify=verify,
                follow_redirects=True,
                timeout=httpx.Timeout(read_timeout, connect=CONNECT_TIMEOUT),
                headers={"User-Agent": f"pinwheel/{__version__}"},
                limits=httpx.Limits(max_connections=16),
            )
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            # The text may quote a password; the scheme is what httpx stumbles over.
            raise SettingsError(
                "a proxy of the environment cannot be used",
                evidence=[
                    f"{name} names a proxy for {redact(value).partition('://')[0][:20]}://"
                    for name, value in sorted(os.environ.items())
                    if name.lower().endswith("_proxy") and name.lower() != "no_proxy"
                ],
                next_step="Set HTTPS_PROXY, HTTP_PROXY and ALL_PROXY to http:// or https:// URLs.",
            ) from error

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def get(self, url: str, *, accept: str = "*/*", limit: int = PAGE_LIMIT) -> Page:
        """A page, whole, after a few tries where the trouble looks passing.

        Args:
            url: http, https or file URL; a file URL of a directory means its ``index.html``.
            accept: the Accept header.
            limit: refuse more bytes than this.

        Raises:
            UnreachableError: no usable answer.
        """
        for attempt in range(1, self.attempts):
            try:
                return self._get(url, accept, limit)
            except UnreachableError as error:
                if not error.transient:
                    raise
                self.sleep(backoff(attempt, error.wait))
        return self._get(url, accept, limit)

    def _get(self, url: str, accept: str, limit: int) -> Page:
        if url.startswith("file:"):
            with _local(url) as path:
                if path.is_dir():
                    path /= "index.html"
                if path.stat().st_size > limit:
                    raise UnreachableError(url, f"page is larger than {human_bytes(limit)}")
                return Page(url, path.read_bytes())
        content = bytearray()
        with self._request(url, {"Accept": accept}) as response:
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > limit:
                    raise UnreachableError(url, f"page is larger than {human_bytes(limit)}")
            kind = response.headers.get("content-type", "")
            return Page(str(response.url), bytes(content), kind)

    @contextmanager
    def stream(self, url: str, *, offset: int = 0) -> Iterator[Stream]:
        """The bytes of a file from ``offset`` on, as the server sends them; one try.

        No validator (If-Range) is sent: the caller knows the sha256 of the whole, which also
        tells apart halves of two different files, and some mirrors have no validators.

        Raises:
            UnreachableError: no usable answer, also in the middle of the bytes; status 416 when the
                file has no byte at ``offset``.
        """
        if url.startswith("file:"):
            with _local(url) as path, path.open("rb") as file:
                file.seek(offset)
                length = max(0, path.stat().st_size - offset)
                yield Stream(offset, length, iter(lambda: file.read(CHUNK), b""))
            return
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with self._request(url, headers) as response:
            start = 0
            if response.status_code == httpx.codes.PARTIAL_CONTENT:
                match = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
                start = int(match.group(1)) if match else -1
                if start != offset:
                    raise UnreachableError(url, "answered another range than asked for", status=416)
            size = response.headers.get("content-length", "")
            # Pieces as they arrive: gathering larger ones would lose what a cut-off had brought.
            yield Stream(start, int(size) if size.isdecimal() else None, response.iter_raw())

    @contextmanager
    def _request(self, url: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        clean, auth = self._credentials(url)
        try:
            with self._http.stream("GET", clean, headers=headers, auth=auth) as response:
                if not response.is_success:
                    raise self._refused(url, response)
                if isinstance(response.stream, httpx.SyncByteStream):
                    response.stream = _Paced(response.stream, url, self.floor)
                yield response
        except httpx.TransportError as error:
            text = str(error) or type(error).__name__
            fixed = "CERTIFICATE_VERIFY_FAILED" in text or isinstance(
                error, httpx.UnsupportedProtocol | httpx.LocalProtocolError
            )
            raise UnreachableError(
                url, text.replace(clean, redact(url)), transient=not fixed
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(url, str(error).replace(clean, redact(url))) from error

    def _refused(self, url: str, response: httpx.Response) -> UnreachableError:
        status = response.status_code
        reason = f"{status} {response.reason_phrase}".strip()
        if status in (401, 403) and self._netrc_problem:
            reason += f" (netrc not used: {self._netrc_problem})"
        return UnreachableError(
            url,
            reason,
            status=status,
            transient=status in _TRANSIENT,
            wait=_retry_after(response.headers.get("retry-after", "")),
        )

    def _credentials(self, url: str) -> tuple[str, httpx.Auth | None]:
        """``url`` without user and password, and what authenticates towards its host.

        A page reached with a password links to files of the same host without one, so what
        was seen once for a host and port serves it from then on.
        """
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            key = f"{parts.scheme}://{host}:{parts.port}"
        except ValueError as error:
            raise UnreachableError(url, str(error)) from error
        if parts.username:
            self._hosts[key] = (unquote(parts.username), unquote(parts.password or ""))
            parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        known = self._hosts.get(key)
        if known is None and self._netrc and (entry := self._netrc.authenticators(host)):
            known = (entry[0], entry[2] or "")
        return urlunsplit(parts), httpx.BasicAuth(*known) if known else None


def backoff(attempt: int, asked: float = 0.0) -> float:
    """Seconds to wait after the ``attempt``-th failure, never longer than half a minute."""
    return min(_LONGEST_WAIT, max(0.5 * 2.0 ** (attempt - 1), asked))


def _retry_after(value: str) -> float:
    """Seconds named by a Retry-After header (RFC 9110 section 10.2.3); 0 when it names none."""
    if value.strip().isdecimal():
        return float(value)
    try:
        then = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    seconds: float = then.timestamp() - time.time()
    return max(0.0, seconds)


@contextmanager
def _local(url: str) -> Iterator[Path]:
    try:
        path = Path(unquote(urlsplit(url).path))
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UnreachableError(url, "not a plain file")  # reading a pipe may never end
        yield path
    except FileNotFoundError as error:
        raise UnreachableError(url, "no such file", status=404) from error
    except OSError as error:
        raise UnreachableError(url, error.strerror or str(error)) from error


def _certificates(env: Mapping[str, str]) -> ssl.SSLContext:
    variable = next((name for name in _BUNDLES if env.get(name)), None)
    bundle, directory = env[variable] if variable else None, env.get("SSL_CERT_DIR") or None
    try:
        if bundle and Path(bundle).is_dir():
            return ssl.create_default_context(capath=bundle)
        if bundle:
            return ssl.create_default_context(cafile=bundle, capath=directory)
        import certifi

        context = ssl.create_default_context(cafile=certifi.where(), capath=directory)
        # Also what the system trusts: a company's own authority lives there.
        context.load_default_certs()
        return context
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"{variable or 'SSL_CERT_DIR'} names no usable certificate bundle",
            evidence=(f"{bundle or directory}: {error}",),
            next_step="Point it at a PEM file of certificate authorities, or unset it.",
        ) from error


def _netrc(env: Mapping[str, str]) -> tuple[netrc.netrc | None, str]:
    path = Path(env.get("NETRC") or Path(env.get("HOME") or "/nonexistent") / ".netrc")
    try:
        return netrc.netrc(str(path)), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
        # Most builds need no password, so a broken file matters only once one is asked for.
        return None, str(error)

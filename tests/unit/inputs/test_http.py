from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest
from inputs_kit import Site

from pinwheel.errors import FetchError, SettingsError
from pinwheel.http import Client, Floor, UnreachableError, _Paced, _retry_after, backoff


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_page_and_its_absence(site: Site, client: Client) -> None:
    site.files["/a"] = b"hello"
    assert client.get(f"{site.url}/a").content == b"hello"
    with pytest.raises(UnreachableError, match="404") as caught:
        client.get(f"{site.url}/b")
    assert caught.value.absent
    assert isinstance(caught.value, FetchError)
    assert len(site.asked("/b")) == 1


def test_passing_trouble_is_tried_again(site: Site, client: Client) -> None:
    site.files["/a"] = b"hello"
    site.faults["/a"] = [503, 429, ("cut", 2)]
    assert client.get(f"{site.url}/a").content == b"hello"
    site.faults["/a"] = [500] * 9
    with pytest.raises(UnreachableError, match="500"):
        client.get(f"{site.url}/a")
    assert len(site.asked("/a")) == 4 + client.attempts


def test_page_limit(site: Site, client: Client, tmp_path: Path) -> None:
    site.files["/a"] = bytes(100_000)
    (tmp_path / "a").write_bytes(bytes(100_000))
    for url in (f"{site.url}/a", (tmp_path / "a").as_uri()):
        with pytest.raises(UnreachableError, match="larger than"):
            client.get(url, limit=1000)


def test_ranges(site: Site, client: Client, tmp_path: Path) -> None:
    site.files["/a"] = b"0123456789"
    (tmp_path / "a").write_bytes(b"0123456789")
    for url in (f"{site.url}/a", (tmp_path / "a").as_uri()):
        with client.stream(url, offset=4) as stream:
            assert (stream.offset, stream.length) == (4, 6)
            assert b"".join(stream.chunks) == b"456789"
    site.ranges = False
    with client.stream(f"{site.url}/a", offset=4) as stream:
        assert (stream.offset, b"".join(stream.chunks)) == (0, b"0123456789")


class Ticking(httpx.SyncByteStream):
    """Pieces of one byte; the clock moves on while one is waited for."""

    def __init__(self, waits: list[float]) -> None:
        self.waits, self.now, self.closed = waits, 0.0, False

    def __iter__(self) -> Iterator[bytes]:
        for wait in self.waits:
            self.now += wait
            yield b"x"

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("waits", "come"),
    [
        ([3.0] * 50, 4),  # 4 bytes in 12 s
        ([1.0] * 50, 50),  # 10 bytes in 10 s, on and on
        ([1.0] * 20 + [3.0] * 50, 24),
        ([0.0] * 50, 50),
        ([100.0, 0.0], 1),
        ([1.0] * 9, 9),
    ],
)
def test_bytes_that_come_too_slowly(waits: list[float], come: int) -> None:
    stream = Ticking(waits)
    paced = _Paced(stream, "http://h.example/x", Floor(10, 10.0), lambda: stream.now)
    seen = []

    def read() -> None:
        for piece in paced:
            seen.append(piece)
            stream.now += 1000.0  # what is done with the bytes does not count

    if come == len(waits):
        read()
    else:
        with pytest.raises(UnreachableError, match="too slow, ") as caught:
            read()
        assert (caught.value.stalled, caught.value.transient) == (True, True)
    assert len(seen) == come
    paced.close()
    assert stream.closed


def test_the_default_floor_is_a_speed() -> None:
    with Client({}) as client:
        assert client.floor.bytes / client.floor.seconds == 5000


def test_a_slow_page_is_given_up(site: Site) -> None:
    site.files["/a"], site.piece, site.delay = bytes(200_000), 1, 0.002
    with (
        Client({}, sleep=lambda _: None, floor=Floor(1 << 40, 0.001)) as client,
        pytest.raises(UnreachableError, match="too slow") as caught,
    ):
        client.get(f"{site.url}/a")
    assert caught.value.stalled
    assert len(site.asked("/a")) == client.attempts


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/x", "http://[", "gopher://x/y", "http://h:port/", "file:///no/such"]
)
def test_unusable_urls(client: Client, url: str) -> None:
    with pytest.raises(UnreachableError):
        client.get(url)
    with pytest.raises(UnreachableError), client.stream(url):
        pass


def test_password_in_the_url_serves_the_whole_host_and_is_not_shown(
    site: Site, client: Client
) -> None:
    site.files = {"/page": b"page", "/file": b"file"}
    site.password = basic("user", "p@ss")
    host = site.url.removeprefix("http://")
    with pytest.raises(UnreachableError, match="401"):
        client.get(f"{site.url}/file")
    page = client.get(f"http://user:p%40ss@{host}/page")
    assert "user" not in page.url
    assert client.get(f"{site.url}/file").content == b"file"
    with pytest.raises(UnreachableError) as caught:
        client.get(f"http://user:p%40ss@{host}/absent")
    assert "p%40ss" not in str(caught.value.as_dict())


def test_netrc(site: Site, tmp_path: Path) -> None:
    site.files, site.password = {"/a": b"x"}, basic("me", "word")
    path = tmp_path / ".netrc"
    path.write_text("machine 127.0.0.1 login me password word\n")
    for env in ({"HOME": str(tmp_path)}, {"NETRC": str(path)}):
        with Client(env) as client:
            assert client.get(f"{site.url}/a").content == b"x"
    path.write_text("machine")
    with Client({"NETRC": str(path)}) as client, pytest.raises(UnreachableError, match="netrc"):
        client.get(f"{site.url}/a")


@pytest.mark.parametrize("variable", ["PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_certificate_bundle_that_is_none(tmp_path: Path, variable: str) -> None:
    for path in (tmp_path / "absent.pem", tmp_path / "empty.pem"):
        with pytest.raises(SettingsError, match=variable):
            Client({variable: str(path)})
        (tmp_path / "empty.pem").write_text("nothing")


def test_waits() -> None:
    assert [backoff(n) for n in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert backoff(1, 10) == 10
    assert backoff(1, 1e9) == backoff(99) == 30
    assert _retry_after("7") == 7
    assert _retry_after("") == _retry_after("soon") == 0
    assert 8 < _retry_after(formatdate(time.time() + 10, usegmt=True)) <= 10


@pytest.mark.parametrize("proxy", ["socks5://user:s3cret@host.example", "ftp://user:s3cret@x"])
def test_a_proxy_that_cannot_be_used(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(SettingsError, match="proxy") as caught:
        Client({})
    assert "s3cret" not in str(caught.value.as_dict())


def test_a_pipe_is_no_mirror(client: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreachableError, match="plain file"):
        client.get((tmp_path / "pipe").as_uri())

"""Fixtures of the tests of stores and downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from inputs_kit import Handler, Site

from pinwheel.console import Console
from pinwheel.http import Client
from pinwheel.inputs.store import Store


@pytest.fixture
def make_site() -> Iterator[Any]:
    servers: list[ThreadingHTTPServer] = []

    def make(**options: Any) -> Site:
        site = Site(**options)
        handler = type("SiteHandler", (Handler,), {"site": site})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return site

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def site(make_site: Any) -> Site:
    made: Site = make_site()
    return made


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    with Client({}, sleep=lambda _: None, read_timeout=10) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache" / "store")


@pytest.fixture
def console() -> Console:
    return Console(out=StringIO(), err=StringIO())

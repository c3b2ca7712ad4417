"""Reading a package index: which files a project has there (PEP 503, 691, 592, 700, 714).

The one reader of index pages, for locking and fetching alike; hence beside :mod:`pinwheel.http`.
"""

from __future__ import annotations

import json
import threading
import warnings
from typing import TYPE_CHECKING
from urllib.parse import quote

from packaging.utils import canonicalize_name

from pinwheel.http import Client, Page, UnreachableError

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage  # costs a third of a second, for a full store


_LONGEST = 300  # characters of a parser's own words


class NoProjectPageError(UnreachableError):
    """What an index answered is no page of the simple API."""


class Pages:
    """Project pages of the configured indexes, each asked for once; safe between threads."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._answers: dict[tuple[str, str], tuple[DistributionPackage, ...] | UnreachableError]
        self._answers = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._guard = threading.Lock()

    def files(self, index: str, project: str) -> tuple[DistributionPackage, ...]:
        """The files of ``project`` on one index, in the page's order.

        Raises:
            UnreachableError: no page, or one that cannot be read.
        """
        key = (index, canonicalize_name(project))
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._answers:
                try:
                    self._answers[key] = read_page(self.client, *key)
                except UnreachableError as error:
                    self._answers[key] = error
            answer = self._answers[key]
        if isinstance(answer, UnreachableError):
            raise answer
        return answer


def read_page(client: Client, index: str, project: str) -> tuple[DistributionPackage, ...]:
    """The files of one project on one index, in the page's order.

    Raises:
        NoProjectPageError: a page that is none of the simple API.
        UnreachableError: no page.
    """
    import pypi_simple

    name = canonicalize_name(project)
    url = f"{index.rstrip('/')}/{quote(name)}/"
    return parse_page(client.get(url, accept=pypi_simple.ACCEPT_JSON_PREFERRED), name)


def parse_page(page: Page, project: str) -> tuple[DistributionPackage, ...]:
    """The files on ``page``, JSON or HTML; their URLs may hold credentials, so show them redacted.

    Raises:
        NoProjectPageError: it is no page of the simple API.
    """
    import pypi_simple

    kind = page.content_type.partition(";")[0].strip().lower()
    # A file URL has no content type; JSON objects start with a brace, HTML never does.
    is_json = kind.endswith("json") or (not kind and page.content.lstrip()[:1] == b"{")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pypi_simple.UnexpectedRepoVersionWarning)
            if is_json:
                data = json.loads(page.content)
                parsed = pypi_simple.ProjectPage.from_json_data(data, base_url=page.url)
            else:
                parsed = pypi_simple.ProjectPage.from_html(project, page.content, base_url=page.url)
    except pypi_simple.UnsupportedRepoVersionError as error:
        raise NoProjectPageError(page.url, f"an API version too new to read: {error}") from error
    except Exception as error:  # besides ValueError and kin, bs4 raises plain ones
        why = " ".join(str(error).split())[:_LONGEST]
        raise NoProjectPageError(page.url, f"not a project page: {why}") from error
    return tuple(parsed.packages)


def stated_sha256(file: DistributionPackage) -> str:
    """The sha256 the page states for a file, ``""`` when it states none."""
    digests = {name.lower(): value.lower() for name, value in (file.digests or {}).items()}
    return digests.get("sha256", "")

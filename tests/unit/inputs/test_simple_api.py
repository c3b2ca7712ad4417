"""Reading index pages, whatever an index may put there."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs_kit import Site, make_input

from pinwheel.http import Client, Page, UnreachableError
from pinwheel.inputs.index import find
from pinwheel.recipe.lock import SourceKind
from pinwheel.simple_api import NoProjectPageError, Pages, parse_page, read_page, stated_sha256

HTML = b"""<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"></head>
<body>
<a href="../../files/thing-1.0-py3-none-any.whl#sha256=AB12" data-requires-python="&gt;=3.8"
   data-core-metadata="sha256=cd34">thing-1.0-py3-none-any.whl</a>
<a href="/files/thing-1.0%2Bcu121-py3-none-any.whl" data-yanked="broken"
>thing-1.0+cu121-py3-none-any.whl</a>
<a href="https://elsewhere.example/not-parsable">not-parsable</a>
</body></html>"""
JSON = "application/vnd.pypi.simple.v1+json"


def test_html_page() -> None:
    page = Page("https://h.example/simple/thing/", HTML, "text/html; charset=utf-8")
    first, second, third = parse_page(page, "thing")
    assert first.url == "https://h.example/files/thing-1.0-py3-none-any.whl"
    assert (first.version, first.package_type, stated_sha256(first)) == ("1.0", "wheel", "ab12")
    assert (first.size, first.upload_time, first.is_yanked) == (None, None, False)
    assert (second.version, second.is_yanked, stated_sha256(second)) == ("1.0+cu121", True, "")
    assert (third.version, third.filename) == (None, "not-parsable")


def test_json_page(site: Site, client: Client) -> None:
    site.project("some-thing", {"some_thing-1.0.tar.gz": b"data"})
    (file,) = read_page(client, f"{site.url}/simple/", "Some_Thing")
    assert file.url == f"{site.url}/files/some_thing-1.0.tar.gz"
    assert (file.size, file.package_type, file.version) == (4, "sdist", "1.0")
    assert file.upload_time is not None
    assert file.upload_time.isoformat() == "2024-10-14T12:00:00+00:00"


@pytest.mark.parametrize("kind", ["", "application/json", JSON])
def test_json_is_known_without_a_content_type(kind: str) -> None:
    files = [{"filename": "x-1.tar.gz", "url": "x-1.tar.gz", "hashes": {"SHA256": "AB"}}]
    data = {"name": "x", "files": files, "meta": {"api-version": "1.0"}}
    (file,) = parse_page(Page("file:///i/x/", json.dumps(data).encode(), kind), "x")
    assert (file.url, stated_sha256(file)) == ("file:///i/x/x-1.tar.gz", "ab")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"[]", JSON),
        (b"{", "application/json"),
        (b'{"name": 1, "files": 2, "meta": {"api-version": "1.0"}}', "application/json"),
        (b'{"name": "x", "files": [{}], "meta": {"api-version": "1.0"}}', ""),
        (b'{"name": "x", "files": [], "meta": {"api-version": "9.0"}}', ""),
        (b'{"name": "x", "files": [], "meta": {"api-version": []}}', ""),
        (b"[" * 100_000, "application/json"),
        (b"<![foo[x]]>", "text/html"),
        (b"<a href='http://[x'>x-1.tar.gz</a>", "text/html"),
    ],
)
def test_pages_that_are_none(content: bytes, kind: str) -> None:
    with pytest.raises(NoProjectPageError) as caught:
        parse_page(Page("https://u:s3cret@h.example/x/", content, kind), "x")
    assert "\n" not in caught.value.what
    assert "s3cret" not in caught.value.what


def test_a_parsers_words_are_kept_short() -> None:
    page = {"name": "x", "files": [{}] * 5000, "meta": {"api-version": "1.0"}}
    with pytest.raises(NoProjectPageError) as caught:
        parse_page(Page("https://h.example/x/", json.dumps(page).encode(), JSON), "x")
    assert len(caught.value.what) < 400


@given(st.binary(max_size=60), st.sampled_from(["", JSON, "text/html", "text/plain"]))
@settings(deadline=None, max_examples=100)
def test_any_bytes_are_read_or_refused(content: bytes, kind: str) -> None:
    with suppress(NoProjectPageError):
        parse_page(Page("https://h.example/x/", content, kind), "x")


@given(st.lists(st.sampled_from("<>![]-a'\"/=&#;? {}:\\"), max_size=25).map("".join))
@settings(deadline=None, max_examples=150)
def test_any_markup_is_read_or_refused(text: str) -> None:
    for content in (text, f"<a href={text}>x-1.tar.gz</a>", f'{{"files": [{text}]}}'):
        with suppress(NoProjectPageError):
            parse_page(Page("https://h.example/x/", content.encode()), "x")


def test_each_page_is_asked_for_once(site: Site, client: Client) -> None:
    site.project("thing", {"thing-1.0.tar.gz": b"x"})
    index = f"{site.url}/simple"
    pages = Pages(client)
    assert pages.files(index, "Thing") == pages.files(index, "thing")
    for _ in range(2):
        with pytest.raises(UnreachableError):
            pages.files(index, "absent")
    assert len(site.log) == 2


def test_of_two_files_of_a_name_the_right_one(client: Client, tmp_path: Path) -> None:
    item = make_input(b"right", "thing-1.0.tar.gz", source=SourceKind.INDEX)
    link = '<a href="{}/thing-1.0.tar.gz#sha256={}">thing-1.0.tar.gz</a>'
    (tmp_path / "thing").mkdir()
    page = link.format("other", "0" * 64) + link.format("right", item.sha256.upper())
    (tmp_path / "thing/index.html").write_text(page)
    file = find(Pages(client), tmp_path.as_uri(), item)
    assert file.url.endswith("/right/thing-1.0.tar.gz")

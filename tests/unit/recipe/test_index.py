"""Choosing files of an index while locking; indexes are directories here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pinwheel.errors import FetchError, ResolveError
from pinwheel.http import Client
from pinwheel.recipe.index import choose_file, project_files


@pytest.fixture
def client() -> Iterator[Client]:
    with Client({}, sleep=lambda _: None) as made:
        yield made


def an_index(place: Path, **projects: tuple[str, ...]) -> str:
    for name, files in projects.items():
        (place / name).mkdir(parents=True)
        links = "".join(f'<a href="{f}">{f}</a>' for f in files)
        (place / name / "index.html").write_text(links)
    return place.as_uri()


def test_the_first_index_that_has_a_project_wins_whole(client: Client, tmp_path: Path) -> None:
    first = an_index(tmp_path / "1", ours=("ours-1.0.tar.gz",))
    second = an_index(tmp_path / "2", ours=("ours-9.0.tar.gz",), thing=("thing-2.0.tar.gz",))
    both = (first, f"{second}/")
    assert [f.version for f in project_files(client, both, "Ours")] == ["1.0"]
    assert [f.version for f in project_files(client, both, "thing")] == ["2.0"]
    with pytest.raises(ResolveError, match="no configured index has a project nothing"):
        project_files(client, both, "nothing")


def test_an_index_that_cannot_be_asked_is_no_reason_to_ask_the_next(
    client: Client, tmp_path: Path
) -> None:
    good = an_index(tmp_path / "2", thing=("thing-2.0.tar.gz",))
    with pytest.raises(FetchError) as caught:
        project_files(client, ("http://127.0.0.1:9/simple", good), "thing")
    assert not isinstance(caught.value, ResolveError)


@pytest.mark.parametrize(
    "page",
    [
        b"{",
        b'{"name": "thing", "files": [{}], "meta": {"api-version": "1.0"}}',
        b'{"name": "thing", "files": [], "meta": {"api-version": "9.0"}}',
        b"<![foo[x]]>",
    ],
)
def test_a_page_that_is_none_stops_the_lock(client: Client, tmp_path: Path, page: bytes) -> None:
    first = an_index(tmp_path / "1", thing=())
    (tmp_path / "1/thing/index.html").write_bytes(page)
    second = an_index(tmp_path / "2", thing=("thing-2.0.tar.gz",))
    with pytest.raises(ResolveError, match="the index page of thing cannot be read") as caught:
        project_files(client, (first, second), "thing")
    assert first in caught.value.evidence[0]
    assert caught.value.exit_code == 25


def test_exactly_one_file_must_fit(client: Client, tmp_path: Path) -> None:
    names = ("thing-1.0.tar.gz", "thing-1.0-py3-none-any.whl", "thing-1.0.0.tar.gz", "odd")
    files = project_files(client, (an_index(tmp_path / "1", thing=names),), "thing")
    wheel = choose_file(files, "thing", "1", lambda f: f.package_type == "wheel", "wheels")
    assert wheel.filename == names[1]
    for version, says in (("1.0", "has 2 files"), ("2.0", "has no files")):
        with pytest.raises(ResolveError, match=says):
            choose_file(files, "thing", version, lambda f: f.package_type == "sdist", "sdists")

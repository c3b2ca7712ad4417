"""Debian archives as directories on this machine, signed by a key made here."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pysequoia import SignatureMode, Tsk, sign

from pinwheel.errors import FetchError, HashMismatchError, ResolveError
from pinwheel.http import Client
from pinwheel.recipe import debian_archive
from pinwheel.recipe.data import Suite
from pinwheel.recipe.debian_archive import read_suite

SUITE = Suite(
    name="test",
    suite="sid",
    components=("main",),
    architecture="amd64",
    keyring="keyrings/none.gpg",
)
INDEX = lzma.compress(
    b"Package: a\nVersion: 1\nArchitecture: amd64\nFilename: pool/a.deb\nSize: 7\nSHA256: "
    + b"0" * 64
    + b"\n"
)
DATE, UNTIL = "Sat, 11 Jul 2026 10:00:00 UTC", "Sat, 18 Jul 2026 10:00:00 UTC"
FRESH, STALE = datetime(2026, 7, 12, tzinfo=UTC), datetime(2026, 8, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def key() -> Tsk:
    return Tsk.generate("Test <test@example.org>")


@pytest.fixture(autouse=True)
def _keyring(key: Tsk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_archive, "keyring_bytes", lambda _: bytes(key.extract_certificate()))


@pytest.fixture
def client() -> Iterator[Client]:
    with Client({}, sleep=lambda _: None) as made:
        yield made


def archive(place: Path, key: Tsk, *, until: str = UNTIL, codename: str = "sid") -> str:
    """An archive with one package; gives its URL."""
    directory = place / "dists/sid"
    index = directory / "main/binary-amd64/Packages.xz"
    index.parent.mkdir(parents=True)
    index.write_bytes(INDEX)
    digest = hashlib.sha256(INDEX).hexdigest()
    text = f"Suite: unstable\nCodename: {codename}\nDate: {DATE}\n"
    text += f"Valid-Until: {until}\n" if until else ""
    text += f"SHA256:\n {digest} {len(INDEX)} main/binary-amd64/Packages.xz\n"
    signed = sign(key.signer(), text.encode(), mode=SignatureMode.CLEAR)
    (directory / "InRelease").write_bytes(signed)
    return place.as_uri()


def test_a_release_within_its_time(client: Client, key: Tsk, tmp_path: Path) -> None:
    snapshot = read_suite(client, [archive(tmp_path, key)], SUITE, now=FRESH)
    assert list(snapshot.packages["main"]) == ["a"]
    assert snapshot.date == datetime(2026, 7, 11, 10, tzinfo=UTC)


def test_a_release_without_an_end_never_expires(client: Client, key: Tsk, tmp_path: Path) -> None:
    mirror = archive(tmp_path, key, until="")
    assert read_suite(client, [mirror], SUITE, now=datetime(2099, 1, 1, tzinfo=UTC)).packages


def test_an_expired_release_is_refused(client: Client, key: Tsk, tmp_path: Path) -> None:
    mirror = archive(tmp_path, key)
    with pytest.raises(ResolveError, match="Debian sid has expired") as caught:
        read_suite(client, [mirror], SUITE, now=STALE)
    assert mirror in caught.value.what
    assert caught.value.exit_code == 25
    text = "\n".join(caught.value.evidence)
    assert "of 2026-07-11 10:00 UTC" in text
    assert "valid until 2026-07-18 10:00 UTC" in text
    assert "as of 2026-08-01 00:00 UTC" in text
    assert "archive by date" in caught.value.next_step


def test_the_clock_is_asked_by_default(client: Client, key: Tsk, tmp_path: Path) -> None:
    past = archive(tmp_path / "1", key, until="Sat, 18 Jul 2020 10:00:00 UTC")
    with pytest.raises(ResolveError, match="expired"):
        read_suite(client, [past], SUITE)
    later = archive(tmp_path / "2", key, until="Mon, 18 Jul 2988 10:00:00 UTC")
    assert read_suite(client, [past, later], SUITE).packages


def test_an_expired_mirror_is_passed_over_for_a_current_one(
    client: Client, key: Tsk, tmp_path: Path
) -> None:
    replayed = archive(tmp_path / "1", key)
    current = archive(tmp_path / "2", key, until="Sat, 8 Aug 2026 10:00:00 UTC")
    assert read_suite(client, [replayed, current], SUITE, now=STALE).packages
    gone = (tmp_path / "3").as_uri()
    with pytest.raises(FetchError) as caught:
        read_suite(client, [replayed, gone], SUITE, now=STALE)
    assert any("expired" in line and replayed in line for line in caught.value.evidence)


@pytest.mark.parametrize(
    ("timestamp", "fine"),
    [
        ("20260712T000000Z", True),
        ("20260718T100000Z", True),
        ("20260725T000000Z", False),  # replayed there too
        ("20991231T000000Z", False),  # never later than the clock
        ("20261399T000000Z", False),  # no date
        ("20260712", False),  # no timestamp
    ],
)
def test_an_archive_by_date_is_asked_as_of_its_date(
    client: Client, key: Tsk, tmp_path: Path, timestamp: str, fine: bool
) -> None:
    mirror = archive(tmp_path / "archive/debian" / timestamp, key)
    if fine:
        assert read_suite(client, [f"{mirror}/"], SUITE, now=STALE).packages
        return
    with pytest.raises(ResolveError, match="expired"):
        read_suite(client, [mirror], SUITE, now=STALE)


def test_an_end_that_nobody_signed_does_not_count(client: Client, key: Tsk, tmp_path: Path) -> None:
    mirror = archive(tmp_path, key)
    release = tmp_path / "dists/sid/InRelease"
    text = release.read_bytes()
    release.write_bytes(text.replace(UNTIL.encode(), b"Sat, 18 Jul 2099 10:00:00 UTC"))
    with pytest.raises(ResolveError, match="no valid signature"):
        read_suite(client, [mirror], SUITE, now=STALE)
    release.write_bytes(b"Valid-Until: Sat, 18 Jul 2099 10:00:00 UTC\n\n" + text)
    with pytest.raises(ResolveError):
        read_suite(client, [mirror], SUITE, now=STALE)


def test_another_suite_and_other_bytes_are_refused(
    client: Client, key: Tsk, tmp_path: Path
) -> None:
    with pytest.raises(ResolveError, match="is of trixie"):
        read_suite(client, [archive(tmp_path / "1", key, codename="trixie")], SUITE, now=FRESH)
    mirror = archive(tmp_path / "2", key)
    (tmp_path / "2/dists/sid/main/binary-amd64/Packages.xz").write_bytes(b"other")
    with pytest.raises(HashMismatchError, match="not the file the release"):
        read_suite(client, [mirror], SUITE, now=FRESH)

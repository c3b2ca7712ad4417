"""The shipped data files: readable, consistent, signed by keys that are shipped too."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pinwheel.errors import RecipeError, ResolveError
from pinwheel.recipe import data
from pinwheel.recipe.debian import Package
from pinwheel.recipe.debian_archive import Snapshot, find_part
from pinwheel.recipe.openpgp import verified_text


def test_every_toolkit_is_what_its_name_says() -> None:
    assert {"debian-12.4.131", "wheels-13.0.88"} <= set(data.toolkit_names())
    for name in data.toolkit_names():
        found = data.toolkit_data(name)
        assert found.toolkit.name == name == f"{found.toolkit.provider}-{found.toolkit.version}"
        assert found.toolkit.version.startswith(f"{found.toolkit.line}.")
        names = [p.name for p in found.package]
        assert len(set(names)) == len(names)
        for part in found.package:
            if part.source == "debian":
                assert part.component in found.toolkit.components
        if found.toolkit.provider == "debian":
            assert data.keyring_bytes(found.toolkit.keyring)


def test_an_unknown_toolkit_lists_the_known() -> None:
    with pytest.raises(RecipeError, match=r"no toolkit '\.\./x'") as caught:
        data.toolkit_data("../x")
    assert "debian-12.4.131" in caught.value.evidence[0]


def test_root_and_tools_are_readable() -> None:
    assert {"g++", "libpython3-dev"} <= {s.name for s in data.root_data().seed}
    assert {"sccache", "uv"} == {t.name for t in data.tools_data().tool}


def test_the_digest_leaves_reasons_and_layout_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before = data.data_digest("debian-12.4.131")
    real = data._text
    monkeypatch.setattr(data, "_text", lambda n: real(n).replace('why = "', 'why = "really, '))
    assert data.data_digest("debian-12.4.131") == before
    monkeypatch.setattr(data, "_text", lambda n: real(n).replace('"patch"', '"quilt"'))
    assert data.data_digest("debian-12.4.131") != before


def part(version: str) -> data.Part:
    return data.Part(name="x", version=version, source="debian", component="non-free")


@pytest.mark.parametrize(
    "found", ["12.4.131", "12.4.131~12.4.1-2", "12.4.131-1", "12.4.131+dfsg-1"]
)
def test_a_debian_version_begins_with_upstreams(found: str) -> None:
    package = Package("x", found, "amd64", "pool/x", 1, "0" * 64)
    snapshot = Snapshot(datetime(2026, 1, 1, tzinfo=UTC), {"non-free": {"x": package}})
    assert find_part(snapshot, part("12.4.131")) is package
    for other in ("12.4.13", "12.4.132", "2.4.131"):
        with pytest.raises(ResolveError, match="wants"):
            find_part(snapshot, part(other))


def test_what_is_not_signed_by_a_shipped_key_is_refused() -> None:
    keyring = data.keyring_bytes(data.root_data().root.keyring)
    for text in (
        b"",
        b"Origin: Debian\n",
        b"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nx\n",
    ):
        with pytest.raises(ResolveError, match="no valid signature"):
            verified_text(text, keyring, name="InRelease")

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest
from inputs_kit import make_input, some_bytes, tree

from pinwheel.errors import HashMismatchError, MissingInputsError, NotWritableError
from pinwheel.files import sha256_file
from pinwheel.inputs import store as store_module
from pinwheel.inputs.store import Store


def test_put_and_get(store: Store, tmp_path: Path) -> None:
    data = some_bytes(3_000_000)
    item = make_input(data, "pool/a.deb")
    source = tmp_path / "a.deb"
    source.write_bytes(data)
    assert not store.has(item)
    put = store.put_file(source, item.sha256, item.size)
    assert store.has(item)
    assert put == store.get(item) == store.path_of(item.sha256)
    assert put.read_bytes() == data
    assert put.stat().st_mode & 0o777 == 0o444
    assert source.read_bytes() == data
    assert tree(store.path) == [f"sha256/{item.sha256[:2]}/{item.sha256}"]
    assert store.put_file(source, item.sha256, item.size) == put


def test_empty_file(store: Store, tmp_path: Path) -> None:
    item = make_input(b"", "patches/empty")
    (tmp_path / "empty").write_bytes(b"")
    store.put_file(tmp_path / "empty", item.sha256, 0)
    assert store.get(item).read_bytes() == b""


def test_wrong_bytes_are_kept_aside_and_the_store_is_unchanged(
    store: Store, tmp_path: Path
) -> None:
    good, bad = some_bytes(1000, 1), some_bytes(1000, 2)
    item = make_input(good, "pool/a.deb")
    other = make_input(some_bytes(10, 3), "pool/b.deb")
    (tmp_path / "b.deb").write_bytes(some_bytes(10, 3))
    store.put_file(tmp_path / "b.deb", other.sha256, other.size)
    (tmp_path / "a.deb").write_bytes(bad)
    with pytest.raises(HashMismatchError) as caught:
        store.put_file(tmp_path / "a.deb", item.sha256, item.size, name="a.deb")
    actual = hashlib.sha256(bad).hexdigest()
    assert item.sha256 in caught.value.evidence[0]
    assert actual in caught.value.evidence[1]
    assert tree(store.path) == [
        f"rejected/{actual[:16]}-a.deb",
        f"sha256/{other.sha256[:2]}/{other.sha256}",
    ]
    assert (store.path / f"rejected/{actual[:16]}-a.deb").read_bytes() == bad
    assert (tmp_path / "a.deb").read_bytes() == bad


@pytest.mark.parametrize("change", ["same size", "shorter"])
def test_a_stored_file_that_changed_is_refused_and_moved_aside(
    store: Store, tmp_path: Path, change: str
) -> None:
    data = some_bytes(5000)
    item = make_input(data, "pool/a.deb")
    (tmp_path / "a.deb").write_bytes(data)
    path = store.put_file(tmp_path / "a.deb", item.sha256, item.size)
    path.chmod(0o644)
    path.write_bytes(bytes(5000) if change == "same size" else data[:100])
    fresh = Store(store.path)
    assert fresh.has(item) is (change == "same size")
    for reader in (store, fresh):
        if path.exists():
            with pytest.raises(HashMismatchError):
                reader.get(item)
    assert not path.exists()
    assert len(tree(store.path)) == 1
    with pytest.raises(MissingInputsError):
        fresh.get(item)


def test_what_differs_at_a_glance(store: Store, tmp_path: Path) -> None:
    data = some_bytes(5000)
    item = make_input(data, "pool/a.deb")
    assert not store.altered(item)
    (tmp_path / "a.deb").write_bytes(data)
    path = store.put_file(tmp_path / "a.deb", item.sha256, item.size)
    assert not store.altered(item)
    path.chmod(0o644)
    path.write_bytes(bytes(5000))
    assert not store.altered(item)
    path.write_bytes(data[:100])
    assert store.altered(item)
    path.unlink()
    path.mkdir()
    assert store.altered(item)


def test_taking_a_file_in_keeps_the_wrong_one_that_lay_there(store: Store, tmp_path: Path) -> None:
    item = make_input(b"right", "pool/a.deb")
    path = store.path_of(item.sha256)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"wrong size")
    (tmp_path / "a.deb").write_bytes(b"right")
    store.put_file(tmp_path / "a.deb", item.sha256, item.size)
    assert path.read_bytes() == b"right"
    (aside,) = (store.path / "rejected").iterdir()
    assert aside.read_bytes() == b"wrong size"


def test_hashed_once_per_process(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = make_input(b"abc", "pool/a.deb")
    (tmp_path / "a").write_bytes(b"abc")
    store.put_file(tmp_path / "a", item.sha256, item.size)
    fresh = Store(store.path)
    calls: list[Path] = []

    def counting(path: Path) -> str:
        calls.append(path)
        return sha256_file(path)

    monkeypatch.setattr(store_module, "sha256_file", counting)
    for _ in range(3):
        fresh.get(item)
        store.get(item)
    assert len(calls) == 1


def test_many_threads_put_the_same_file(store: Store, tmp_path: Path) -> None:
    data = some_bytes(2_000_000)
    item = make_input(data, "pool/a.deb")
    (tmp_path / "a").write_bytes(data)
    errors: list[BaseException] = []

    def put() -> None:
        try:
            store.put_file(tmp_path / "a", item.sha256, item.size)
            assert store.get(item).read_bytes() == data
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert tree(store.path) == [f"sha256/{item.sha256[:2]}/{item.sha256}"]


def test_names_cannot_leave_rejected(store: Store, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    aside = store.quarantine(tmp_path / "x", "../../../etc/passwd")
    assert aside.parent == store.path / "rejected"


@pytest.mark.parametrize("sha256", ["", "../x", "a" * 63, "A" * 64, "g" * 64])
def test_only_hashes_become_paths(store: Store, sha256: str) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        store.path_of(sha256)


def test_a_file_where_the_store_should_be(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(NotWritableError):
        Store(tmp_path / "store").put_file(tmp_path / "a", hashlib.sha256(b"abc").hexdigest(), 3)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_directory_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(NotWritableError):
        Store(tmp_path / "closed/store").put_file(
            tmp_path / "a", hashlib.sha256(b"abc").hexdigest(), 3
        )


def test_a_partial_file_is_never_a_link_or_a_pipe(store: Store, tmp_path: Path) -> None:
    digest = "ab" * 32
    path = store.partial(digest)
    path.symlink_to(tmp_path / "victim")
    assert store.partial(digest) == path
    assert not path.is_symlink()
    os.mkfifo(path)
    store.partial(digest)
    assert not path.exists()
    path.write_bytes(b"kept")
    assert store.partial(digest).read_bytes() == b"kept"


def test_a_place_that_takes_no_directory() -> None:
    with pytest.raises(NotWritableError):
        Store(Path("/proc/pinwheel")).partial("ab" * 32)

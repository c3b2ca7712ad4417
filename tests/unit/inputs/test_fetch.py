from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from inputs_kit import Site, make_input, settings_for, some_bytes, tree

from pinwheel import files
from pinwheel.console import Console
from pinwheel.errors import (
    DiskFullError,
    FetchError,
    HashMismatchError,
    MissingInputsError,
    NotWritableError,
    SettingsError,
)
from pinwheel.http import Client, Floor
from pinwheel.inputs import fetch as fetch_module
from pinwheel.inputs.download import POOR_TRIES, size_of
from pinwheel.inputs.fetch import fetch, missing
from pinwheel.inputs.store import Store
from pinwheel.recipe.lock import SourceKind

DATA = some_bytes(1_000_000)
POOL = "/debian/pool/main/t/thing_1.0+deb12u1_amd64.deb"
ITEM = make_input(DATA, POOL.removeprefix("/debian/"))
HERE = Path(__file__).parent


def get(
    items: list[Any], store: Store, site: Site, client: Client, console: Console, **more: Any
) -> Any:
    root = store.path.parent.parent
    settings = settings_for(
        root,
        index=more.pop("index", (f"{site.url}/simple",)),
        debian=more.pop("debian", (f"{site.url}/debian",)),
        snapshot=more.pop("mirrors", ()),
        offline=more.pop("offline", False),
    )
    return fetch(items, store, settings, console, client=client, **more)


def test_from_every_source(
    site: Site, store: Store, client: Client, console: Console, tmp_path: Path
) -> None:
    wheel, patch = some_bytes(50_000, 5), b"--- a\n+++ b\n"
    site.files[POOL] = DATA
    site.project("some-thing", {"some_thing-1.0+cu121-py3-none-any.whl": wheel})
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/0001.patch").write_bytes(patch)
    items = [
        ITEM,
        make_input(
            wheel,
            "some_thing-1.0+cu121-py3-none-any.whl",
            source=SourceKind.INDEX,
            name="Some.Thing",
        ),
        make_input(patch, "patches/0001.patch", source=SourceKind.PROJECT, name="0001"),
    ]
    assert missing(items, store) == tuple(items)
    report = get(items, store, site, client, console)
    assert {f.path for f in report.fetched} == {i.path for i in items}
    assert report.bytes_received == len(DATA) + len(wheel)
    assert (report.present, report.bytes_resumed) == (0, 0)
    assert [store.get(i).read_bytes() for i in items] == [DATA, wheel, patch]

    asked = len(site.log)
    again = get(items, store, site, client, console)
    assert (again.present, again.fetched, len(site.log)) == (3, (), asked)
    assert again.summary().startswith("nothing to fetch: 3 inputs (")
    assert again.summary().endswith(") were in the store")


def test_one_input_is_no_inputs(site: Site, store: Store, client: Client) -> None:
    site.files[POOL], err = DATA, StringIO()
    report = get([ITEM], store, site, client, Console(out=StringIO(), err=err))
    assert err.getvalue().splitlines()[-1].startswith("fetching 1 input: 1.0 MB of 1.0 MB, 100%")
    assert report.summary().startswith("fetched 1 input (1.0 MB in ")
    assert report.summary().endswith("; 0 inputs (0 B) were in the store")
    again = get([ITEM], store, site, client, Console(quiet=True))
    assert again.summary() == "nothing to fetch: 1 input (1.0 MB) was in the store"
    missing_one = fetch_module.offline_error([ITEM], "x").what
    assert missing_one == "1 input is not in the store (1.0 MB), and pinwheel is offline"


def test_html_index_and_file_urls(
    store: Store, client: Client, console: Console, tmp_path: Path
) -> None:
    wheel = some_bytes(1000)
    page = tmp_path / "index/thing/index.html"
    page.parent.mkdir(parents=True)
    (tmp_path / "index/files").mkdir()
    (tmp_path / "index/files/thing-1.0-py3-none-any.whl").write_bytes(wheel)
    page.write_text('<a href="../files/thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>')
    item = make_input(wheel, "thing-1.0-py3-none-any.whl", source=SourceKind.INDEX)
    settings = settings_for(tmp_path, index=((tmp_path / "index").as_uri(),))
    fetch([item], store, settings, console, client=client)
    assert store.get(item).read_bytes() == wheel


def test_absent_here_then_the_next_mirror(
    make_site: Any, store: Store, client: Client, console: Console
) -> None:
    empty, full = make_site(), make_site()
    full.files[POOL] = DATA
    bases = ("http://127.0.0.1:9/debian", f"{empty.url}/debian", f"{full.url}/debian")
    report = get([ITEM], store, full, client, console, debian=bases)
    assert report.fetched[0].place == f"{full.url}/debian"
    assert empty.asked(POOL) == [""]


def test_superseded_package_from_the_archive_by_date(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL.replace("/debian/", "/archive/debian/20241014T000000Z/")] = DATA
    get([ITEM], store, site, client, console, mirrors=(site.url,), snapshot="20241014T000000Z")
    assert store.has(ITEM)


def test_file_that_left_one_index_is_taken_from_the_next(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    wheel = some_bytes(1000)
    item = make_input(wheel, "thing-1.0-py3-none-any.whl", source=SourceKind.INDEX)
    site.project("thing", {}, base="/first")
    site.project("thing", {item.path: wheel}, base="/second")
    get([item], store, site, client, console, index=(f"{site.url}/first", f"{site.url}/second"))
    assert store.has(item)


def test_at_no_place_names_every_place_and_its_answer(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.faults[POOL.replace("/debian", "/b")] = [503] * 9
    with pytest.raises(FetchError) as caught:
        get(
            [ITEM],
            store,
            site,
            client,
            console,
            debian=(f"{site.url}/a", f"{site.url}/b", "http://user:secret@127.0.0.1:9/debian"),
            snapshot="20241014T000000Z",
        )
    text = "\n".join(caught.value.evidence)
    assert "404" in text
    assert "503" in text
    assert "refused" in text
    assert "secret" not in text
    assert ITEM.sha256 in text
    assert "PINWHEEL_MIRRORS_DEBIAN_SNAPSHOT" in caught.value.next_step
    assert "20241014T000000Z" in caught.value.next_step
    assert type(caught.value) is FetchError


def test_several_failures_are_told_together_and_the_rest_is_fetched(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL] = DATA
    gone = [make_input(some_bytes(9, n), f"pool/{n}.deb") for n in range(3)]
    with pytest.raises(FetchError, match="3 inputs could not be had") as caught:
        get([*gone, ITEM], store, site, client, console)
    assert all(any(i.sha256 in line for line in caught.value.evidence) for i in gone)
    assert store.has(ITEM)


def test_source_without_url_only_when_needed(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL] = DATA
    get([ITEM], store, site, client, console, index=())
    wheel = make_input(b"x", "thing-1.0.tar.gz", source=SourceKind.INDEX)
    with pytest.raises(SettingsError, match="'index' has no URL"):
        get([ITEM, wheel], store, site, client, console, index=())


# --- files of the store that have another size ---------------------------------------------

SPOILED = {"shorter": DATA[:1000], "longer": DATA + b"x", "empty": b""}


def spoil(store: Store, item: Any, data: bytes) -> str:
    """Write ``data`` over a stored input; gives the name it has once it is put aside."""
    path = store.path_of(item.sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return f"rejected/{hashlib.sha256(data).hexdigest()[:16]}-{Path(item.path).name}"


@pytest.mark.parametrize("change", SPOILED)
def test_another_size_offline_is_no_missing_input(
    store: Store, site: Site, client: Client, console: Console, tmp_path: Path, change: str
) -> None:
    (tmp_path / "other").write_bytes(b"other")
    other = make_input(b"other", "pool/other.deb")
    store.put_file(tmp_path / "other", other.sha256, other.size)
    data = SPOILED[change]
    aside = spoil(store, ITEM, data)
    with pytest.raises(HashMismatchError) as caught:
        get([ITEM, other], store, site, client, console, offline=True)
    assert "in the store is not what the lock names" in caught.value.what
    text = "\n".join(caught.value.evidence)
    assert f"sha256 {ITEM.sha256}, {ITEM.size} bytes" in text
    assert f"sha256 {hashlib.sha256(data).hexdigest()}, {len(data)} bytes" in text
    assert f"kept at {store.path / aside}" in text
    assert tree(store.path) == [aside, f"sha256/{other.sha256[:2]}/{other.sha256}"]
    assert (store.path / aside).read_bytes() == data
    # What is aside is gone from the store: from now on it is missing.
    with pytest.raises(MissingInputsError):
        get([ITEM, other], store, site, client, console, offline=True)


@pytest.mark.parametrize("change", SPOILED)
def test_another_size_online_is_put_aside_and_fetched_again(
    store: Store, site: Site, client: Client, tmp_path: Path, change: str
) -> None:
    site.files[POOL] = DATA
    aside = spoil(store, ITEM, SPOILED[change])
    err = StringIO()
    report = get([ITEM], store, site, client, Console(quiet=True, out=StringIO(), err=err))
    assert [f.path for f in report.fetched] == [ITEM.path]
    assert err.getvalue().startswith("warning: thing 1.0 in the store is not what the lock names")
    assert str(store.path / aside) in err.getvalue()
    assert store.get(ITEM).read_bytes() == DATA
    assert (store.path / aside).read_bytes() == SPOILED[change]


def test_several_of_another_size_are_told_together(
    store: Store, site: Site, client: Client, console: Console
) -> None:
    items = [make_input(some_bytes(9, n), f"pool/{n}.deb", name=f"pkg{n}") for n in range(3)]
    aside = [spoil(store, item, b"x" * n) for n, item in enumerate(items)]
    with pytest.raises(HashMismatchError) as caught:
        get(items, store, site, client, console, offline=True)
    text = "\n".join(caught.value.evidence)
    assert all(item.name in text for item in items)
    assert tree(store.path) == sorted(aside)


def test_a_project_file_of_another_size_is_copied_again_offline(
    store: Store, site: Site, client: Client, console: Console, tmp_path: Path
) -> None:
    (tmp_path / "p").write_bytes(b"local")
    local = make_input(b"local", "p", source=SourceKind.PROJECT)
    aside = spoil(store, local, b"localized")
    get([local], store, site, client, console, offline=True)
    assert store.get(local).read_bytes() == b"local"
    assert (store.path / aside).read_bytes() == b"localized"


@pytest.mark.parametrize("offline", [True, False])
def test_a_lock_with_a_wrong_size_does_not_cost_the_right_file(
    store: Store, site: Site, client: Client, console: Console, tmp_path: Path, offline: bool
) -> None:
    site.files[POOL] = DATA
    (tmp_path / "a").write_bytes(DATA)
    store.put_file(tmp_path / "a", ITEM.sha256, ITEM.size)
    lying = ITEM.model_copy(update={"size": ITEM.size + 1})
    for _ in range(2):
        with pytest.raises(HashMismatchError) as caught:
            get([lying], store, site, client, console, offline=offline)
        assert "the lock's size" in caught.value.evidence[-1]
    assert store.get(ITEM).read_bytes() == DATA
    assert site.log == []


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_put_aside(
    store: Store, site: Site, client: Client, console: Console, kind: str
) -> None:
    path = store.path_of(ITEM.sha256)
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
        (path / "x").write_bytes(b"kept")
    with pytest.raises(HashMismatchError) as caught:
        get([ITEM], store, site, client, console, offline=True)
    assert "no plain file" in caught.value.evidence[1]
    (aside,) = (store.path / "rejected").iterdir()
    assert str(aside) in caught.value.evidence[2]
    site.files[POOL] = DATA
    get([ITEM], store, site, client, console)
    assert store.get(ITEM).read_bytes() == DATA


# --- interrupted and broken transfers ------------------------------------------------------


def test_truncated_answers_are_taken_up_again(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL] = DATA
    site.faults[POOL] = [("cut", 300_000), ("cut", 200_000), 503, ("cut", 0), ("cut", 1)]
    report = get([ITEM], store, site, client, console)
    offsets = [int(r.removeprefix("bytes=").removesuffix("-") or 0) for r in site.asked(POOL)]
    assert offsets == sorted(offsets)
    assert offsets[1] > 0
    assert report.bytes_received == len(DATA)


def test_truncated_without_announced_length(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL], site.lengths = DATA, False
    site.faults[POOL] = [("cut", 300_000)]
    get([ITEM], store, site, client, console)
    assert len(site.asked(POOL)) == 2


def test_a_place_that_only_ever_hangs_up_is_given_up(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL] = DATA
    site.faults[POOL] = [("cut", 0)] * 50
    with pytest.raises(FetchError):
        get([ITEM], store, site, client, console)
    assert len(site.asked(POOL)) == client.attempts


def test_a_place_that_trickles_is_left_for_the_next_which_goes_on_from_there(
    site: Site, store: Store, console: Console, tmp_path: Path
) -> None:
    site.files[POOL], site.piece, site.delay = DATA, 1, 0.002  # half an hour for the whole
    (tmp_path / "mirror/pool/main/t").mkdir(parents=True)
    (tmp_path / "mirror" / ITEM.path).write_bytes(DATA)
    mirror = (tmp_path / "mirror").as_uri()
    with Client({}, sleep=lambda _: None, floor=Floor(1 << 40, 0.001)) as slow:
        report = get([ITEM], store, site, slow, console, debian=(f"{site.url}/debian", mirror))
        assert report.fetched[0].place == mirror
        asked = site.asked(POOL)
        assert len(asked) == slow.attempts
        assert asked[-1].startswith("bytes=")  # each try goes on where the last one was
        assert report.bytes_received == len(DATA)
        assert store.get(ITEM).read_bytes() == DATA
        other = make_input(DATA[1:], ITEM.path)
        with pytest.raises(FetchError) as caught:
            get([other], store, site, slow, console)
    assert "too slow" in "\n".join(caught.value.evidence)


def test_a_place_that_hangs_up_after_every_byte_is_given_up(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL] = DATA
    site.faults[POOL] = [("cut", 1)] * 500
    with pytest.raises(FetchError):
        get([ITEM], store, site, client, console)
    assert len(site.asked(POOL)) == POOR_TRIES
    assert store.partial(ITEM.sha256).stat().st_size == POOR_TRIES


def test_server_without_ranges_starts_over(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL], site.ranges = DATA, False
    site.faults[POOL] = [("cut", 300_000)]
    get([ITEM], store, site, client, console)
    assert site.asked(POOL)[1].startswith("bytes=")
    assert store.get(ITEM).read_bytes() == DATA


@pytest.mark.parametrize("there", [100_000, len(DATA), len(DATA) + 5])
def test_partial_of_other_bytes_is_asked_for_again_from_zero(
    site: Site, store: Store, client: Client, console: Console, there: int
) -> None:
    site.files[POOL] = DATA
    store.partial(ITEM.sha256).write_bytes(some_bytes(there, 99))
    get([ITEM], store, site, client, console)
    assert store.get(ITEM).read_bytes() == DATA
    assert not (store.path / "rejected").exists()


def test_complete_partial_needs_no_transfer(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    store.partial(ITEM.sha256).write_bytes(DATA)
    report = get([ITEM], store, site, client, console)
    assert (report.bytes_received, report.bytes_resumed) == (0, len(DATA))
    assert site.log == []


def test_partial_longer_than_what_the_server_has(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    short = DATA[:500]
    site.files[POOL] = short
    store.partial(ITEM.sha256).write_bytes(DATA[:1000])
    with pytest.raises(HashMismatchError):
        get([ITEM], store, site, client, console)
    assert site.asked(POOL) == ["bytes=1000-", ""]


@pytest.mark.parametrize(
    "wrong", [some_bytes(len(DATA), 7), DATA[:-1], DATA + b"x", b"<html>", b""]
)
def test_wrong_bytes_are_kept_aside_then_the_next_mirror(
    make_site: Any, store: Store, client: Client, console: Console, wrong: bytes
) -> None:
    bad, good = make_site(files={POOL: wrong}), make_site(files={POOL: DATA})
    report = get(
        [ITEM], store, good, client, console, debian=(f"{bad.url}/debian", f"{good.url}/debian")
    )
    assert report.fetched[0].place == f"{good.url}/debian"
    assert store.get(ITEM).read_bytes() == DATA
    kept = list((store.path / "rejected").iterdir())
    assert len(kept) == 1
    assert kept[0].read_bytes() == wrong


def test_wrong_bytes_everywhere(site: Site, store: Store, client: Client, console: Console) -> None:
    site.files[POOL] = wrong = some_bytes(len(DATA), 7)
    with pytest.raises(HashMismatchError) as caught:
        get([ITEM], store, site, client, console)
    actual = hashlib.sha256(wrong).hexdigest()
    assert any(actual in line for line in caught.value.evidence)
    assert [p for p in tree(store.path) if not p.startswith("rejected/")] == []


def test_endless_answer_is_cut_off(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    site.files[POOL], site.lengths = some_bytes(40_000_000, 1), False
    small = make_input(b"x" * 10, ITEM.path)
    with pytest.raises(HashMismatchError):
        get([small], store, site, client, console)
    assert sum(p.stat().st_size for p in (store.path / "rejected").iterdir()) <= 2 << 20


def test_page_that_states_another_hash_is_not_downloaded(
    site: Site, store: Store, client: Client, console: Console
) -> None:
    item = make_input(b"right", "thing-1.0.tar.gz", source=SourceKind.INDEX)
    site.project("thing", {item.path: b"wrong"})
    with pytest.raises(HashMismatchError) as caught:
        get([item], store, site, client, console)
    assert any("offers other bytes" in line for line in caught.value.evidence)
    assert site.asked(f"/files/{item.path}") == []


def test_page_from_elsewhere_cannot_name_local_files(
    site: Site, store: Store, client: Client, console: Console, tmp_path: Path
) -> None:
    (tmp_path / "thing-1.0.tar.gz").write_bytes(b"local")
    link = (tmp_path / "thing-1.0.tar.gz").as_uri()
    site.files["/simple/thing/"] = f'<a href="{link}">thing-1.0.tar.gz</a>'.encode()
    site.types["/simple/thing/"] = "text/html"
    item = make_input(b"local", "thing-1.0.tar.gz", source=SourceKind.INDEX)
    with pytest.raises(FetchError) as caught:
        get([item], store, site, client, console)
    assert any("file of this machine" in line for line in caught.value.evidence)


def test_project_file_that_changed(
    store: Store, site: Site, client: Client, console: Console, tmp_path: Path
) -> None:
    item = make_input(b"locked", "patches/1.patch", source=SourceKind.PROJECT)
    with pytest.raises(FetchError, match=r"patches/1\.patch is not in the project"):
        get([item], store, site, client, console)
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/1.patch").write_bytes(b"edited")
    with pytest.raises(HashMismatchError):
        get([item], store, site, client, console)
    assert (tmp_path / "patches/1.patch").read_bytes() == b"edited"
    (tmp_path / "patches/1.patch").unlink()
    (tmp_path.parent / "outside").write_bytes(b"locked")
    (tmp_path / "patches/1.patch").symlink_to(tmp_path.parent / "outside")
    with pytest.raises(FetchError, match="not in the project"):
        get([item], store, site, client, console)


def test_offline_lists_every_missing_input(
    store: Store, site: Site, client: Client, console: Console, tmp_path: Path
) -> None:
    site.files[POOL] = DATA
    (tmp_path / "p").write_bytes(b"local")
    local = make_input(b"local", "p", source=SourceKind.PROJECT)
    items = [
        *(make_input(some_bytes(n + 1, n), f"pool/{n}.deb", name=f"pkg{n}") for n in range(20)),
        local,
    ]
    with pytest.raises(MissingInputsError) as caught:
        get(items, store, site, client, console, offline=True, command="pinwheel fetch --combo X")
    text = "\n".join(caught.value.evidence)
    for item in items[:-1]:
        assert f"{item.name} 1.0: debian {item.path}" in text
        assert item.sha256 in text
    assert "210 bytes in all" in text
    assert "pinwheel fetch --combo X" in caught.value.next_step
    assert store.has(local)
    assert site.log == []


# --- processes -----------------------------------------------------------------------------


def _worker(tmp_path: Path, site: Site) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "worker", str(tmp_path), f"{site.url}/debian"),
            *(ITEM.path, str(ITEM.size), ITEM.sha256),
        ],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_in_the_middle_and_resumed(
    site: Site, store: Store, client: Client, console: Console, tmp_path: Path
) -> None:
    site.files[POOL], site.delay = DATA, 0.5
    process = _worker(tmp_path, site)
    partial = store.partial(ITEM.sha256)
    deadline = time.monotonic() + 90
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    there = partial.stat().st_size
    assert 0 < there < len(DATA)
    assert not store.has(ITEM)

    site.delay = 0
    again = _worker(tmp_path, site)
    out, err = again.communicate(timeout=90)
    assert again.returncode == 0, err
    assert out.split()[1] == str(there)
    assert site.asked(POOL) == ["", f"bytes={there}-"]
    assert store.get(ITEM).read_bytes() == DATA
    assert tree(store.path) == [f"sha256/{ITEM.sha256[:2]}/{ITEM.sha256}"]


def test_processes_racing_for_one_file_download_it_once(
    site: Site, store: Store, tmp_path: Path
) -> None:
    site.files[POOL], site.delay = DATA, 0.05
    processes = [_worker(tmp_path, site) for _ in range(3)]
    results = [(p.communicate(timeout=120), p.returncode) for p in processes]
    assert [code for _, code in results] == [0] * 3, results
    assert site.asked(POOL) == [""]
    assert store.get(ITEM).read_bytes() == DATA


def test_two_fetches_in_one_process(site: Site, tmp_path: Path, client: Client) -> None:
    items = [make_input(some_bytes(70_000, n), f"pool/{n}.deb") for n in range(12)]
    for n, item in enumerate(items):
        site.files[f"/debian/{item.path}"] = some_bytes(70_000, n)
    store, errors = Store(tmp_path / "cache/store"), []

    def work() -> None:
        try:
            quiet = Console(quiet=True, out=StringIO(), err=StringIO())
            get(items, store, site, client, quiet)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(site.log) == len(items)
    assert all(store.get(i).is_file() for i in items)


def test_interrupt_ends_the_threads_and_keeps_what_came(
    site: Site, store: Store, client: Client, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.files[POOL], site.delay = DATA, 1.0

    def interrupted(_: Any) -> Iterator[Any]:
        while not size_of(store.partial(ITEM.sha256)):
            time.sleep(0.02)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(fetch_module, "as_completed", interrupted)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        get([ITEM], store, site, client, console)
    assert time.monotonic() - started < 8  # of 16 seconds
    assert store.partial(ITEM.sha256).stat().st_size > 0
    assert not store.has(ITEM)


# --- disks ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 512 KiB."""
    where = tmp_path / "disk"
    where.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(where)], capture_output=True
    )
    if os.geteuid() != 0 or done.returncode:
        pytest.skip("mounting a small file system needs root with CAP_SYS_ADMIN")
    yield where
    subprocess.run(["umount", str(where)], check=True)


def test_too_little_space_is_said_before_anything_is_fetched(
    small_disk: Path, site: Site, client: Client, console: Console
) -> None:
    site.files[POOL] = DATA
    with pytest.raises(DiskFullError) as caught:
        get([ITEM], Store(small_disk / "cache/store"), site, client, console)
    assert any(str(len(DATA)) in line for line in caught.value.evidence)
    assert site.log == []


def test_disk_fills_while_fetching_and_it_goes_on_later(
    small_disk: Path,
    site: Site,
    client: Client,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site.files[POOL] = DATA
    store = Store(small_disk / "cache/store")
    with monkeypatch.context() as patch:  # somebody else fills the disk after the look at it
        patch.setattr(fetch_module, "free_bytes", lambda _: 1 << 40)
        with pytest.raises(DiskFullError, match="no space left"):
            get([ITEM], store, site, client, console)
    assert not store.has(ITEM)
    assert tree(store.path) == [f"partial/{ITEM.sha256}"]
    there = store.partial(ITEM.sha256).stat().st_size
    assert there > 0
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    report = get([ITEM], store, site, client, console)
    assert report.bytes_resumed == there
    assert site.asked(POOL)[-1] == f"bytes={there}-"
    assert store.get(ITEM).read_bytes() == DATA


def test_read_only_store(small_disk: Path, site: Site, client: Client, console: Console) -> None:
    data = DATA[:1000]
    site.files[POOL] = data
    item = make_input(data, ITEM.path)
    store = Store(small_disk / "cache/store")
    get([item], store, site, client, console)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    # What is there can still be used; nothing new can come.
    assert Store(store.path).get(item).read_bytes() == data
    get([item], store, site, client, console)
    with pytest.raises(NotWritableError):
        get([make_input(b"new", "pool/new.deb")], store, site, client, console)


def test_another_size_in_a_read_only_store(
    small_disk: Path, site: Site, client: Client, console: Console
) -> None:
    item = make_input(DATA[:1000], ITEM.path)
    site.files[POOL] = DATA[:1000]
    store = Store(small_disk / "cache/store")
    spoil(store, item, b"other")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for offline in (True, False):
        with pytest.raises(HashMismatchError) as caught:
            get([item], store, site, client, console, offline=offline)
        assert caught.value.evidence[-1].startswith("left at ")
    assert store.path_of(item.sha256).read_bytes() == b"other"
    assert site.log == []


def test_atomic_write_leaves_the_old_file_when_the_disk_is_full(small_disk: Path) -> None:
    path = small_disk / "manifest.json"
    files.atomic_write(path, b"old")
    with pytest.raises(DiskFullError):
        files.atomic_write(path, bytes(2_000_000))
    assert path.read_bytes() == b"old"
    assert [p.name for p in small_disk.iterdir()] == ["manifest.json"]

"""Locks: same lock, same bytes; malformed and stale ones are told apart and named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipe_kit import FLAGSHIP, PROJECT, SERIES, TOOLKIT, a_lock, an_input

from pinwheel.errors import HashMismatchError, LockError, LockStaleError, NotWritableError
from pinwheel.matrix.models import load_matrix
from pinwheel.recipe import stale
from pinwheel.recipe.load import load_recipe
from pinwheel.recipe.lock import Lock, Role
from pinwheel.recipe.lockfile import lock_text, read_lock, write_lock
from pinwheel.recipe.resolve import merge_inputs
from pinwheel.recipe.stale import check_fresh, matrix_slice_digest, stale_reasons
from pinwheel.settings import Settings


def read_text(text: str, place: Path) -> Lock:
    place.write_text(text)
    return read_lock(place)


def test_round_trip_and_no_needless_write(tmp_path: Path) -> None:
    lock = a_lock(an_input("a"), an_input("b", roles=(Role.BUILD, Role.RUN)))
    path = tmp_path / "lock.toml"
    assert write_lock(lock, path)
    stamp = path.stat().st_mtime_ns
    assert not write_lock(lock, path)
    assert path.stat().st_mtime_ns == stamp
    assert read_lock(path) == lock
    assert [p.name for p in tmp_path.iterdir()] == ["lock.toml"]


NASTY = st.text(min_size=1, max_size=12).filter(str.isprintable)


@given(NASTY, NASTY)
def test_any_text_survives(
    tmp_path_factory: pytest.TempPathFactory, name: str, version: str
) -> None:
    try:
        lock = a_lock(an_input(name, version=version, path="p"))
        text = lock_text(lock).encode()
    except UnicodeEncodeError:
        return
    path = tmp_path_factory.getbasetemp() / "nasty.toml"
    path.write_bytes(text)
    assert read_lock(path) == lock


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("size = 10", "size = -1", "input[1].size"),
        ("size = 10", 'size = "many"', "input[1].size"),
        ("size = 10", "size = true", "input[1].size"),
        ("size = 10", 'size = "10"', "input[1].size"),
        ("size = 10", "size = 9223372036854775808", "input[1].size"),
        ("ab" * 32, "AB" * 32, "input[1].sha256"),
        ('roles = ["run"]', 'roles = ["runs"]', "input[1].roles"),
        ('roles = ["run"]', "roles = []", "input[1].roles"),
        ('source = "index"', 'source = "web"', "input[1].source"),
        ('path = "a-1.0', 'path = "../a-1.0', "input[1].path"),
        ('path = "a-1.0', 'path = "/a-1.0', "input[1].path"),
        ('path = "a-1.0', 'path = "\\u0000a-1.0', "input[1].path"),
        ('path = "a-1.0', 'path = "\\u001b[2Ja-1.0', "input[1].path"),
        ('path = "a-1.0', 'path = "./a-1.0', "input[1].path"),
        ('path = "a-1.0', f'path = "{"a" * 300}-1.0', "input[1].path"),
        ('name = "a"', 'name = "\\u009ba"', "input[1].name"),
        ("20260102T030405Z", "../../x", "debian-snapshot"),
        ("epoch = 1728941239", "epoch = 9999999999", "source-date-epoch"),
        ("lock-version = 1", "lock-version = 2", "lock-version"),
        ("source-date-epoch = 1728941239", "source-date-epoch = 1", "source-date-epoch"),
        ('toolkit = "', 'tool = "', "tool"),
    ],
)
def test_a_malformed_lock_names_file_line_and_key(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    text = lock_text(a_lock(an_input("a"))).replace(old, new, 1)
    line = text[: text.index(new)].count("\n") + 1
    with pytest.raises(LockError) as caught:
        read_text(text, tmp_path / "lock.toml")
    said = "\n".join((caught.value.what, *caught.value.evidence))
    assert re.search(rf"lock\.toml:{line}: {re.escape(key)}[ .\[:]", said), said


def test_order_and_repetition_are_checked(tmp_path: Path) -> None:
    text = lock_text(a_lock(an_input("a"), an_input("b")))
    head, first, second = text.split("\n[[input]]\n")
    swapped = "\n[[input]]\n".join((head, second, first))
    with pytest.raises(LockError, match="not sorted"):
        read_text(swapped, tmp_path / "lock.toml")
    with pytest.raises(LockError, match="twice"):
        read_text("\n[[input]]\n".join((head, first, first)), tmp_path / "lock.toml")


def test_truncated_absent_and_binary_locks(tmp_path: Path) -> None:
    path = tmp_path / FLAGSHIP / f"lock.{TOOLKIT}.toml"
    with pytest.raises(LockError) as caught:
        read_lock(path)
    assert f"--combo {FLAGSHIP} --toolkit {TOOLKIT}" in caught.value.next_step
    path.parent.mkdir()
    text = lock_text(a_lock(an_input("a")))
    with pytest.raises(LockError, match="not TOML"):
        read_text(text[:-20], path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(LockError, match="cannot be read"):
        read_lock(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(NotWritableError):
        write_lock(a_lock(), tmp_path / "lock.toml")


def test_one_file_for_two_roles_is_listed_once() -> None:
    merged = merge_inputs(
        [an_input("b"), an_input("a"), an_input("b", roles=(Role.BUILD,))],
    )
    assert [(i.name, i.roles) for i in merged] == [
        ("a", (Role.RUN,)),
        ("b", (Role.BUILD, Role.RUN)),
    ]
    with pytest.raises(HashMismatchError, match="two contents"):
        merge_inputs([an_input("a"), an_input("a", sha256="0" * 64)])


# --- staleness -----------------------------------------------------------------------------


def fresh(local: Settings) -> Lock:
    loaded = load_recipe(local, FLAGSHIP)
    matrix = load_matrix(local.project / "arch_matrix.toml")
    return a_lock(
        *merge_inputs(stale.patch_inputs(loaded)),
        recipe_sha256=loaded.digest,
        matrix_sha256=matrix_slice_digest(matrix, loaded, TOOLKIT),
        data_sha256=stale.data_digest(TOOLKIT),
    )


def reasons(lock: Lock, local: Settings) -> list[str]:
    loaded = load_recipe(local, FLAGSHIP)
    return stale_reasons(lock, loaded, load_matrix(local.project / "arch_matrix.toml"), TOOLKIT)


def test_a_fresh_lock_is_fresh(local: Settings) -> None:
    lock = fresh(local)
    assert reasons(lock, local) == []
    loaded = load_recipe(local, FLAGSHIP)
    check_fresh(lock, loaded, load_matrix(local.project / "arch_matrix.toml"), TOOLKIT)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_each_cause_is_named(local: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fresh(local)
    recipe = local.project / "recipes" / FLAGSHIP / "recipe.toml"
    series = local.project / SERIES
    replace(recipe, "job-memory-gib = 4.0", "job-memory-gib = 5.0")
    assert reasons(lock, local) == [f"recipe {recipe} says something else now"]
    replace(recipe, "job-memory-gib = 5.0", "job-memory-gib = 4.0")

    matrix = local.project / "arch_matrix.toml"
    replace(matrix, '"550.54.14"', '"550.54.15"')
    assert "arch_matrix.toml" in reasons(lock, local)[0]
    replace(matrix, '"550.54.15"', '"550.54.14"')

    first = sorted(series.iterdir())[0]
    kept = first.read_bytes()
    first.write_bytes(kept + b"\n")
    assert reasons(lock, local) == [f"patch {SERIES}/{first.name} has changed"]
    first.write_bytes(kept)

    last = sorted(series.iterdir())[-1]
    extra = series / f"{int(last.name[:4]) + 1:04d}-more.patch"
    extra.write_text("x")
    assert reasons(lock, local) == [f"patch {SERIES}/{extra.name} is not in the lock"]
    extra.unlink()
    kept = last.read_bytes()
    last.unlink()
    assert reasons(lock, local) == [
        f"patch {SERIES}/{last.name} is in the lock and no longer in the series"
    ]
    last.write_bytes(kept)

    monkeypatch.setattr(stale, "data_digest", lambda _name: "0" * 64)
    assert "data files" in reasons(lock, local)[0]


def test_stale_is_an_error_that_says_what_to_run(local: Settings) -> None:
    lock = fresh(local).model_copy(update={"recipe_sha256": "0" * 64})
    loaded = load_recipe(local, FLAGSHIP)
    with pytest.raises(LockStaleError) as caught:
        check_fresh(lock, loaded, load_matrix(local.project / "arch_matrix.toml"), TOOLKIT)
    assert f"pinwheel lock --combo {FLAGSHIP} --toolkit {TOOLKIT}" in caught.value.next_step


def test_rows_of_other_combos_do_not_count(local: Settings) -> None:
    lock = fresh(local)
    matrix = local.project / "arch_matrix.toml"
    matrix.write_text(
        matrix.read_text()
        + '\n[releases.zebra."9.9.9"]\nsource = "a release no combo of ours is of"\n'
    )
    assert reasons(lock, local) == []


def test_the_projects_own_lock_names_no_host() -> None:
    path = PROJECT / "recipes" / FLAGSHIP / f"lock.{TOOLKIT}.toml"
    lock = read_lock(path)
    assert not re.search(r"://|\.(org|com|net|io)\b", path.read_text())
    assert lock_text(lock).encode() == path.read_bytes()
    by_name = {i.name: i for i in lock.inputs}
    assert by_name["torch"].version == "2.3.0"
    assert set(by_name["torch"].roles) == {Role.BUILD, Role.RUN}
    # Withdrawn by its author; the name now is a stranger's (see the recipe).
    assert "pyairports" not in by_name


def test_an_index_input_is_one_file_and_a_hash_has_one_size(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name of a file"):
        an_input("a", path="a/b-1.0-py3-none-any.whl")
    with pytest.raises(ValueError, match="two sizes"):
        a_lock(an_input("a"), an_input("b", size=11))


def test_a_thousand_faults_are_counted_not_listed(tmp_path: Path) -> None:
    text = lock_text(a_lock(an_input("a")))
    head, block = text.split("\n[[input]]\n")
    many = "".join(f"\n[[input]]\n{block.replace('size = 10', 'size = -1')}" for _ in range(1000))
    with pytest.raises(LockError) as caught:
        read_text(head + many, tmp_path / "lock.toml")
    assert len(caught.value.evidence) == 8
    assert caught.value.evidence[-1] == "... and 992 more"

"""Directories kept in the cache: what has changed is seen, what is in use is not taken away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.console import Console
from pinwheel.files import file_lock, remove_tree
from pinwheel.toolkit.kept import is_whole, keep, listing_of, read_tree


class Cache:
    """A cache with one kept directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = path / "roots" / "abc"
        self.said = StringIO()
        self.make()

    def make(self) -> None:
        made = self.directory.with_name("abc.partial")
        (made / "usr/bin").mkdir(parents=True)
        (made / "usr/bin/gcc").write_bytes(b"compiler")
        (made / "usr/bin/gcc").chmod(0o755)
        (made / "usr/bin/cc").symlink_to("gcc")
        (made / "empty").mkdir()
        keep(made, self.directory)

    @property
    def whole(self) -> bool:
        self.said = StringIO()
        return is_whole(self.directory, "build root", Console(err=self.said))

    @property
    def beside(self) -> list[str]:
        return sorted(p.name for p in self.directory.parent.iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_what_was_made_is_whole_and_nothing_is_said(cache: Cache) -> None:
    assert cache.whole
    assert cache.said.getvalue() == ""
    assert cache.beside == ["abc", "abc.listing"]


def test_what_is_not_there_is_not_whole_and_no_news(cache: Cache) -> None:
    remove_tree(cache.directory)
    assert not cache.whole
    assert cache.said.getvalue() == ""


def rewritten(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"COMPILER")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def linked(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.with_name("gcc-12").write_bytes(data)
    path.symlink_to("gcc-12")


def moved(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


GCC = "usr/bin/gcc"
CHANGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "truncated": (GCC, lambda p: os.truncate(p, 3), f"{GCC} had 8 bytes and has 3"),
    "removed": (GCC, Path.unlink, f"{GCC} is gone"),
    "chmod-ed": (GCC, lambda p: p.chmod(0o644), f"{GCC} had mode 755 and has 644"),
    "rewritten": (GCC, rewritten, f"{GCC} was written to"),
    "replaced by a link": (GCC, linked, f"{GCC} was a file and is a link, 2 differences in all"),
    "added": ("usr/bin/tool", Path.touch, "usr/bin/tool was not there"),
    "a link elsewhere": (
        "usr/bin/cc",
        lambda p: (p.unlink(), p.symlink_to("/host/gcc")),
        "usr/bin/cc points elsewhere",
    ),
    "a directory removed": ("empty", Path.rmdir, "empty is gone"),
    "a directory added": ("usr/lib", Path.mkdir, "usr/lib was not there"),
    "a directory chmod-ed": ("usr", lambda p: p.chmod(0o700), "usr had mode 755 and has 700"),
    "a pipe": (
        "empty",
        lambda p: (p.rmdir(), os.mkfifo(p)),
        "empty was a directory and is a special",
    ),
    "the directory itself": (".", lambda p: p.chmod(0o700), "the directory itself had mode 755"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_and_named_in_one_line(cache: Cache, change: str) -> None:
    name, do, says = CHANGES[change]
    do(cache.directory / name)
    assert not cache.whole
    (line,) = cache.said.getvalue().splitlines()
    assert line.startswith(f"build root abc is made anew, it has changed: {says}")
    cache.make()
    assert cache.whole
    assert cache.beside == ["abc", "abc.listing"]


def test_the_directory_replaced_by_a_link_to_itself(cache: Cache) -> None:
    moved(cache.directory)
    assert not cache.whole
    assert "the directory itself was a directory and is a link" in cache.said.getvalue()
    cache.make()
    assert cache.directory.is_dir()
    assert not cache.directory.is_symlink()
    assert (cache.directory.with_name("other") / GCC).exists()  # whoever moved it may want it


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda p: p.write_bytes(b""),
        lambda p: p.write_bytes(p.read_bytes()[:-9]),
        lambda p: p.write_bytes(p.read_bytes().replace(b"file 755", b"file 777")),
        lambda p: p.write_bytes(p.read_bytes() + b"more\0file 644 0 0\0"),
    ],
)
def test_without_a_true_listing_nothing_is_taken_for_whole(
    cache: Cache, damage: Callable[[Path], object]
) -> None:
    """As of directories that an earlier version made."""
    damage(listing_of(cache.directory))
    assert not cache.whole
    assert "nothing says whether it is whole" in cache.said.getvalue()
    cache.make()
    assert cache.whole


def test_what_hard_links_do_is_no_change(cache: Cache) -> None:
    """uv links the files of environments, which changes their inodes."""
    (cache.path / "link").hardlink_to(cache.directory / GCC)
    assert cache.whole
    (cache.path / "link").unlink()
    assert cache.whole


def test_a_name_that_would_speak_to_the_terminal_is_spelled_out(cache: Cache) -> None:
    (cache.directory / "a\x1b[2J\n\udcff").touch()
    assert not cache.whole
    (line,) = cache.said.getvalue().splitlines()
    assert "a\\x1b[2J\\n\\udcff was not there" in line


NAMES = st.lists(
    st.binary(min_size=1, max_size=20).filter(
        lambda n: b"/" not in n and b"\0" not in n and n not in (b".", b"..")
    ),
    max_size=6,
    unique=True,
)


@settings(max_examples=60, deadline=None)
@given(files=NAMES, target=st.binary(min_size=1, max_size=30).filter(lambda t: b"\0" not in t))
def test_every_name_survives_the_listing(
    tmp_path_factory: pytest.TempPathFactory, files: list[bytes], target: bytes
) -> None:
    top = tmp_path_factory.mktemp("names")
    (top / "made").mkdir()
    for name in files:
        (top / "made" / os.fsdecode(name)).touch()
    (top / "made" / ("l" * 30)).symlink_to(os.fsdecode(target))
    keep(top / "made", top / "kept")
    assert is_whole(top / "kept", "it")
    assert set(read_tree(top / "kept")) == {b"", b"l" * 30, *files}


# --- what is in use ---------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from pinwheel.files import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def a_build(cache: Cache) -> Iterator[None]:
    """Another process holds a work directory, as a build does from beginning to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(cache.path / "work" / "combo-0.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.communicate("")


def test_what_a_running_build_uses_stays_until_it_ends(cache: Cache) -> None:
    old = os.open(cache.directory, os.O_RDONLY | os.O_DIRECTORY)  # as a mount holds it
    try:
        with a_build(cache):
            for number in range(2):
                (cache.directory / f"added{number}").touch()
                assert not cache.whole
                cache.make()
                assert cache.whole
            assert cache.beside == ["abc", "abc.listing", "abc.replaced-0", "abc.replaced-1"]
            assert os.stat("usr/bin/gcc", dir_fd=old).st_size == 8
        assert cache.whole
        assert cache.beside == ["abc", "abc.listing"]
    finally:
        os.close(old)


def test_ones_own_build_keeps_nothing(cache: Cache) -> None:
    with file_lock(cache.path / "work" / "combo-1.lock"):
        (cache.directory / "added").touch()
        assert not cache.whole
        cache.make()
        assert cache.beside == ["abc", "abc.listing"]


def test_killed_between_listing_and_rename_it_is_made_again(cache: Cache) -> None:
    """The listing is of what was going to be there."""
    made = cache.path / "roots" / "new"
    made.mkdir()
    keep(made, cache.path / "roots" / "def")
    listing_of(cache.path / "roots" / "def").replace(listing_of(cache.directory))
    assert not cache.whole

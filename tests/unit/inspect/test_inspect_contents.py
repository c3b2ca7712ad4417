"""Threads that go through a wheel: the same answer however they run, and none left behind."""

from __future__ import annotations

import os
import resource
import signal
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspect_kit import make_elf, wheel_files, write_wheel

from pinwheel.errors import ArtifactError, DiskFullError, SettingsError
from pinwheel.inspect import contents
from pinwheel.inspect.region import Region
from pinwheel.inspect.wheel import WheelReader, open_wheel
from pinwheel.inspect.zip_layout import Member, read_contents

LIBRARY = "tiny_pack/_C.abi3.so"
ELFS = {f"tiny_pack/{n}.so": make_elf(soname=f"lib{n}.so") for n in range(5)}


@pytest.fixture(params=[1, 4], ids=["one thread", "four threads"])
def _threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_THREADS", request.param)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.fixture(autouse=True)
def _none_left(tmp_path: Path) -> Iterator[None]:
    """After each test: no thread, and nothing in the scratch directory."""
    yield
    assert [t for t in threading.enumerate() if t.name == contents.THREADS] == []
    assert list((tmp_path / "scratch").glob("*")) == []


def opened(path: Path, use: Callable[[WheelReader], object] = lambda _: None) -> object:
    with open_wheel(path, path.parent / "scratch") as wheel:
        return use(wheel)


def damaged(path: Path, *names: str) -> Path:
    """The wheel with a byte changed in the data of each of these members."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for name in names:
            info = archive.getinfo(name)
            at = info.header_offset + 30 + len(name) + info.compress_size // 2
            data[at] ^= 0xFF
    path.write_bytes(data)
    return path


# --- what is there -----------------------------------------------------------------------------


@pytest.mark.usefixtures("_threads")
def test_libraries_are_there_one_by_one(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, wheel_files(**ELFS))

    def read(wheel: WheelReader) -> None:
        early = {name: wheel.library(name).size for name in wheel.ready()}
        assert tuple(sorted(early)) == wheel.libraries == tuple(sorted([LIBRARY, *ELFS]))
        assert early == {name: wheel.library(name).size for name in wheel.libraries}
        assert list(wheel.sha256) == [m.name for m in wheel.members]
        with pytest.raises(KeyError):
            wheel.library("tiny_pack/__init__.py")

    opened(path, read)


def test_it_works_where_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = write_wheel(tmp_path, wheel_files(**ELFS))
    monkeypatch.setattr(threading.Thread, "start", none)
    assert opened(path, lambda wheel: len(wheel.libraries)) == 6


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("last", [True, False])
def test_the_first_damaged_file_is_named(tmp_path: Path, last: bool) -> None:
    """Whichever is the larger one, which a thread takes first."""
    sizes = (90_000, 200) if last else (200, 90_000)
    noise = [os.urandom(size) for size in sizes]
    files = wheel_files(**{"tiny_pack/x1": noise[0], "tiny_pack/x2": noise[1], **ELFS})
    path = damaged(write_wheel(tmp_path, files), "tiny_pack/x1", "tiny_pack/x2")
    for use in (lambda _: None, lambda w: w.libraries, lambda w: list(w.ready())):
        with pytest.raises(ArtifactError, match="tiny_pack/x1"):
            opened(path, use)


def test_a_damaged_wheel_goes_before_what_its_reader_says(tmp_path: Path) -> None:
    path = damaged(write_wheel(tmp_path, wheel_files(**ELFS)), "tiny_pack/4.so")

    def fail(_: WheelReader) -> None:
        raise SettingsError("another error", next_step="none")

    with pytest.raises(ArtifactError, match=r"4\.so"):
        opened(path, fail)
    path = write_wheel(tmp_path, wheel_files(**ELFS))
    with pytest.raises(SettingsError):
        opened(path, fail)


@pytest.mark.usefixtures("_threads")
def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    large = {"tiny_pack/large.so": b"\x7fELF" + os.urandom(1 << 20)}
    path = write_wheel(tmp_path, wheel_files(**large))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
    try:
        with pytest.raises(DiskFullError):
            opened(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# --- interruption ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that takes a while: 240 MB unpacked."""
    place = tmp_path_factory.mktemp("long")
    zeros = {f"tiny_pack/zeros{n}": bytes(60 << 20) for n in range(4)}
    # Enough that does not pack, so that it is no bomb.
    return write_wheel(place, wheel_files(**zeros, **{"tiny_pack/noise": os.urandom(2 << 20)}))


def test_control_c_while_it_waits(long_one: Path, tmp_path: Path) -> None:
    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    def wait() -> None:
        with open_wheel(long_one, tmp_path / "scratch") as wheel:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            assert wheel.libraries == ("never",)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_caller_that_fails_waits_for_nothing(long_one: Path, tmp_path: Path) -> None:
    taken: list[contents.Contents] = []

    def fail() -> None:
        with open_wheel(long_one, tmp_path / "scratch") as wheel:
            taken.append(wheel._contents)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with pytest.raises(KeyError):  # a file that was left where it was
        _ = taken[0].digests


# --- inflating ---------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=2000),
    times=st.integers(1, 300),
    level=st.integers(0, 9),
    strategy=st.sampled_from(
        [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]
    ),
    window=st.integers(9, 15),
)
def test_what_zlib_packs_is_read(
    data: bytes, times: int, level: int, strategy: int, window: int
) -> None:
    whole = data * times
    packer = zlib.compressobj(level, zlib.DEFLATED, -window, 9, strategy)
    packed = packer.compress(whole) + packer.flush()
    member = Member(
        name="x",
        size=len(whole),
        packed=len(packed),
        offset=0,
        stored=False,
        crc=zlib.crc32(whole),
        executable=False,
    )
    assert b"".join(read_contents(Region.of(packed, "x"), member)) == whole

"""Archives that are small and would fill a disk, a memory or a day."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from archive_kit import Member, ar_member, deb, deb_of, member, symlink, tar_bytes, xz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinwheel.errors import UnpackError
from pinwheel.inputs import tarball
from pinwheel.inputs.archive import unpack_sdist, unpack_wheel
from pinwheel.inputs.deb import unpack_deb
from pinwheel.inputs.tarball import Budget

Unpack = Callable[[Path, bytes], list[str]]


def as_deb(place: Path, tar: bytes) -> list[str]:
    return unpack_deb(deb_of(place / "a.deb", xz(tar)), place / "out")


def as_sdist(place: Path, tar: bytes) -> list[str]:
    path = place / "a.tar.gz"
    path.write_bytes(gzip.compress(tar, 1))
    return unpack_sdist(path, place / "out", epoch=0)


BOTH = pytest.mark.parametrize("unpack", [as_deb, as_sdist])


def header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(**fields: str) -> bytes:
    """An extended header (POSIX pax, "pax Extended Header")."""
    data = b""
    for key, value in fields.items():
        rest = f" {key}={value}\n".encode()
        length = len(rest) + 2
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        data += str(length).encode() + rest
    return header("h", tarfile.XHDTYPE, len(data)) + data + bytes(-len(data) % 512)


def written(place: Path) -> int:
    return sum(p.stat().st_size for p in (place / "out").rglob("*") if p.is_file())


# --- bytes and members ---------------------------------------------------------------------


@BOTH
def test_what_a_small_archive_may_unpack_to_is_bounded(tmp_path: Path, unpack: Unpack) -> None:
    tar = tar_bytes([member("p/a", b"x"), member("p/b", bytes(tarball.FLOOR))])
    with pytest.raises(UnpackError, match=f"unpacks to more than {tarball.FLOOR} bytes") as caught:
        unpack(tmp_path, tar)
    assert caught.value.evidence[0].startswith("archive: ")
    assert written(tmp_path) == 1  # stated before it is written


def test_what_a_deb_is_not_asked_for_counts_too(tmp_path: Path) -> None:
    archive = deb(tmp_path / "a.deb", [member("./big", bytes(900)), member("./wanted", b"x" * 200)])
    with pytest.raises(UnpackError, match="unpacks to more than 1000 bytes"):
        unpack_deb(archive, tmp_path / "out", keep=lambda name: name == "wanted", max_bytes=1000)
    unpack_deb(archive, tmp_path / "out", keep=lambda name: name == "wanted", max_bytes=1100)
    assert written(tmp_path) == 200


MANY: list[Member] = [
    member("p", kind=tarfile.DIRTYPE),
    member("p/a", b"1"),
    symlink("p/b", "a"),
    member("p/c", b"2"),
]


@BOTH
def test_members_are_counted(
    tmp_path: Path, unpack: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarball, "MAX_MEMBERS", 4)
    assert len(unpack(tmp_path, tar_bytes(MANY))) == 3
    monkeypatch.setattr(tarball, "MAX_MEMBERS", 3)
    (tmp_path / "2").mkdir()
    with pytest.raises(UnpackError, match="holds more than 3 members"):
        unpack(tmp_path / "2", tar_bytes(MANY))


def test_files_of_a_wheel_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        for name in "abcd":
            archive.writestr(name, b"x")
    monkeypatch.setattr(tarball, "MAX_MEMBERS", 3)
    with pytest.raises(UnpackError, match="holds more than 3 members"):
        unpack_wheel(tmp_path / "a.whl", tmp_path / "out")
    assert unpack_wheel(tmp_path / "a.whl", tmp_path / "2", select={"b": ""}) == ["b"]


@pytest.mark.parametrize(
    ("size", "bound"),
    [
        (0, tarball.FLOOR),
        (1 << 20, (1 << 20) * tarball.MAX_RATIO),
        (1 << 40, tarball.CEILING),
    ],
)
def test_the_default_bound(tmp_path: Path, size: int, bound: int) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(size)  # a hole
    assert Budget(tmp_path / "x").max_bytes == bound
    assert Budget(tmp_path / "x", 5).max_bytes == 5


@BOTH
@pytest.mark.parametrize("size", [-1, -512, -(1 << 40)])
def test_a_size_below_zero_gives_nothing_back(tmp_path: Path, unpack: Unpack, size: int) -> None:
    tar = header("p/a", tarfile.REGTYPE, size) + tar_bytes([member("p/b", b"x")])
    with pytest.raises(UnpackError):
        unpack(tmp_path, tar)
    with pytest.raises(UnpackError, match=r"a member of -1 bytes"):
        Budget(tmp_path).take(-1)


# --- what is no data -----------------------------------------------------------------------


@BOTH
def test_headers_of_headers(tmp_path: Path, unpack: Unpack) -> None:
    tar = pax(comment="x") * 5000 + tar_bytes([member("p/a", b"x")])
    with pytest.raises(UnpackError, match="corrupt"):
        unpack(tmp_path, tar)


@BOTH
def test_headers_of_all_members_together(
    tmp_path: Path, unpack: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pax(comment="x" * 900) + tar_bytes([member("p/a", b"x")])[:1024]
    monkeypatch.setattr(tarball, "_ALL_HEADERS", 10_000)
    assert len(unpack(tmp_path, one * 10 + bytes(1024))) == 10
    (tmp_path / "2").mkdir()
    with pytest.raises(UnpackError, match="corrupt") as caught:
        unpack(tmp_path / "2", one * 12 + bytes(1024))
    assert "extended headers of more than 10000 bytes" in caught.value.evidence[-1]


@BOTH
@pytest.mark.parametrize(
    "tar",
    [
        header("p/a", tarfile.GNUTYPE_SPARSE, 0),
        pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})
        + tar_bytes([member("p/a", b"9999999\n" + b"0\n" * 2000)]),
        pax(**{"GNU.sparse.map": "0,1,2,3"}) + tar_bytes([member("p/a", b"x")]),
        pax(**{"GNU.sparse.size": "1"}) + tar_bytes([member("p/a", b"x")]),
    ],
    ids=["old", "1.0", "0.1", "0.0"],
)
def test_sparse_members_are_refused(tmp_path: Path, unpack: Unpack, tar: bytes) -> None:
    with pytest.raises(UnpackError, match="corrupt") as caught:
        unpack(tmp_path, tar)
    assert "sparse" in caught.value.evidence[-1]


@BOTH
def test_padding_is_bounded(
    tmp_path: Path, unpack: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = tar_bytes([member("p/a", b"x")])
    monkeypatch.setattr(tarball, "_PADDING", 3 << 20)
    unpack(tmp_path, tar + bytes(1 << 20))
    (tmp_path / "2").mkdir()
    with pytest.raises(UnpackError, match="corrupt") as caught:
        unpack(tmp_path / "2", tar + bytes(6 << 20))
    assert "padding" in caught.value.evidence[-1]


@pytest.mark.parametrize("time", ["inf", "nan", "1e300", "9" * 30])
def test_times_that_no_file_can_have(tmp_path: Path, time: str) -> None:
    with pytest.raises(UnpackError, match="corrupt"):
        as_deb(tmp_path, pax(mtime=time) + tar_bytes([member("p/a", b"x")]))


def test_members_of_the_ar_archive_are_counted(tmp_path: Path) -> None:
    path = deb(tmp_path / "a.deb", [member("./a", b"x")])
    path.write_bytes(path.read_bytes() + ar_member("more", b"") * 200)
    with pytest.raises(UnpackError, match="corrupt") as caught:
        unpack_deb(path, tmp_path / "out")
    assert "more than 100 members" in caught.value.evidence[-1]


def test_memory_that_xz_asks_for_is_bounded(tmp_path: Path) -> None:
    data = bytearray(xz(tar_bytes([member("./a", b"x")])))
    end = 12 + (data[12] + 1) * 4  # of the block header (xz file format 3.1)
    assert data[14:16] == b"\x21\x01"  # LZMA2, whose one property is the dictionary's size
    data[16] = 40  # 4 GiB
    data[end - 4 : end] = zlib.crc32(data[12 : end - 4]).to_bytes(4, "little")
    with pytest.raises(UnpackError, match="corrupt") as caught:
        unpack_deb(deb_of(tmp_path / "a.deb", bytes(data)), tmp_path / "out")
    assert "Memory usage limit" in caught.value.evidence[-1]


@pytest.mark.parametrize("padding", [0, 4, 4096])
def test_several_xz_streams_are_one(tmp_path: Path, padding: int) -> None:
    tar = tar_bytes([member("./a", b"x" * 3000)])
    data = xz(tar[:1000]) + bytes(padding) + xz(tar[1000:]) + bytes(padding)
    unpack_deb(deb_of(tmp_path / "a.deb", data), tmp_path / "out")
    assert (tmp_path / "out/a").read_bytes() == b"x" * 3000


PLAIN = tar_bytes([member("p/a", b"x" * 600), symlink("p/l", "a"), member("p/" + "n" * 200, b"y")])


@given(st.lists(st.tuples(st.integers(0, len(PLAIN) - 1), st.binary(min_size=1, max_size=12))))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_tar_is_unpacked_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    tar = bytearray(PLAIN)
    for at, data in changes:
        tar[at : at + len(data)] = data
    for at in range(0, len(tar), 512):  # right checksums, so that more is looked at than those
        if any(tar[at : at + 512]):
            tar[at + 148 : at + 156] = b" " * 8
            tar[at + 148 : at + 156] = b"%06o\0 " % sum(tar[at : at + 512])
    for unpack in (as_deb, as_sdist):
        with suppress(UnpackError):
            unpack(tmp_path_factory.mktemp("t"), bytes(tar))

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from archive_kit import Member, member, symlink, tar_bytes

from pinwheel.errors import UnpackError
from pinwheel.inputs.archive import unpack_sdist, unpack_wheel


def sdist(path: Path, members: list[Member]) -> Path:
    path.write_bytes(gzip.compress(tar_bytes(members)))
    return path


def wheel(path: Path, files: dict[str, bytes], mode: int = 0o100644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, (2024, 10, 14, 0, 0, 0))
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


def test_sdist_loses_its_top_directory_and_gets_one_time(tmp_path: Path) -> None:
    archive = sdist(
        tmp_path / "p-1.tar.gz",
        [
            member("p-1/", kind=tarfile.DIRTYPE, mode=0o700),
            member("p-1/setup.py", b"x", mode=0o600),
            member("p-1/run.sh", b"x", mode=0o4775),
            symlink("p-1/sub/link", "../setup.py"),
            member("p-1/hard", kind=tarfile.LNKTYPE, link="p-1/setup.py"),
        ],
    )
    dest = tmp_path / "src"
    written = unpack_sdist(archive, dest, epoch=1_000_000_000)
    assert written == ["setup.py", "run.sh", "sub/link", "hard"]
    assert {p.lstat().st_mtime for p in [dest, *dest.rglob("*")]} == {1_000_000_000}
    assert stat.S_IMODE((dest / "setup.py").stat().st_mode) == 0o644
    assert stat.S_IMODE((dest / "run.sh").stat().st_mode) == 0o755
    assert (dest / "sub/link").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([member("p/a", b"x"), member("q/b", b"x")], "outside the top directory"),
        ([member("/p/a", b"x")], "absolute"),
        ([member("p/../../a", b"x")], "'..'"),
        ([symlink("p/a", "/etc/passwd")], "out of the tree"),
        ([symlink("p/a", "../../etc")], "out of the tree"),
        ([symlink("p/a", "..")], "out of the tree"),
        (
            [symlink("p/s/l1", "../a"), symlink("p/s/t/u/l2", "../../l1/../..")],
            "out of the tree",
        ),
        ([member("p/a", kind=tarfile.LNKTYPE, link="q/b")], "outside the top directory"),
        ([member("p/a", kind=tarfile.CHRTYPE)], "neither file"),
        ([member("p", b"x")], "no name"),
    ],
)
def test_bad_sdists_are_refused(tmp_path: Path, members: list[Member], says: str) -> None:
    with pytest.raises(UnpackError) as caught:
        unpack_sdist(sdist(tmp_path / "bad.tar.gz", members), tmp_path / "src", epoch=0)
    assert says in caught.value.what
    assert "bad.tar.gz" in caught.value.what


def test_sdist_damage_is_named(tmp_path: Path) -> None:
    good = sdist(tmp_path / "p.tar.gz", [member("p/a", os.urandom(9000))]).read_bytes()
    for index, data in enumerate(
        (good[:5], good[:4000], good[:-4], good[:4000] + b"x" + good[4001:], b"no")
    ):
        bad = tmp_path / f"bad{index}.tar.gz"
        bad.write_bytes(data)
        with pytest.raises(UnpackError, match=bad.name):
            unpack_sdist(bad, tmp_path / f"src{index}", epoch=0)


def test_sdist_that_unpacks_to_too_much(tmp_path: Path) -> None:
    archive = sdist(tmp_path / "p.tar.gz", [member("p/a", bytes(5000)), member("p/b", bytes(5000))])
    with pytest.raises(UnpackError, match="more than 8000 bytes"):
        unpack_sdist(archive, tmp_path / "src", epoch=0, max_bytes=8000)


def test_sdist_does_not_mix_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "old").touch()
    with pytest.raises(UnpackError, match="not empty"):
        unpack_sdist(sdist(tmp_path / "p.tar.gz", [member("p/a")]), tmp_path / "src", epoch=0)


def test_wheel_selects_files_and_directories(tmp_path: Path) -> None:
    archive = wheel(
        tmp_path / "w.whl",
        {
            "lib/source/include/a.h": b"a",
            "lib/source/include/deep/b.h": b"b",
            "lib/tools/c.h": b"c",
            "lib/gen.py": b"g",
            "other.txt": b"o",
        },
    )
    dest = tmp_path / "out"
    written = unpack_wheel(
        archive,
        dest,
        select={"lib/source/include": "include", "lib/tools/": "", "lib/gen.py": "py/gen.py"},
        epoch=7,
    )
    assert written == ["include/a.h", "include/deep/b.h", "c.h", "py/gen.py"]
    assert {p.stat().st_mtime for p in dest.rglob("*")} == {7}
    with pytest.raises(UnpackError) as caught:
        unpack_wheel(archive, tmp_path / "out2", select={"lib/gone": "x"})
    assert caught.value.evidence == ("not found: lib/gone",)


def test_wheel_keeps_its_own_times_and_programs(tmp_path: Path) -> None:
    archive = wheel(tmp_path / "w.whl", {"bin/tool": b"x"}, mode=0o104755)
    unpack_wheel(archive, tmp_path / "out", keep=lambda name: name.startswith("bin/"))
    facts = (tmp_path / "out/bin/tool").stat()
    assert stat.S_IMODE(facts.st_mode) == 0o755
    assert facts.st_mtime == 1_728_864_000  # 2024-10-14 00:00 UTC


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\x"])
def test_wheel_names_that_lead_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnpackError, match=r"bad\.whl"):
        unpack_wheel(wheel(tmp_path / "bad.whl", {name: b"x"}), tmp_path / "deep" / "out")
    assert not [p for p in tmp_path.rglob("*x") if p.is_file()]


def test_wheel_oddities_are_refused(tmp_path: Path) -> None:
    link = wheel(tmp_path / "link.whl", {"a": b"/etc/passwd"}, mode=0o120777)
    with pytest.raises(UnpackError, match="symlink"):
        unpack_wheel(link, tmp_path / "1")
    with zipfile.ZipFile(tmp_path / "twice.whl", "w") as archive:
        archive.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a", b"2")
    with pytest.raises(UnpackError, match="twice"):
        unpack_wheel(tmp_path / "twice.whl", tmp_path / "2")
    with pytest.raises(UnpackError, match="more than 100 bytes"):
        unpack_wheel(wheel(tmp_path / "w.whl", {"a": bytes(101)}), tmp_path / "3", max_bytes=100)


def test_wheel_damage_is_named(tmp_path: Path) -> None:
    good = wheel(tmp_path / "w.whl", {"a": os.urandom(9000)}).read_bytes()
    for index, data in enumerate((b"", good[:100], good[:-5], good[:3000] + b"xyz" + good[3003:])):
        bad = tmp_path / f"bad{index}.whl"
        bad.write_bytes(data)
        with pytest.raises(UnpackError, match=bad.name):
            unpack_wheel(bad, tmp_path / f"out{index}")


def test_an_extended_header_is_not_read_into_memory_whole(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 64 << 20
    archive = tmp_path / "p-1.tar.gz"
    archive.write_bytes(gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + bytes(64 << 20), 1))
    with pytest.raises(UnpackError, match="corrupt") as caught:
        unpack_sdist(archive, tmp_path / "src", epoch=0)
    assert "extended header" in caught.value.evidence[-1]


@pytest.mark.parametrize("name", ["p-1/" + "a" * 256, "p-1/" + "a/" * 3000 + "x"])
def test_names_no_file_can_have(tmp_path: Path, name: str) -> None:
    archive = sdist(tmp_path / "p-1.tar.gz", [member(name, b"x")])
    with pytest.raises(UnpackError, match="too long") as caught:
        unpack_sdist(archive, tmp_path / "src", epoch=0)
    assert len(caught.value.what) < 400


def test_an_offset_before_the_first_byte(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a-1-py3-none-any.whl", {"a": b"1" * 500})
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\5\6")
    data[end + 16 : end + 20] = (int.from_bytes(data[end + 16 : end + 20], "little") + 40).to_bytes(
        4, "little"
    )
    path.write_bytes(data)
    with pytest.raises(UnpackError, match="corrupt"):
        unpack_wheel(path, tmp_path / "out")

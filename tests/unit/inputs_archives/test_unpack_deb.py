from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest
from archive_kit import COMPRESS, Member, ar_member, deb, deb_of, member, symlink, tar_bytes, xz

from pinwheel.errors import UnpackError
from pinwheel.inputs.deb import unpack_deb


@pytest.mark.parametrize("kind", COMPRESS)
def test_files_links_modes_and_times(tmp_path: Path, kind: str) -> None:
    archive = deb(
        tmp_path / "a.deb",
        [
            member("./", kind=tarfile.DIRTYPE, mode=0o755),
            member("./usr/", kind=tarfile.DIRTYPE, mode=0o500, mtime=5),
            member("./usr/bin/", kind=tarfile.DIRTYPE, mode=0o755),
            member("./usr/bin/tool", b"x" * 100_000, mode=0o6755),
            member("./usr/bin/same", kind=tarfile.LNKTYPE, link="./usr/bin/tool"),
            symlink("./usr/bin/abs", "/usr/bin/tool"),
            member("./dev/null", kind=tarfile.CHRTYPE),
            member("./run/fifo", kind=tarfile.FIFOTYPE),
        ],
        kind,
    )
    dest = tmp_path / "root"
    assert unpack_deb(archive, dest) == ["usr/bin/tool", "usr/bin/same", "usr/bin/abs"]
    tool = (dest / "usr/bin/tool").stat()
    assert stat.S_IMODE(tool.st_mode) == 0o755  # setuid and setgid are gone
    assert tool.st_mtime == 1_700_000_000
    assert tool.st_uid == os.getuid()
    assert (dest / "usr/bin/same").stat().st_ino == tool.st_ino
    assert (dest / "usr/bin/abs").readlink() == Path("/usr/bin/tool")
    usr = (dest / "usr").stat()
    assert stat.S_IMODE(usr.st_mode) == 0o755
    assert usr.st_mtime == 5
    assert not (dest / "dev").exists()


def test_usr_merge_rewrites_names_and_hardlinks_but_not_the_merge_links(tmp_path: Path) -> None:
    archive = deb(
        tmp_path / "a.deb",
        [
            symlink("./bin", "usr/bin"),
            member("./lib/", kind=tarfile.DIRTYPE, mode=0o755),
            member("./lib/a.so", b"a"),
            member("./lib64/b.so", kind=tarfile.LNKTYPE, link="./lib/a.so"),
            member("./sbin/x", b"x"),
            member("./library/y", b"y"),
        ],
    )
    dest = tmp_path / "root"
    written = unpack_deb(archive, dest, usr_merge=True)
    assert written == ["bin", "usr/lib/a.so", "usr/lib64/b.so", "usr/sbin/x", "library/y"]
    assert sorted(p.name for p in dest.iterdir()) == ["bin", "library", "usr"]


def test_keep_leaves_members_out_and_makes_no_empty_directories(tmp_path: Path) -> None:
    archive = deb(
        tmp_path / "a.deb",
        [
            member("./usr/lib/", kind=tarfile.DIRTYPE, mode=0o755),
            member("./usr/lib/big.a", b"a" * 3000),
            member("./usr/share/doc/", kind=tarfile.DIRTYPE, mode=0o755),
            member("./lib/b.so", b"b"),
        ],
    )
    seen: list[str] = []

    def keep(name: str) -> bool:
        seen.append(name)
        return not name.endswith(".a")

    dest = tmp_path / "root"
    assert unpack_deb(archive, dest, keep=keep, usr_merge=True) == ["usr/lib/b.so"]
    assert seen == ["usr/lib/big.a", "usr/lib/b.so"]
    assert [p.name for p in (dest / "usr").iterdir()] == ["lib"]


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([member("/etc/passwd", b"x")], "absolute"),
        ([member("./../x", b"x")], "'..'"),
        ([member("./a/../../x", b"x")], "'..'"),
        ([member("./a\\b", b"x")], "backslash"),
        ([symlink("./a", "../x")], "out of the tree"),
        ([symlink("./a/b", "../../x")], "out of the tree"),
        ([symlink("./a/b", "c/../../../x/y/z")], "out of the tree"),
        ([member("./a", kind=tarfile.LNKTYPE, link="../../etc/passwd")], "'..'"),
        ([member("./a", kind=tarfile.LNKTYPE, link="/etc/passwd")], "absolute"),
        ([member("./a", kind=tarfile.LNKTYPE, link="./nowhere")], "no file unpacked before"),
        (
            [symlink("./l", "/etc/hostname"), member("./a", kind=tarfile.LNKTYPE, link="./l")],
            "no file unpacked before",
        ),
        ([symlink("./a", "b"), symlink("./b", "a"), member("./a/x", b"x")], "loop"),
        ([member("./a", b"x"), member("./a/b", b"x")], "no directory"),
        ([member("./a/b", b"x"), member("./a", b"x")], "replace a directory"),
    ],
)
def test_what_leads_out_is_refused(tmp_path: Path, members: list[Member], says: str) -> None:
    dest = tmp_path / "deep" / "root"
    with pytest.raises(UnpackError) as caught:
        unpack_deb(deb(tmp_path / "bad.deb", members), dest)
    assert says in caught.value.what
    assert "bad.deb" in caught.value.what
    assert not [p for p in tmp_path.rglob("*") if p.name in ("x", "passwd")]


@pytest.mark.parametrize("target", ["/outside", "{outside}", "/../../../outside"])
def test_writing_through_an_absolute_link_stays_inside(tmp_path: Path, target: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = target.format(outside=outside)
    dest = tmp_path / "root"
    unpack_deb(deb(tmp_path / "a.deb", [symlink("./a", link), member("./a/x", b"x")]), dest)
    assert not list(outside.iterdir())
    inside = os.path.normpath(link).lstrip("/")
    assert (dest / inside / "x").read_bytes() == b"x"


def test_a_file_replaces_a_link_instead_of_writing_through_it(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    dest = tmp_path / "root"
    unpack_deb(deb(tmp_path / "a.deb", [symlink("./a", str(victim)), member("./a", b"x")]), dest)
    assert victim.read_text() == "mine"
    assert (dest / "a").read_bytes() == b"x"
    assert not (dest / "a").is_symlink()


def test_replacing_a_link_forgets_where_it_led(tmp_path: Path) -> None:
    dest = tmp_path / "root"
    unpack_deb(
        deb(
            tmp_path / "a.deb",
            [
                symlink("./a", "one"),
                member("./a/x", b"x"),
                symlink("./a", "two"),
                member("./a/y", b"y"),
            ],
        ),
        dest,
    )
    assert (dest / "one/x").exists()
    assert (dest / "two/y").exists()


@pytest.mark.parametrize("kind", COMPRESS)
def test_truncated_and_damaged_archives_are_named(tmp_path: Path, kind: str) -> None:
    payload = os.urandom(60_000)
    plain = tar_bytes([member("./one", payload), member("./two", payload)])
    good = COMPRESS[kind](plain)
    for cut in (0, 10, len(good) // 2, len(good) - 11_000):
        archive = deb_of(tmp_path / "cut.deb", good[:cut], kind)
        with pytest.raises(UnpackError, match=r"cut\.deb"):
            unpack_deb(archive, tmp_path / "root")
    whole = deb_of(tmp_path / "whole.deb", good, kind).read_bytes()
    (tmp_path / "short.deb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnpackError, match=r"short\.deb"):
        unpack_deb(tmp_path / "short.deb", tmp_path / "root")


def test_a_bit_flipped_in_compressed_data_is_found(tmp_path: Path) -> None:
    good = bytearray(xz(tar_bytes([member("./one", os.urandom(50_000))])))
    good[len(good) // 2] ^= 1
    with pytest.raises(UnpackError, match="corrupt"):
        unpack_deb(deb_of(tmp_path / "flip.deb", bytes(good)), tmp_path / "root")


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    plain = bytearray(tar_bytes([member("./one", b"1"), member("./two", b"2")]))
    plain[1024 + 150] ^= 0xFF  # the checksum field of the second header
    with pytest.raises(UnpackError, match="corrupt"):
        unpack_deb(deb_of(tmp_path / "a.deb", xz(bytes(plain))), tmp_path / "root")


@pytest.mark.parametrize("content", [b"", b"no archive", b"!<arch>\n", b"!<arch>\nrubbish"])
def test_no_deb_at_all(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "no.deb").write_bytes(content)
    with pytest.raises(UnpackError, match=r"no\.deb"):
        unpack_deb(tmp_path / "no.deb", tmp_path / "root")


def test_unknown_compression(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(b"!<arch>\n" + ar_member("data.tar.lz4", b"abc"))
    with pytest.raises(UnpackError) as caught:
        unpack_deb(tmp_path / "a.deb", tmp_path / "root")
    assert any("lz4" in line for line in caught.value.evidence)


def test_same_archives_give_the_same_directory_times(tmp_path: Path) -> None:
    one = deb(tmp_path / "1.deb", [member("./usr/lib/a", b"a", mtime=100)])
    two = deb(tmp_path / "2.deb", [member("./usr/lib/b", b"b", mtime=900)])
    for name in ("x", "y"):
        unpack_deb(one, tmp_path / name)
        unpack_deb(two, tmp_path / name)
    times = [(tmp_path / name / "usr/lib").stat().st_mtime for name in ("x", "y")]
    assert times == [100, 100]


@pytest.mark.parametrize("size", ["-60", "1e3", "", "0x10"])
def test_a_member_size_that_is_none_ends_at_once(tmp_path: Path, size: str) -> None:
    head = f"{'data.tar':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n".encode()
    (tmp_path / "a.deb").write_bytes(b"!<arch>\n" + head)
    with pytest.raises(UnpackError, match="corrupt"):
        unpack_deb(tmp_path / "a.deb", tmp_path / "root")

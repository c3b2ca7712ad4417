from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inspect_kit import (
    INFO,
    METADATA,
    WHEEL,
    WHEEL_NAME,
    make_elf,
    record_of,
    wheel_files,
    write_wheel,
)

from pinwheel.errors import ArtifactError, NotWritableError
from pinwheel.inspect import zip_layout
from pinwheel.inspect.dist_info import EntryPoint, parse_metadata, parse_record, parse_wheel
from pinwheel.inspect.elf import read_elf
from pinwheel.inspect.fatbin import count_targets, read_fatbins
from pinwheel.inspect.wheel import Problem, WheelRule, open_wheel


def problems(path: Path) -> tuple[Problem, ...]:
    with open_wheel(path, path.parent / "scratch") as wheel:
        return wheel.problems


def rules(path: Path) -> list[WheelRule]:
    return [p.rule for p in problems(path)]


def refused(path: Path) -> str:
    with pytest.raises(ArtifactError) as caught, open_wheel(path, path.parent / "scratch"):
        pass
    assert list((path.parent / "scratch").glob("*")) == []
    return " / ".join((str(caught.value), *caught.value.evidence))


# --- a right wheel -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_all_of_a_wheel_is_there(tmp_path: Path, method: int) -> None:
    path = write_wheel(tmp_path, wheel_files(), method=method)
    with open_wheel(path, tmp_path / "scratch") as wheel:
        assert wheel.problems == ()
        assert wheel.file_name.name == "tiny-pack"
        assert str(wheel.file_name.version) == "1.2.0+cu121"
        assert wheel.dist_info == INFO
        assert (wheel.metadata.name, str(wheel.metadata.version)) == ("Tiny_Pack", "1.2.0+cu121")
        assert [str(r) for r in wheel.metadata.requires_dist] == [
            "torch==2.4.0",
            'librosa; extra == "audio"',
        ]
        assert "3.9" in wheel.metadata.requires_python
        assert wheel.metadata.provides_extra == ("audio",)
        assert not wheel.wheel_info.purelib
        assert [str(t) for t in wheel.wheel_info.tags] == ["cp38-abi3-linux_x86_64"]
        assert wheel.entry_points == (EntryPoint("console_scripts", "Tiny", "tiny_pack:main"),)
        assert wheel.top_level == ("tiny_pack",)
        assert len(wheel.record) == len(wheel.members) == 7
        assert wheel.libraries == ("tiny_pack/_C.abi3.so",)
        assert wheel.read(f"{INFO}/WHEEL") == WHEEL
        region = wheel.library("tiny_pack/_C.abi3.so")
        elf = read_elf(region)
        assert elf.name == "tiny_pack/_C.abi3.so"
        assert count_targets(read_fatbins(region, elf)) == {"sm_90": 1}
        unpacked = list((tmp_path / "scratch").glob("*/*"))
        assert len(unpacked) == int(method == zipfile.ZIP_DEFLATED)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_scratch_is_left_empty_when_the_caller_fails(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, wheel_files())
    with pytest.raises(RuntimeError), open_wheel(path, tmp_path / "scratch"):
        raise RuntimeError
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_library_is_one_by_its_first_bytes(tmp_path: Path) -> None:
    more = {"tiny_pack/data.bin": make_elf(), "tiny_pack/text.so.in": b"INPUT(-lx)"}
    with open_wheel(write_wheel(tmp_path, wheel_files(**more)), tmp_path) as wheel:
        assert wheel.libraries == ("tiny_pack/_C.abi3.so", "tiny_pack/data.bin")


def test_a_scratch_that_cannot_be_written(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, wheel_files())
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritableError), open_wheel(path, tmp_path / "file" / "x"):
        pass


def test_zips_of_streaming_writers_are_read(tmp_path: Path) -> None:
    """With data descriptors, whose sizes stand behind the data."""

    class Pipe(io.RawIOBase):
        def __init__(self, file: io.BufferedWriter) -> None:
            self.file = file

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            return self.file.write(data)  # type: ignore[arg-type]

    path = tmp_path / WHEEL_NAME
    with path.open("wb") as file, zipfile.ZipFile(Pipe(file), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in wheel_files().items():
            archive.writestr(name, data)
    assert problems(path) == ()


def test_64_bit_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / WHEEL_NAME
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in wheel_files().items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    assert problems(path) == ()
    data = path.read_bytes()
    # A 64 bit end record as a writer of very large wheels has it.
    *_, entries, size, start, _ = struct.unpack("<I4H2IH", data[-22:])
    end = struct.pack("<IQ2H2I4Q", 0x06064B50, 44, 45, 45, 0, 0, entries, entries, size, start)
    locator = struct.pack("<2IQI", 0x07064B50, 0, len(data) - 22, 1)
    small = struct.pack("<I4H2IH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, size, 0xFFFFFFFF, 0)
    path.write_bytes(data[:-22] + end + locator + small)
    assert problems(path) == ()
    wrong = struct.pack("<I4H2IH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, size, start + 1, 0)
    path.write_bytes(data[:-22] + end + locator + wrong)
    assert "two places" in refused(path)


# --- what it states and what is so -------------------------------------------------------------


def with_files(tmp_path: Path, change: Mapping[str, bytes | None]) -> Path:
    """A wheel with files changed after RECORD was written; None takes one out."""
    files = {**wheel_files(), **change}
    return write_wheel(tmp_path, {k: v for k, v in files.items() if v is not None})


def test_record_and_files_differ(tmp_path: Path) -> None:
    path = with_files(
        tmp_path,
        {
            "tiny_pack/__init__.py": b"import os",
            f"{INFO}/top_level.txt": b"tiny_pacc\n",
            f"{INFO}/entry_points.txt": None,
            "tiny_pack/evil.py": b"",
            f"{INFO}/RECORD.jws": b"{}",
        },
    )
    assert {(p.rule, p.path) for p in problems(path)} == {
        (WheelRule.WRONG_SIZE, "tiny_pack/__init__.py"),
        (WheelRule.WRONG_HASH, "tiny_pack/__init__.py"),
        (WheelRule.WRONG_HASH, f"{INFO}/top_level.txt"),
        (WheelRule.NOT_THERE, f"{INFO}/entry_points.txt"),
        (WheelRule.NOT_RECORDED, "tiny_pack/evil.py"),
    }


def test_records_that_prove_nothing(tmp_path: Path) -> None:
    record = wheel_files()[f"{INFO}/RECORD"].decode()
    lines = record.splitlines()
    lines[0] = "tiny_pack/__init__.py,,0"
    lines[1] = lines[1].replace("sha256=", "md5=")
    lines[-1] = f"{INFO}/RECORD,sha256=x,3"
    lines.append(lines[3])
    path = with_files(tmp_path, {f"{INFO}/RECORD": "\n".join(lines).encode()})
    assert sorted(rules(path)) == sorted(
        [WheelRule.WEAK_HASH] * 2 + [WheelRule.WRONG_HASH, WheelRule.RECORDED_TWICE]
    )


def test_stronger_hashes_are_checked(tmp_path: Path) -> None:
    record = wheel_files()[f"{INFO}/RECORD"].decode().splitlines()
    record[0] = (
        "tiny_pack/__init__.py,sha384=OLBgp1GsljhM2TJ-sbHjaiH9txEUvgdDTAzHv2P24donTt6_529l-9Ua0vFImLlb,0"
    )
    record[-1] = f"{INFO}/RECORD,,"
    path = with_files(tmp_path, {f"{INFO}/RECORD": "\n".join(record).encode()})
    assert problems(path) == ()
    record[0] = record[0].replace("OLBg", "OLBh")
    path = with_files(tmp_path, {f"{INFO}/RECORD": "\n".join(record).encode()})
    assert rules(path) == [WheelRule.WRONG_HASH]


def test_many_problems_are_counted(tmp_path: Path) -> None:
    files = {f"x/{n}": b"" for n in range(130)}
    found = problems(with_files(tmp_path, files))
    assert len(found) == 101
    assert found[-1] == Problem(WheelRule.NOT_RECORDED, "", "and 30 more")


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (b"Name: Tiny_Pack", b"Name: other", WheelRule.NAME),
        (b"Version: 1.2.0+cu121", b"Version: 1.2.0", WheelRule.VERSION),
        (b"Tag: cp38-abi3-linux_x86_64", b"Tag: cp39-abi3-linux_x86_64", WheelRule.PYTHON_TAGS),
        (b"Tag: cp38-abi3-linux_x86_64", b"Tag: cp38-abi3-any", WheelRule.PLATFORM_TAGS),
        (b"Generator: test (1)", b"Build: 1local", WheelRule.BUILD),
    ],
)
def test_statements_that_disagree(tmp_path: Path, old: bytes, new: bytes, rule: WheelRule) -> None:
    files = {k: v for k, v in wheel_files().items() if not k.endswith("RECORD")}
    files[f"{INFO}/METADATA"] = METADATA.replace(old, new)
    files[f"{INFO}/WHEEL"] = WHEEL.replace(old, new)
    files[f"{INFO}/RECORD"] = record_of(files)
    assert rules(write_wheel(tmp_path, files)) == [rule]


def test_versions_are_compared_as_installers_do(tmp_path: Path) -> None:
    """PEP 440: 1.2 is 1.2.0."""
    files = {k: v for k, v in wheel_files().items() if not k.endswith("RECORD")}
    files[f"{INFO}/METADATA"] = METADATA.replace(b"Version: 1.2.0+cu121", b"Version: 1.2+cu121")
    files[f"{INFO}/RECORD"] = record_of(files)
    assert rules(write_wheel(tmp_path, files)) == []


def test_the_dist_info_directory_counts_too(tmp_path: Path) -> None:
    name = WHEEL_NAME.replace("1.2.0", "1.3.0")
    assert rules(write_wheel(tmp_path, wheel_files(), name=name)) == [WheelRule.VERSION]


def test_paths_that_are_one_on_other_systems(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, wheel_files(**{"tiny_pack/__INIT__.py": b""}))
    assert [(p.rule, p.detail) for p in problems(path)] == [
        (WheelRule.CASE, "also there: tiny_pack/__init__.py")
    ]


# --- dist-info that cannot be read -------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Name: x\n",
        b"Version: 1\n",
        b"Name: x\nName: y\nVersion: 1\n",
        b"Name: x\nVersion: not a version\n",
        b"Name: x\nVersion: 1\nRequires-Dist: ==\n",
        b"Name: x\nVersion: 1\nRequires-Python: python\n",
        b"Name: x\nVersion: 1\nRequires-Dist: a; " + b"(" * 5000 + b"\n",
        b"Name: x\nVersion: 1\n" + b"".join(b"a%d: 1\n" % n for n in range(6000)),
        b"Name: x\nVersion: 1\n\n" + bytes(5 << 20),
    ],
)
def test_metadata_that_cannot_be_read(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        parse_metadata(data, "METADATA")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Wheel-Version: 1.0", b"Wheel-Version: 2.0"),
        (b"Wheel-Version: 1.0", b"Wheel-Version: 1.0\nWheel-Version: 1.1"),
        (b"Wheel-Version: 1.0\n", b""),
        (b"Root-Is-Purelib: false", b"Root-Is-Purelib: maybe"),
        (b"Tag: cp38-abi3-linux_x86_64\n", b""),
        (b"cp38-abi3-linux_x86_64", b"cp38-abi3"),
        (b"cp38-abi3-linux_x86_64", b"cp38--linux_x86_64"),
        (b"cp38-abi3-linux_x86_64", b"-".join([b".".join([b"a"] * 60)] * 3)),
        (
            b"Tag: cp38-abi3-linux_x86_64",
            b"\n".join(
                b"Tag: a%d.b%d-%s-x.y" % (n, n, b".".join(b"%d" % i for i in range(25)))
                for n in range(200)
            ),
        ),
    ],
)
def test_wheel_files_that_cannot_be_read(old: bytes, new: bytes) -> None:
    parse_wheel(WHEEL, "WHEEL")
    with pytest.raises(ArtifactError):
        parse_wheel(WHEEL.replace(old, new), "WHEEL")


@pytest.mark.parametrize("data", [b"a,b\n", b"a,b,c,d\n", b"\xff,b,c\n", b'"a,b,c\n', b"a\0,b\n"])
def test_records_that_cannot_be_read(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        parse_record(data, "RECORD")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({f"{INFO}/METADATA": None}, "METADATA"),
        ({f"{INFO}/RECORD": None}, "RECORD"),
        ({"other-1.dist-info/METADATA": METADATA}, "one dist-info"),
        ({f"{INFO}/entry_points.txt": b"no section = x"}, "entry_points.txt"),
        ({f"{INFO}/entry_points.txt": b"\xff"}, "entry_points.txt"),
    ],
)
def test_dist_info_that_is_not_whole(
    tmp_path: Path, change: dict[str, bytes | None], said: str
) -> None:
    assert said in refused(with_files(tmp_path, change))


@pytest.mark.parametrize(
    "name", ["x.whl", "tiny_pack-1.whl", "tiny pack-1-py3-none-any.whl", "a-b-py3-none-any.whl"]
)
def test_file_names_of_no_wheel(tmp_path: Path, name: str) -> None:
    assert "its name" in refused(write_wheel(tmp_path, wheel_files(), name=name))


# --- zips that mislead -------------------------------------------------------------------------


def zip_with(tmp_path: Path, *members: tuple[zipfile.ZipInfo | str, bytes]) -> Path:
    path = tmp_path / WHEEL_NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in wheel_files().items():
            archive.writestr(name, data)
        for info, data in members:
            archive.writestr(info, data)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "./a",
        "a/./b",
        "C:/x",
        "a\\b",
        "a\x1b[2J",
        "x" * 300,
        "/".join(["d" * 100] * 12),
    ],
)
def test_paths_that_lead_out_or_deceive(tmp_path: Path, name: str) -> None:
    message = refused(zip_with(tmp_path, (name, b"x")))
    assert "the path" in message
    assert "\x1b" not in message


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_path_that_is_there_twice(tmp_path: Path) -> None:
    assert "there twice" in refused(zip_with(tmp_path, ("a", b"x"), ("a", b"y")))
    assert "a file and a directory" in refused(zip_with(tmp_path, ("a", b"x"), ("a/b", b"y")))


@pytest.mark.parametrize("mode", [0o120777, 0o010644, 0o060644, 0o140755, 0o040755])
def test_what_is_no_regular_file(tmp_path: Path, mode: int) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = mode << 16
    assert "link" in refused(zip_with(tmp_path, (info, b"/etc/passwd")))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_installers_need_not_know(tmp_path: Path, method: int) -> None:
    info = zipfile.ZipInfo("a")
    info.compress_type = method
    assert "method" in refused(zip_with(tmp_path, (info, b"x")))


def test_directories_are_no_files(tmp_path: Path) -> None:
    assert problems(zip_with(tmp_path, ("tiny_pack/sub/", b""))) == ()
    assert "a directory" in refused(zip_with(tmp_path, ("tiny_pack/sub/", b"x")))


def rewritten(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_bytes_that_belong_to_no_file(tmp_path: Path) -> None:
    path = zip_with(tmp_path)
    data = path.read_bytes()
    assert "before its first" in refused(_shifted(path, data, b"MZ" + bytes(30)))
    assert "damaged" in refused(rewritten(path, data + b"trailing"))
    # Two zips one after the other: which is read depends on who reads.
    assert refused(rewritten(path, data + data))
    start = struct.unpack_from("<I", data, len(data) - 6)[0]
    gap = bytearray(data[:start] + bytes(16) + data[start:])
    struct.pack_into("<I", gap, len(gap) - 6, start + 16)
    assert "no file behind" in refused(rewritten(path, bytes(gap)))


def _shifted(path: Path, data: bytes, before: bytes) -> Path:
    """The zip with bytes before it and all its offsets right."""
    out = bytearray(before + data)
    at = start = struct.unpack_from("<I", data, len(data) - 6)[0] + len(before)
    struct.pack_into("<I", out, len(out) - 6, start)
    while out[at : at + 4] == b"PK\1\2":
        struct.pack_into(
            "<I", out, at + 42, struct.unpack_from("<I", out, at + 42)[0] + len(before)
        )
        at += 46 + sum(struct.unpack_from("<3H", out, at + 28))
    return rewritten(path, bytes(out))


def central(data: bytes | bytearray, name: bytes) -> int:
    """Offset of a file's entry in the central directory."""
    return data.rindex(name) - 46


def local(data: bytes | bytearray, name: bytes) -> int:
    return data.index(name) - 30


@pytest.mark.parametrize(
    ("where", "offset", "layout", "value", "said"),
    [
        ("central", 8, "<H", 0x1, "encrypted"),
        ("central", 8, "<H", 0x2000, "encrypted"),
        ("local", 6, "<H", 0x1, "two ways"),
        ("local", 8, "<H", 0, "two ways"),
        ("local", 14, "<I", 1, "two ways"),
        ("local", 18, "<I", 1, "two ways"),
        ("local", 22, "<I", 1, "two ways"),
        ("local", 30, "<H", 0x7878, "two ways"),
        ("local", 0, "<I", 0, "two ways"),
        ("central", 20, "<I", 1 << 30, ""),
        ("central", 24, "<I", 1 << 31, ""),
        ("central", 42, "<I", 0, ""),
        ("central", 46, "<H", 0, ""),
    ],
)
def test_headers_that_contradict_each_other(
    tmp_path: Path, where: str, offset: int, layout: str, value: int, said: str
) -> None:
    path = zip_with(tmp_path, ("tiny_pack/last.txt", b"text " * 50))
    data = bytearray(path.read_bytes())
    at = (
        central(data, b"tiny_pack/last.txt")
        if where == "central"
        else local(data, b"tiny_pack/last.txt")
    )
    struct.pack_into(layout, data, at + offset, value)
    assert said in refused(rewritten(path, bytes(data)))


def test_a_second_name_is_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("a")
    name = b"../evil"
    info.extra = struct.pack("<HHBI", 0x7075, 5 + len(name), 1, zlib.crc32(b"a")) + name
    assert refused(zip_with(tmp_path, (info, b"x")))


def test_data_that_is_not_what_the_directory_says(tmp_path: Path) -> None:
    path = zip_with(tmp_path, ("tiny_pack/last.txt", b"text " * 50))
    good = path.read_bytes()
    places = (local(good, b"tiny_pack/last.txt"), central(good, b"tiny_pack/last.txt"))

    def stated(offset: int, value: int) -> Path:
        """The same change in both headers."""
        data = bytearray(good)
        struct.pack_into("<I", data, places[0] + offset, value)
        struct.pack_into("<I", data, places[1] + offset + 2, value)
        return rewritten(path, bytes(data))

    assert "damaged" in refused(stated(14, 5))  # CRC
    assert "damaged" in refused(stated(22, 251))  # longer than it is
    assert "larger than stated" in refused(stated(22, 249))
    data = bytearray(good)
    data[places[0] + 30 + len("tiny_pack/last.txt") + 2] ^= 0xFF
    assert "last.txt" in refused(rewritten(path, bytes(data)))


def test_data_behind_the_end_of_a_file(tmp_path: Path) -> None:
    """A deflate stream that ends early hides what follows it in the same file."""
    info = zipfile.ZipInfo("a")
    path = zip_with(tmp_path, (info, b"stored"))
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = packer.compress(b"stored") + packer.flush()
    hidden = stream + b"hidden"
    data = bytearray(path.read_bytes())
    at = local(data, b"astored")
    start = at + 31
    new = data[:start] + hidden + data[start + 6 :]
    struct.pack_into("<H", new, at + 8, 8)
    struct.pack_into("<I", new, at + 18, len(hidden))
    entry = new.rindex(b"PK\1\2")
    struct.pack_into("<H", new, entry + 10, 8)
    struct.pack_into("<I", new, entry + 20, len(hidden))
    end = len(new) - 6
    struct.pack_into("<I", new, end, struct.unpack_from("<I", new, end)[0] + len(hidden) - 6)
    assert "ends before its bytes do" in refused(rewritten(path, bytes(new)))


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_layout, "FLOOR", 1 << 16)
    assert "unpacks to more" in refused(zip_with(tmp_path, ("zeros", bytes(4 << 20))))
    # Each small enough, all together not.
    many = [(f"zeros{n}", bytes(60000)) for n in range(200)]
    monkeypatch.setattr(zip_layout, "MAX_RATIO", 50)
    assert "unpacks to more" in refused(zip_with(tmp_path, *many))
    monkeypatch.setattr(zip_layout, "MAX_MEMBERS", 5)
    assert "too large" in refused(zip_with(tmp_path))


def test_what_is_no_zip(tmp_path: Path) -> None:
    path = tmp_path / WHEEL_NAME
    assert "no such file" in refused(path)
    for data in (b"", b"PK\5\6", b"text" * 100, b"PK\5\6" + bytes(17)):
        assert "zip" in refused(rewritten(path, data))
    assert "dist-info" in refused(rewritten(path, b"PK\5\6" + bytes(18)))


# --- damage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = write_wheel(tmp_path_factory.mktemp("wheel"), wheel_files())
    return path, path.read_bytes()


def read_or_refuse(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        with open_wheel(path, path.parent / "scratch") as wheel:
            assert sum(m.size for m in wheel.members) < 1 << 20
    except ArtifactError:
        pass
    assert not any((path.parent / "scratch").glob("*"))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3),
    tail=st.booleans(),
)
def test_no_damage_ends_in_another_error(
    whole: tuple[Path, bytes], changes: list[tuple[float, int]], tail: bool
) -> None:
    path, good = whole
    data = bytearray(good)
    first = good.index(b"PK\1\2") if tail else 0  # half of the time, the directory
    for where, value in changes:
        data[first + int(where * (len(data) - 1 - first))] = value
    read_or_refuse(path, bytes(data))


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1), front=st.booleans())
def test_no_cut_ends_in_another_error(whole: tuple[Path, bytes], cut: float, front: bool) -> None:
    path, good = whole
    at = int(cut * len(good))
    read_or_refuse(path, good[at:] if front else good[:at])


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_no_dist_info_ends_in_another_error(data: bytes) -> None:
    for parse in (parse_metadata, parse_wheel, parse_record):
        for before in (b"", b"Name: x\nVersion: 1\nRequires-Dist: ", b"Wheel-Version: 1.0\nTag: "):
            try:
                parse(before + data, "x")
            except ArtifactError:
                continue

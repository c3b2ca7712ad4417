"""Files that are called libraries and are none: empty ones, git LFS pointers, device code."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_kit import WHEEL_NAME, elf_of, make_cubin, make_elf, wheel_files, write_wheel

from pinwheel.errors import ArtifactError
from pinwheel.inspect.loadable import HEAD, check_library, check_start, from_its_start
from pinwheel.inspect.loadable import named_library as named
from pinwheel.inspect.wheel import open_wheel

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
LIBRARY = "tiny_pack/_C.abi3.so"


@pytest.mark.parametrize(
    "path", ["_C.abi3.so", "a/libx.so.12", "libx.so.1.2.3", "b/_C.cpython-311-x86_64-linux-gnu.so"]
)
def test_names_of_libraries(path: str) -> None:
    assert named(path)


@pytest.mark.parametrize(
    "path", ["so", "x.so.txt", "a.so/x.py", "x.so.1a", "x.pyd", "x.SO", "k.cubin", "x.so\n"]
)
def test_other_names(path: str) -> None:
    assert not named(path)


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (b"", "nothing: it is empty"),
        (LFS, "a pointer of git LFS"),
        (b"INPUT(libx.so.1)\n", "text: INPUT(libx.so.1)"),
        (b"\x7fEL", "the bytes 7f 45 4c"),
        (b"\xcf\xfa\xed\xfe" + bytes(60), "macOS"),
        (b"MZ\x90" + bytes(60), "Windows"),
        (bytes(5000), "zeros"),
        (b"\x1b[2Jevil\xff", "the bytes 1b 5b"),
    ],
)
def test_a_wheel_with_such_a_file_is_refused(tmp_path: Path, data: bytes, held: str) -> None:
    wheel = write_wheel(tmp_path, wheel_files(**{LIBRARY: data}))
    with pytest.raises(ArtifactError) as error, open_wheel(wheel, tmp_path / "s"):
        pass
    assert f"{LIBRARY} is called a library and is no ELF file" in error.value.what
    assert held in error.value.evidence[0]
    assert ("git lfs pull" in error.value.next_step) is (data == LFS)


def test_data_may_hold_anything(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, wheel_files(**{"tiny_pack/x.bin": LFS, "tiny_pack/e.txt": b""}))
    with open_wheel(wheel, tmp_path / "s") as reader:
        assert reader.libraries == (LIBRARY,)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (make_cubin(), "EM_CUDA"),
        (make_elf(kind=1), "ET_REL"),
        (make_elf(kind=2), "ET_EXEC"),
        (make_elf(dynamic=False), "without dynamic segment"),
    ],
)
def test_an_elf_file_no_loader_takes_is_refused_under_that_name_alone(
    data: bytes, why: str
) -> None:
    with pytest.raises(ArtifactError, match="cannot be loaded") as error:
        check_library(elf_of(data, LIBRARY))
    assert why in error.value.evidence[0]
    check_library(elf_of(data, "tiny_pack/k.cubin"))


def test_an_extension_is_loadable() -> None:
    check_library(elf_of(make_elf(), LIBRARY))


def test_blocks_that_hold_nothing_hide_no_library(tmp_path: Path) -> None:
    """A deflate stream of 2 MiB of empty blocks before the first byte of an ELF file."""
    data = make_elf(needed=["libc10.so"])
    deflate = zlib.compressobj(wbits=-15)
    packed = b"\0\0\0\xff\xff" * (2 << 18) + deflate.compress(data) + deflate.flush()
    name = "tiny_pack/data.bin"
    files = wheel_files(**{name: data})
    path = tmp_path / WHEEL_NAME
    write_wheel(tmp_path, files)
    _pack_again(path, name, packed)
    with open_wheel(path, tmp_path / "s") as reader:
        assert name in reader.libraries


def _pack_again(path: Path, name: str, packed: bytes) -> None:
    """Put other deflated bytes, of the same contents, in the place of a member's own."""
    with zipfile.ZipFile(path) as archive:
        files = {i.filename: archive.read(i) for i in archive.infolist()}
    directory, body = b"", b""
    for member, data in files.items():
        raw = packed if member == name else data
        method = 8 if member == name else 0
        size = struct.pack("<III", zlib.crc32(data), len(raw), len(data))
        head = struct.pack("<HHHHH", 20, 0, method, 0, 33) + size
        label = member.encode()
        place = len(body)
        body += b"PK\3\4" + head + struct.pack("<HH", len(label), 0) + label + raw
        directory += b"PK\1\2\x14\0" + head + struct.pack(
            "<HHHHHII", len(label), 0, 0, 0, 0, 0, place
        ) + label  # fmt: skip
    end = struct.pack("<HHHHIIH", 0, 0, len(files), len(files), len(directory), len(body), 0)
    path.write_bytes(body + directory + b"PK\5\6" + end)


@given(st.lists(st.binary(max_size=HEAD), max_size=8))
def test_the_first_piece_is_long_enough_and_no_byte_is_lost(chunks: list[bytes]) -> None:
    pieces = list(from_its_start(chunks))
    assert b"".join(pieces) == b"".join(chunks)
    assert all(pieces[:1]) or not b"".join(chunks)
    assert len(pieces) < 2 or len(pieces[0]) >= HEAD


@given(st.binary(max_size=100))
def test_nothing_but_elf_passes(start: bytes) -> None:
    if start.startswith(b"\x7fELF"):
        check_start("w.whl", LIBRARY, start)
    else:
        with pytest.raises(ArtifactError):
            check_start("w.whl", LIBRARY, start)

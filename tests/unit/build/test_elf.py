from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wheelkit import DEVICE_CODE, EXTENSION, compile_library, host_strip, needs_gcc

from pinwheel.build.elf import is_elf, read_library
from pinwheel.errors import WheelError

pytestmark = needs_gcc


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("elf") / "_C.abi3.so", EXTENSION)


def test_an_extension_is_read_as_such(extension: Path) -> None:
    library = read_library(extension, "tinypack/_C.abi3.so")
    assert library.kind == "extension"
    assert library.needed == ("libc.so.6",)
    assert library.search_paths == ()
    assert not library.executable_stack
    assert library.symbol_table
    assert library.device_code == 0
    assert "getpid" in {s.name for s in library.undefined}
    assert all(n.version.startswith("GLIBC_") for n in library.version_needs)
    assert any(library.symbols_of(n.version) for n in library.version_needs)


def test_needs_equal_those_objdump_prints(extension: Path) -> None:
    text = subprocess.run(
        ["objdump", "-T", str(extension)], check=True, capture_output=True, text=True
    ).stdout
    library = read_library(extension, "x.so")
    for symbol in library.undefined:
        if symbol.version:
            assert any(
                line.endswith(f" {symbol.name}") and f"({symbol.version})" in line
                for line in text.splitlines()
            )


def test_stripping_shows(extension: Path, tmp_path: Path) -> None:
    copy = tmp_path / "x.so"
    copy.write_bytes(extension.read_bytes())
    host_strip([copy])
    assert not read_library(copy, "x.so").symbol_table


def test_run_path_stack_and_device_code_show(tmp_path: Path) -> None:
    path = compile_library(
        tmp_path / "bad.so", DEVICE_CODE, "-Wl,-rpath,/opt/env/lib", "-z", "execstack"
    )
    library = read_library(path, "bad.so")
    assert library.search_paths == (("RUNPATH", "/opt/env/lib"),)
    assert library.executable_stack
    assert library.device_code == 4096
    assert library.kind == "library"
    old = compile_library(
        tmp_path / "old.so", DEVICE_CODE, "-Wl,-rpath,$ORIGIN/x", "-Wl,--disable-new-dtags"
    )
    assert read_library(old, "old.so").search_paths == (("RPATH", "$ORIGIN/x"),)


def test_an_instruction_set_level_shows(tmp_path: Path) -> None:
    path = compile_library(tmp_path / "v3.so", DEVICE_CODE, "-Wl,-z,x86-64-v3")
    assert "x86-64-v3" in read_library(path, "v3.so").isa


def test_the_name_decides_nothing(extension: Path, tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("text")
    assert is_elf(extension)
    assert not is_elf(tmp_path / "x.so")
    with pytest.raises(WheelError, match=r"x\.so"):
        read_library(tmp_path / "x.so", "x.so")


def test_an_object_file_is_no_library(tmp_path: Path) -> None:
    subprocess.run(
        ["gcc", "-c", "-x", "c", "-", "-o", str(tmp_path / "a.o")], input=b"int a;", check=True
    )
    with pytest.raises(WheelError) as caught:
        read_library(tmp_path / "a.o", "a.o")
    assert "ET_REL" in caught.value.evidence[0]


@settings(max_examples=60, deadline=2000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_none(extension: Path, tmp_path: Path, data) -> None:
    whole = bytearray(extension.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        # Headers are where damage hurts: the file header, the tables at the end, the dynamic part.
        where = data.draw(st.one_of(st.integers(0, 2000), st.integers(0, len(whole) - 1)))
        whole[where] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(whole[: data.draw(st.integers(64, len(whole)))])
    with contextlib.suppress(WheelError):  # and nothing else
        read_library(damaged, "damaged.so")

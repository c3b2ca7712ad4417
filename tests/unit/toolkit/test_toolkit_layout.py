from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pinwheel.errors import ToolkitError
from pinwheel.toolkit.layout import (
    EPOCH,
    add_library_links,
    drop_dangling_links,
    normalise,
    nvcc_profile,
    place_part,
    read_nvcc_version,
    tree_digest,
)
from pinwheel.toolkit.spec import load_spec


def write(root: Path, name: str, data: bytes = b"x") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_links_go_to_the_soname(tmp_path: Path) -> None:
    for name in ("liba.so.12", "liba.so.12.4.5", "libb.so.13.0", "libc.so.1", "libx.alt.so.2"):
        write(tmp_path, name)
    (tmp_path / "libc.so").symlink_to("libc.so.1")
    write(tmp_path, "notes.txt")
    assert add_library_links(tmp_path) == ["liba.so", "libb.so", "libx.alt.so"]
    assert (tmp_path / "liba.so").readlink() == Path("liba.so.12")


def test_dangling_links_go_and_absolute_ones_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "lib64/liba.so.1")
    (tmp_path / "lib64/liba.so").symlink_to("liba.so.1")
    (tmp_path / "lib64/libnpp.so").symlink_to("libnpp.so.12")
    assert drop_dangling_links(tmp_path) == ["lib64/libnpp.so"]
    assert (tmp_path / "lib64/liba.so").exists()
    for target in ("/etc/hostname", "../../x"):
        link = tmp_path / "lib64" / "out"
        link.symlink_to(target)
        with pytest.raises(ToolkitError):
            drop_dangling_links(tmp_path)
        link.unlink()


def test_two_parts_may_bring_the_same_file_only_if_it_is_the_same(tmp_path: Path) -> None:
    spec = load_spec("wheels-13.0.88")
    name = "nvidia/cu13/include/nv/target"
    for part, data in (("one", b"a"), ("two", b"a"), ("three", b"b")):
        write(tmp_path / part, name, data)
    tree = tmp_path / "tree"
    assert place_part(spec, "one", tmp_path / "one", [name], tree) == 1
    assert place_part(spec, "two", tmp_path / "two", [name], tree) == 1
    with pytest.raises(ToolkitError, match="different contents"):
        place_part(spec, "three", tmp_path / "three", [name], tree)


@pytest.mark.parametrize("name", ["debian-12.4.131", "wheels-13.0.88"])
def test_profile_has_relative_paths_only(name: str) -> None:
    text = nvcc_profile(load_spec(name))
    assert "TOP              = $(_HERE_)/.." in text
    assert not [word for word in text.replace('"', " ").split() if word.startswith("/")]
    assert ("include/cccl" in text) == name.startswith("wheels")


def test_version_is_read_from_the_binary(tmp_path: Path) -> None:
    nvcc = write(tmp_path, "nvcc", b"\0\1Cuda compilation tools, release 12.4, V12.4.131\0junk")
    assert read_nvcc_version(nvcc) == "12.4.131"
    assert read_nvcc_version(write(tmp_path, "other", b"\x7fELF")) == ""


def test_normalised_trees_are_equal_wherever_they_lie(tmp_path: Path) -> None:
    one = tmp_path / "one"
    write(one, "bin/nvcc", b"\x7fELF1").chmod(0o600)
    write(one, "bin/nvcc.profile").chmod(0o777)
    write(one, "lib64/liba.so.1", b"\x7fELF2").chmod(0o755)
    (one / "lib64/liba.so").symlink_to("liba.so.1")
    normalise(one)
    modes = {p.name: p.stat().st_mode & 0o777 for p in one.rglob("*") if p.is_file()}
    assert modes["nvcc"] == 0o755
    assert modes["nvcc.profile"] == modes["liba.so.1"] == 0o644
    assert {p.lstat().st_mtime for p in [one, *one.rglob("*")]} == {EPOCH}
    digest = tree_digest(one)
    shutil.copytree(one, tmp_path / "two", symlinks=True)
    assert tree_digest(tmp_path / "two") == digest
    (tmp_path / "two/lib64/liba.so.1").chmod(0o755)
    assert tree_digest(tmp_path / "two") != digest
    (one / "lib64/liba.so").unlink()
    assert tree_digest(one) != digest

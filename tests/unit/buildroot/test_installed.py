"""Which file of a wheel is which of an environment, and whether it is as it was packed."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pinwheel.buildroot.installed import damaged_files

SITE = "lib/python3.11/site-packages"
FILES = {
    "torch/__init__.py": (f"{SITE}/torch/__init__.py", b"code"),
    "torch-1.data/purelib/torch/pure.py": (f"{SITE}/torch/pure.py", b"pure"),
    "torch-1.data/platlib/torch/lib.so": (f"{SITE}/torch/lib.so", b"library"),
    "torch-1.data/data/share/man/torch.1": ("share/man/torch.1", b"manual"),
    "torch-1.dist-info/METADATA": (f"{SITE}/torch-1.dist-info/METADATA", b"Name: torch"),
}
# What an installer writes itself, or changes the first line of.
ITS_OWN = (
    "torch-1.data/scripts/torchrun",
    "torch-1.data/headers/torch.h",
    "torch-1.dist-info/INSTALLER",
    "torch-1.dist-info/RECORD",
    "torch-1.dist-info/RECORD.jws",
    "torch-1.dist-info/REQUESTED",
    "torch-1.dist-info/direct_url.json",
)


def packed(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("torch")
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    for path, data in FILES.values():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return tmp_path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    members = {name: data for name, (_, data) in FILES.items()} | dict.fromkeys(ITS_OWN, b"x")
    return packed(tmp_path / "torch.whl", members)


def test_what_is_as_packed(environment: Path, wheel: Path) -> None:
    assert damaged_files(environment, SITE, [wheel]) == []
    assert damaged_files(environment, "site", [wheel]) != []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda p: p.write_bytes(p.read_bytes()[:-1]),
        lambda p: p.write_bytes(p.read_bytes()[:-1] + b"!"),
        lambda p: (p.unlink(), p.mkdir()),
        lambda p: (p.unlink(), p.symlink_to("/nowhere")),
    ],
)
def test_what_is_not(
    environment: Path, wheel: Path, name: str, damage: Callable[[Path], object]
) -> None:
    path = FILES[name][0]
    damage(environment / path)
    assert damaged_files(environment, SITE, [wheel]) == [path]


def test_a_file_that_two_wheels_bring_may_be_of_either(
    environment: Path, wheel: Path, tmp_path: Path
) -> None:
    other = packed(tmp_path / "other.whl", {"torch/__init__.py": b"another's"})
    assert damaged_files(environment, SITE, [wheel, other]) == []
    (environment / SITE / "torch/__init__.py").write_bytes(b"another's")
    assert damaged_files(environment, SITE, [wheel, other]) == []
    (environment / SITE / "torch/__init__.py").write_bytes(b"neither's")
    assert damaged_files(environment, SITE, [wheel, other]) == [f"{SITE}/torch/__init__.py"]

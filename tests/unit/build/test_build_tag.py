"""A whole wheel beside one for fewer capabilities: pip and uv install the whole one."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheelkit import METADATA, WHEEL, write_wheel

from pinwheel.build.finish import FinishPlan, finish
from pinwheel.build.placing import SIDECAR
from pinwheel.console import Console

VERSION = "0.6.3+cu121.torch2.3.ctk124"
PURE = WHEEL.replace(b"false", b"true").replace(b"cp38-abi3-linux_x86_64", b"py3-none-any")


def finished(tmp_path: Path, tag: str, said: str) -> Path:
    """A wheel as a back end told ``--build-number`` (or not told) writes it, finished."""
    build = f"Build: {tag}\nTag".encode() if tag else b"Tag"
    raw = write_wheel(
        tmp_path / f"raw{tag}" / f"tinypack-0.6.3-{tag}{'-' if tag else ''}py3-none-any.whl",
        {"tinypack/__init__.py": f"WHICH = {said!r}\n".encode()},
        metadata=METADATA,
        wheel=PURE.replace(b"Tag", build),
    )
    plan = FinishPlan(
        raw=raw,
        out_dir=tmp_path / "dist",
        distribution="tinypack",
        version=VERSION,
        source_date_epoch=1728941239,
        strip=lambda paths: None,
        extensions={},
        facts={},
        excluded_libraries=(),
        build_paths=(),
    )
    return finish(plan, Console(out=io.StringIO(), err=io.StringIO())).path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return finished(tmp_path, "", "whole")


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return finished(tmp_path, "0sm80", "partial")


def installed(tool: str, directory: Path, into: Path) -> str:
    """What the installer takes of the wheels in a directory."""
    program = ["uv", "pip", "install", "--offline", "--no-cache", "--python", sys.executable]
    if tool == "pip":
        program = ["pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    subprocess.run(
        [
            *(sys.executable, "-m", *program, "--no-index", "--find-links", directory),
            *("--no-deps", "--target", into, "tinypack"),
        ],
        check=True,
        capture_output=True,
    )
    return (into / "tinypack/__init__.py").read_text()


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_whole_wheel_is_installed(
    whole: Path, partial: Path, tool: str, tmp_path: Path
) -> None:
    assert whole.parent == partial.parent
    assert installed(tool, whole.parent, tmp_path / "site") == "WHICH = 'whole'\n"


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_without_a_build_tag_it_would_not_be(
    whole: Path, partial: Path, tool: str, tmp_path: Path
) -> None:
    """Why it has one."""
    whole.rename(whole.with_name(whole.name.replace("-1-py3", "-py3")))
    assert installed(tool, partial.parent, tmp_path / "site") == "WHICH = 'partial'\n"


def test_file_name_and_wheel_file_say_the_same(whole: Path, partial: Path) -> None:
    assert whole.name == f"tinypack-{VERSION}-1-py3-none-any.whl"
    assert partial.name == f"tinypack-{VERSION}-0sm80-py3-none-any.whl"
    for path, tag in ((whole, "1"), (partial, "0sm80")):
        with zipfile.ZipFile(path) as archive:
            text = archive.read(f"tinypack-{VERSION}.dist-info/WHEEL").decode()
        assert text.count("Build: ") == 1
        assert f"\nBuild: {tag}\nTag: py3-none-any\n" in text
        assert path.with_name(f"{path.name}{SIDECAR}").is_file()

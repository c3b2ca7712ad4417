"""The readers on official wheels, beside NVIDIA's and the platform's own tools.

The wheels are fetched once into the store of the configured cache (460 MB); nothing of them is
run but the tools.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from official_kit import VLLM_0_6_3, VLLM_0_22_1, fetched
from peers_kit import Tools, tools

from pinwheel.inspect.abi import PythonAbi, TorchAbi, python_abi, torch_abi
from pinwheel.inspect.consistency import WheelRule
from pinwheel.inspect.elf import read_elf
from pinwheel.inspect.fatbin import EntryKind, count_targets, read_fatbins
from pinwheel.inspect.region import Region
from pinwheel.inspect.wheel import WheelReader, open_wheel

WHEELS = {"old": VLLM_0_6_3, "new": VLLM_0_22_1}
LISTED = re.compile(r"^(ELF|PTX) file\s+\d+: \S*\.(sm_\d+a?)\.(?:cubin|ptx)$", re.MULTILINE)
HEAD = re.compile(
    r"^Fatbin (elf|ptx) code:\n=+\narch = (\w+)\ncode version = \[(\d+),(\d+)\]\n", re.MULTILINE
)
# One line of readelf -sW: number, value, size, kind, binding, visibility, other, section, name.
# A kernel has 0x10 in st_other, which readelf shows as "<other>: 10".
KERNEL = re.compile(
    r"FUNC\s+\w+\s+\w+\s+\[<other>: [0-9a-f]*[13579bdf][0-9a-f]\]\s+\d+ (\S+)$", re.MULTILINE
)

# What cuobjdump of CUDA 13 counts in the official wheel; facts about that wheel.
COUNTS_0_6_3 = {
    "vllm/_C.abi3.so": {
        "sm_52": 1, "ptx sm_52": 1, "sm_70": 19, "sm_75": 20, "sm_80": 27, "sm_86": 27,
        "sm_89": 27, "sm_90": 27, "sm_90a": 25,
    },
    "vllm/_core_C.abi3.so": {},
    "vllm/_moe_C.abi3.so": {"sm_70": 1, "sm_75": 1, "sm_80": 5, "sm_86": 5, "sm_89": 5, "sm_90": 5},
    "vllm/vllm_flash_attn/vllm_flash_attn_c.abi3.so": {"sm_80": 64, "sm_90": 64},
}  # fmt: skip

pytestmark = [pytest.mark.network, pytest.mark.slow]


@contextmanager
def opened(which: str, where: Path) -> Iterator[WheelReader]:
    with open_wheel(fetched(WHEELS[which], where), where / "scratch") as wheel:
        yield wheel


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WheelReader]:
    with opened("old", tmp_path_factory.mktemp("old")) as wheel:
        yield wheel


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WheelReader]:
    with opened("new", tmp_path_factory.mktemp("new")) as wheel:
        yield wheel


@contextmanager
def as_file(region: Region, path: Path) -> Iterator[Path]:
    with path.open("wb") as file:
        for chunk in region.chunks():
            file.write(chunk)
    try:
        yield path
    finally:
        path.unlink()


def run(*command: str | Path, cwd: Path) -> str:
    return subprocess.run(
        [str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    ).stdout


def test_an_official_wheel_states_what_it_holds_but_for_its_platform(
    old: WheelReader, new: WheelReader
) -> None:
    for wheel in (old, new):
        assert [p.rule for p in wheel.problems] == [WheelRule.PLATFORM_TAGS]
        assert len(wheel.record) == len(wheel.members)
    assert old.problems[0].detail == "file name: manylinux1_x86_64, WHEEL: linux_x86_64"
    assert "torch==2.4.0" in {str(r) for r in old.metadata.requires_dist}


def test_device_code_of_vllm_0_6_3(old: WheelReader) -> None:
    assert set(old.libraries) == set(COUNTS_0_6_3)
    for name in old.libraries:
        region = old.library(name)
        assert count_targets(read_fatbins(region, read_elf(region))) == COUNTS_0_6_3[name]


LISTING = """
import re, sys
from pathlib import Path
from pinwheel.inspect.elf import read_elf
from pinwheel.inspect.fatbin import count_targets, read_fatbins
from pinwheel.inspect.wheel import open_wheel
for path in sys.argv[2:]:
    with open_wheel(Path(path), Path(sys.argv[1])) as wheel:
        for name in wheel.libraries:
            region = wheel.library(name)
            assert count_targets(read_fatbins(region, read_elf(region))) is not None
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def test_listing_takes_little_memory(old: WheelReader, new: WheelReader, tmp_path: Path) -> None:
    """In a process of its own, by VmHWM: this one has the memory of every test before it, and a
    child's ru_maxrss begins with its parent's."""
    said = subprocess.run(
        [sys.executable, "-c", LISTING, tmp_path, old.path, new.path],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert int(said.stdout) < 300 << 10  # KiB


@pytest.mark.parametrize("which", ["old", "new"])
def test_cuobjdump_lists_the_same(
    request: pytest.FixtureRequest, which: str, peers: Tools, tmp_path: Path
) -> None:
    wheel: WheelReader = request.getfixturevalue(which)
    compared = 0
    for name in wheel.libraries:
        region = wheel.library(name)
        entries = read_fatbins(region, read_elf(region))
        if not entries:
            continue
        with as_file(region, tmp_path / "library.so") as path:
            listed = run(peers.bin / "cuobjdump", "-lelf", path, cwd=tmp_path)
            listed += run(peers.bin / "cuobjdump", "-lptx", path, cwd=tmp_path)
            headers = HEAD.findall(run(peers.bin / "cuobjdump", path, cwd=tmp_path))
        # Its list names a family target like the plain one.
        assert Counter(LISTED.findall(listed)) == Counter(
            ("ELF" if e.kind is EntryKind.CUBIN else "PTX", e.target.split()[-1].rstrip("f"))
            for e in entries
        )
        assert [
            ("elf" if e.kind is EntryKind.CUBIN else "ptx", e.target.split()[-1], *e.code_version)
            for e in entries
        ] == [(kind, arch, int(major), int(minor)) for kind, arch, major, minor in headers]
        compared += len(entries)
    assert compared > 300


@pytest.mark.parametrize(
    ("which", "name"),
    [
        ("old", "vllm/_C.abi3.so"),
        ("old", "vllm/_moe_C.abi3.so"),
        ("new", "vllm/_flashmla_C.abi3.so"),
    ],
)
def test_kernels_are_those_of_the_extracted_cubins(
    request: pytest.FixtureRequest, which: str, name: str, peers: Tools, tmp_path: Path
) -> None:
    wheel: WheelReader = request.getfixturevalue(which)
    region = wheel.library(name)
    entries = read_fatbins(region, read_elf(region), kernels=True)
    cubins = [e for e in entries if e.kind is EntryKind.CUBIN]
    with as_file(region, tmp_path / "library.so") as path:
        run(peers.bin / "cuobjdump", "-xelf", "all", path, cwd=tmp_path)
    files = sorted(tmp_path.glob("*.cubin"), key=lambda p: int(p.name.split(".")[1]))
    assert len(files) == len(cubins)
    for entry, file in zip(cubins, files, strict=True):
        symbols = run(peers.bin / "readelf", "-sW", file, cwd=tmp_path)
        assert set(entry.kernels or ()) == set(KERNEL.findall(symbols))
        assert entry.toolkit == {"old": "12.4", "new": "13.0"}[which]
    if name == "vllm/_C.abi3.so":
        # What the driver loads of them on a GPU of capability 9.0.
        for target, count in (("sm_90", 2018), ("sm_90a", 144)):
            assert sum(len(e.kernels or ()) for e in cubins if e.target == target) == count


def test_abis_of_vllm_0_22_1(new: WheelReader) -> None:
    def symbols(name: str) -> tuple[TorchAbi, PythonAbi]:
        elf = read_elf(new.library(name))
        return torch_abi(elf.symbols).abi, python_abi(elf.symbols).abi

    assert symbols("vllm/_C.abi3.so") == (TorchAbi.UNSTABLE, PythonAbi.LIMITED)
    assert symbols("vllm/_C_stable_libtorch.abi3.so") == (TorchAbi.STABLE, PythonAbi.LIMITED)
    deep_gemm = next(n for n in new.libraries if "deep_gemm" in n)
    assert symbols(deep_gemm) == (TorchAbi.UNSTABLE, PythonAbi.FULL)

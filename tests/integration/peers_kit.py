"""Independent tools that read wheels and libraries, and the official wheels unpacked for them.

None is the host's: binutils are those of the locked build root, cuobjdump comes from the index,
the rest is installed with the tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.wheel_abi import WheelAbIInfo, analyze_wheel_abi
from official_kit import PROJECT, fetched, index_file
from packaging.tags import Tag

from pinwheel.buildroot.root import unpack_root
from pinwheel.console import Console
from pinwheel.files import remove_tree
from pinwheel.inputs.fetch import fetch
from pinwheel.inputs.store import Store
from pinwheel.inspect.elsewhere import elsewhere
from pinwheel.inspect.wheel import open_wheel
from pinwheel.recipe.lock import Input, Role
from pinwheel.recipe.lockfile import read_lock
from pinwheel.settings import load_settings
from pinwheel.verify.library import ReadLibrary, read_libraries

CUDA_TOOLS = [
    index_file(
        "nvidia-cuda-cuobjdump",
        "13.5.37",
        "nvidia_cuda_cuobjdump-13.5.37-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        290354,
        "38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58",
    ),
    index_file(
        "nvidia-cuda-nvdisasm",
        "13.5.37",
        "nvidia_cuda_nvdisasm-13.5.37-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        5170654,
        "d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Official:
    """An official wheel as we read it, and the same libraries as files for others to read.

    Attributes:
        path: the wheel.
        folder: its libraries below their own names, unpacked by zipfile, not by us.
        tags: those of its file name.
        libraries: by path within the wheel; with the names of their kernels.
    """

    path: Path
    folder: Path
    tags: tuple[Tag, ...]
    libraries: dict[str, ReadLibrary]


@contextmanager
def official(item: Input, where: Path) -> Iterator[Official]:
    """Fetch, read and unpack one; the files are gone afterwards, they are 500 MB."""
    path = fetched(item, where)
    with open_wheel(path, where / "scratch") as reader:
        read = {lib.name: lib for lib in read_libraries(reader, kernels=True, paths=())}
        tags = tuple(reader.file_name.tags)
    folder = where / "unpacked"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder, read)
    try:
        yield Official(path=path, folder=folder, tags=tags, libraries=read)
    finally:
        remove_tree(folder)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Programs to run.

    Attributes:
        bin: a directory with ``nm``, ``readelf`` and ``cuobjdump``.
        system: the libraries of the build root.
    """

    bin: Path
    system: Path

    def run(self, name: str | Path, *args: str | Path, cwd: Path, ok: Sequence[int] = (0,)) -> str:
        """What a program wrote to its standard output, found in ``bin`` first."""
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        program = self.bin / name if (self.bin / name).exists() else name
        done = subprocess.run(
            [str(part) for part in (program, *args)],
            cwd=cwd,
            env={**os.environ, "PATH": path, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in ok, f"{name}: exit {done.returncode}: {done.stderr[-2000:]}"
        return done.stdout

    def module(self, name: str, *args: str | Path, cwd: Path, ok: Sequence[int] = (0,)) -> str:
        """What a command-line tool wrote that is installed with the tests."""
        return self.run(Path(sys.executable).with_name(name), *args, cwd=cwd, ok=ok)


def tools(where: Path) -> Tools:
    """Binutils of the locked build root and NVIDIA's cuobjdump, ready to run."""
    folder = where / "bin"
    folder.mkdir()
    root = _build_root()
    libraries = root / "usr/lib/x86_64-linux-gnu"
    # With the root's own loader, as its bubblewrap is started: the host may have another libc.
    loader = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)]
    for name in ("nm", "readelf"):
        _script(folder / name, *loader, str(root / "usr/bin" / name))
    for item in CUDA_TOOLS:
        with zipfile.ZipFile(fetched(item, where)) as archive:
            archive.extractall(where)
    (cuobjdump,) = where.glob("nvidia/*/bin/cuobjdump")
    for path in cuobjdump.parent.iterdir():
        path.chmod(0o755)
    _script(folder / "cuobjdump", str(cuobjdump))
    return Tools(bin=folder, system=libraries)


def _script(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


def _build_root() -> Path:
    """The flagship's, fetched and unpacked unless the cache has it."""
    settings = load_settings(PROJECT)
    store = Store(settings.store)
    lock = read_lock(min(PROJECT.glob("recipes/*/lock.*.toml")))
    debs = lock.with_role(Role.ROOT)
    console = Console(quiet=True)
    fetch(debs, store, settings, console, snapshot=lock.debian_snapshot)
    return unpack_root(
        debs, {i.sha256: store.get(i) for i in debs}, settings.cache / "roots", console
    )


# --- what the tools say -----------------------------------------------------------------------


def nm_symbols(text: str) -> list[tuple[str, bool]]:
    """Name with version, and whether it is defined, of each line of ``nm -D -P -p``."""
    rows = [line.split() for line in text.splitlines()]
    return [(row[0], row[1] not in "Uwv") for row in rows]


def readelf_symbols(text: str) -> list[tuple[str, str, bool]]:
    """Name, binding and whether others can bind to it, of each line of ``readelf --dyn-syms``."""
    # Number, value, size, type, binding, visibility, what st_other has more, section, name.
    row = re.compile(
        r"^ +\d+: \w+ +\w+ +\w+ +(<OS specific>: 10|\w+) +(\w+) +(?:\[.*?\] +)?(\w+) (\S+)",
        re.MULTILINE,
    )
    # It says unique only of a file marked as GNU's, which not all with such symbols are.
    names = {"<OS specific>: 10": "unique"}
    return [
        (
            name.partition("@")[0],
            names.get(binding, binding.lower()),
            binding != "LOCAL" and visibility in ("DEFAULT", "PROTECTED") and section != "UND",
        )
        for binding, visibility, section, name in row.findall(text)
    ]


def readelf_facts(text: str) -> dict[str, Any]:
    """What ``readelf -dlhnVW`` says of a library, by the names of our reader."""

    def tagged(tag: str) -> tuple[str, ...]:
        return tuple(re.findall(rf"^ 0x\w+ \({tag}\) .*\[(.*)\]$", text, re.MULTILINE))

    def one(pattern: str) -> str:
        found = re.findall(pattern, text, re.MULTILINE)
        assert len(found) < 2, found
        return found[0] if found else ""

    stack = one(r"^  GNU_STACK +(?:0x\w+ +){5}(.*?) +(?:0x)?\w+$")
    return {
        "needed": tagged("NEEDED"),
        "soname": "".join(tagged("SONAME")),
        "rpath": tagged("RPATH"),
        "runpath": tagged("RUNPATH"),
        "executable_stack": stack == "" or "E" in stack,
        "interpreter": one(r"\[Requesting program interpreter: (.*)\]"),
        "build_id": one(r"Build ID: (\w+)"),
        "isa": one(r"x86 ISA needed: (.*)").removeprefix("x86-64-baseline").removeprefix(", "),
        "type": one(r"^  Type: +(\w+)"),
        "machine": one(r"^  Machine: +(.*)"),
        "version_needs": _version_needs(text),
    }


def _version_needs(text: str) -> list[tuple[str, str]]:
    library = ""
    found = []
    for match in re.finditer(
        r"  File: (\S+)  Cnt: \d+$|  Name: (\S+)  Flags: ", text, re.MULTILINE
    ):
        library = match[1] or library
        if match[2]:
            found.append((library, match[2]))
    return sorted(found)


@dataclass(frozen=True)
class Image:
    """One image of device code, as cuobjdump describes it."""

    kind: str
    arch: str
    code_version: tuple[int, int]
    compressed: bool
    kernels: frozenset[str] = frozenset()


_HEAD = re.compile(
    r"^Fatbin (elf|ptx) code:\n=+\narch = (\w+)\ncode version = \[(\d+),(\d+)\]\n((?:.+\n)*)",
    re.MULTILINE,
)
# A row of its symbols: type, binding, visibility, flags, U or nothing, name.
_KERNEL = re.compile(r"^FUNC +\w+ +\w+ +ENTRY +(\S+)$", re.MULTILINE)
_PTX_KERNEL = re.compile(r"\.entry\s+([\w$]+)")


def cuobjdump_images(text: str) -> list[Image]:
    """Each image that ``cuobjdump`` or ``cuobjdump -symbols`` lists, in file order."""
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    return [
        Image(
            kind=head[1],
            arch=head[2],
            code_version=(int(head[3]), int(head[4])),
            compressed="compressed" in head[5].split(),
            kernels=frozenset(_KERNEL.findall(text, head.end(), end)),
        )
        for head, end in zip(heads, ends, strict=True)
    ]


def extracted_ptx(tool: Tools, library: Path, where: Path) -> list[frozenset[str]]:
    """Kernels of each PTX text that cuobjdump takes out of a library, in file order."""
    where.mkdir()
    tool.run("cuobjdump", "-xptx", "all", library, cwd=where, ok=(0, 255))
    files = sorted(where.iterdir(), key=lambda path: int(path.name.split(".")[-3]))
    found = [frozenset(_PTX_KERNEL.findall(path.read_text())) for path in files]
    remove_tree(where)
    return found


def auditwheel_of_one(wheel: Official, name: str, where: Path) -> WheelAbIInfo:
    """What auditwheel finds of a library when it is the only one of a wheel.

    Libraries that torch, CUDA or the driver bring are excluded, as ``auditwheel repair --exclude``
    would be told; nothing is looked for on this machine.
    """
    # A name of its own for each: auditwheel remembers what it found by file name.
    alone = re.sub(r"\W", "_", name)
    path = where / f"{alone}-1-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(wheel.folder / name, name)
        archive.writestr(f"{alone}-1.dist-info/RECORD", f"{name},,\n")
    try:
        return analyze_wheel_abi(
            Libc.GLIBC,
            Architecture.x86_64,
            path,
            frozenset(elsewhere()),
            disable_isa_ext_check=False,
            allow_graft=False,
            args_ldpaths="",
        )
    finally:
        path.unlink()


def auditwheel_show(tool: Tools, wheel: Official) -> Any:
    """``auditwheel show`` of the whole wheel; nothing is looked for on this machine."""
    said = tool.module(
        "auditwheel", "show", "--json", "--ldpaths", "", wheel.path, cwd=wheel.folder
    )
    return json.loads(said)


def abi3audit_results(tool: Tools, wheel: Official) -> dict[str, Any]:
    """abi3audit's result for each library of a wheel that it takes for an extension."""
    report = wheel.folder / "abi3audit.json"
    # It answers 1 when it finds something.
    tool.module("abi3audit", "-R", "-o", report, wheel.path, cwd=wheel.folder, ok=(0, 1))
    (spec,) = json.loads(report.read_text())["specs"].values()
    return {entry["name"]: entry["result"] for entry in spec["wheel"]}


def torch_abi_audit_libraries(tool: Tools, wheel: Official) -> dict[str, Any]:
    """What torch-abi-audit says of each library, and whether it takes it for an extension."""
    report = json.loads(tool.module("torch-abi-audit", "--json", wheel.folder, cwd=wheel.folder))
    root = wheel.folder.resolve()
    return {
        str(Path(entry["path"]).relative_to(root)): {**entry, "extension": kind == "extensions"}
        for kind in ("extensions", "bundled_libs")
        for entry in report[kind]
    }

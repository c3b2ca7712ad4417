"""A project, a wheel built in it, upstream's wheel and two torch builds: all small, all ours.

Everything is put together byte by byte, so no compiler is needed. What a wheel is damaged with goes
into :class:`Parts`; manifest and RECORD are written after it, so that a test breaks one thing only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from inspect_kit import (
    Sec,
    Sym,
    elf_of,
    fatbins_of,
    library_with,
    make_cubin,
    make_elf,
    make_entry,
    make_fatbin,
    make_ptx,
)

from pinwheel.build.manifest import as_json, build_manifest, library_facts
from pinwheel.console import Console
from pinwheel.files import sha256_file
from pinwheel.inputs.store import Store
from pinwheel.inspect.elsewhere import elsewhere
from pinwheel.inspect.fatbin import count_targets
from pinwheel.inspect.platform import Platform
from pinwheel.recipe.load import load_recipe
from pinwheel.recipe.lock import Input, Lock, Role, SourceKind
from pinwheel.recipe.lockfile import lock_path, write_lock
from pinwheel.settings import Settings
from pinwheel.verify import snapshot as snapshots
from pinwheel.verify.model import Outcome, Report, Status
from pinwheel.verify.run import Request, verify_wheel
from pinwheel.verify.snapshot import Library, Loaded, Provider, Snapshot, Wheel

__all__ = ["Sec", "Sym", "library_with"]

MAIN = Path(__file__).parents[3] / "arch_matrix.toml"
COMBO = "cu121-torch2.3-tinypack1.2"
TOOLKIT = "debian-12.4.131"
BUILD = "2.3.0+cu121"
VERSION = "1.2+cu121.torch2.3.ctk124"
INFO = f"tinypack-{VERSION}.dist-info"
TAG = "manylinux_2_17_x86_64"
OFFICIAL = "tinypack-1.2-cp38-abi3-manylinux1_x86_64.whl"

MATRIX = """
[releases.tinypack."1.2"]
torch = "2.4.0"
cuda = "12.1"
capabilities = ["8.0", "9.0"]
source = "made up for the tests"

[combos."{combo}"]
torch = "2.3.0+cu121"
source = "made up for the tests"
"""

RECIPE = """
recipe-version = 1
combo = "{combo}"
native = false
reason = "a test"
python = "3.11"
capabilities = ["8.0", "9.0"]

[source]
package = "tinypack"
version = "1.2"

[toolkits]
default = "{toolkit}"
offered = ["{toolkit}"]

[driver."{toolkit}"]
native = "550.54.15"
minimum = "525.60.13"

[[requirements]]
old = "torch==2.4.0"
new = "torch==2.3.0"
reason = "the combo's own"

[build]
requires = ["setuptools"]

[run]
as-of = 2024-10-15T00:00:00Z
companions = ["torch==2.3.0", "torchvision==0.18.0"]

[extensions."tinypack/_C.abi3.so"]
[extensions."tinypack/_moe_C.abi3.so"]
[extensions."tinypack/_core_C.abi3.so"]
machine-code = false

[proof]
module = "tinypack"
official = "tinypack==1.2"
"""

CHECK_FAIL = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
#: What torch 2.4 has and 2.3 lacks (shared facts, measured on the official vllm 0.6.3).
ONLY_NEWER = "_ZNK3c105Error4whatEv"
CUDART = ("libcudart.so.12", "libcudart.so.12")


def cubin_entry(arch: int, *kernels: str, accelerated: bool = False) -> bytes:
    flags = 0x11 | (0x100000 if accelerated else 0)
    cubin = make_cubin(arch, kernels or ("k",), accelerated=accelerated)
    return make_entry(cubin, arch=arch, flags=flags)


def ptx_entry(arch: int, *kernels: str) -> bytes:
    text = make_ptx(f"sm_{arch}", kernels=kernels or ("k",))
    return make_entry(text, kind=1, arch=arch, version=(8, 4))


@dataclass
class Lib:
    """A library to write; what a test changes about it."""

    needed: list[str] = field(default_factory=lambda: ["libtorch.so", "libc10.so", "libc.so.6"])
    symbols: list[Sym] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    sections: list[Sec] = field(default_factory=list)
    tags: list[tuple[int, str]] = field(default_factory=list)
    soname: str = ""
    stack: int = 6

    def bytes(self) -> bytes:
        code = [Sec(".nv_fatbin", make_fatbin(*self.entries))] if self.entries else []
        return for_pyelftools(
            make_elf(
                needed=self.needed,
                symbols=self.symbols,
                sections=[*code, *self.sections],
                tags=self.tags,
                soname=self.soname,
                stack=self.stack,
            )
        )


def for_pyelftools(data: bytes) -> bytes:
    """The library with what pyelftools asks of its tables: sh_entsize, and links to .dynsym."""
    sizes = {2: 24, 5: 4, 6: 16, 11: 24, 0x6FFFFFFF: 2}
    (table,) = struct.unpack_from("<Q", data, 0x28)
    (count,) = struct.unpack_from("<H", data, 0x3C)
    out = bytearray(data)
    for at in range(table, table + 64 * count, 64):
        (kind,) = struct.unpack_from("<I", data, at + 4)
        struct.pack_into("<Q", out, at + 56, sizes.get(kind, 0))
        if kind in (5, 0x6FFFFFFF):
            struct.pack_into("<I", out, at + 40, 2)  # .dynsym is the second section
    return bytes(out)


def extension(stem: str, *, code: bool = True) -> Lib:
    symbols = [
        Sym(f"PyInit_{stem}", defined=True),
        Sym("PyModule_Create2"),
        Sym(CHECK_FAIL),
        Sym("memcpy", version=("libc.so.6", "GLIBC_2.14")),
    ]
    lib = Lib(symbols=symbols)
    if code:
        lib.symbols.append(Sym("cudaLaunchKernel", version=CUDART))
        lib.needed.append("libcudart.so.12")
        lib.entries = [
            cubin_entry(80),
            cubin_entry(90),
            cubin_entry(90, "hopper", accelerated=True),
        ]
    return lib


@dataclass
class Parts:
    """Everything a wheel and its project are made of; a test damages one of them."""

    c: Lib = field(default_factory=lambda: extension("_C"))
    moe: Lib = field(default_factory=lambda: extension("_moe_C"))
    core: Lib = field(default_factory=lambda: extension("_core_C", code=False))
    files: dict[str, bytes] = field(
        default_factory=lambda: {"tinypack/__init__.py": b"import tinypack._C\n"}
    )
    requires: list[str] = field(
        default_factory=lambda: [
            "torch==2.3.0",
            'torchvision==0.18.0; platform_system == "Linux"',
            "numpy<2",
            'extra-only; extra == "audio"',
        ]
    )
    info: str = INFO
    tag: str = TAG
    wheel_tag: str = TAG
    manifest: dict[str, Any] = field(default_factory=dict)
    with_manifest: bool = True
    record: dict[str, str] = field(default_factory=dict)
    recipe: str = ""
    official: dict[str, bytes] | None = field(default_factory=dict)
    builds: dict[str, Snapshot] = field(default_factory=lambda: torch_builds())
    loaded: dict[str, list[str]] = field(
        default_factory=lambda: {
            "libc10": ["/opt/env/torch/lib/libc10.so"],
            "libcudart": ["/opt/env/nvidia/cuda_runtime/lib/libcudart.so.12"],
            "libtorch": ["/opt/env/torch/lib/libtorch.so"],
        }
    )

    def libraries(self) -> dict[str, bytes]:
        return {
            "tinypack/_C.abi3.so": self.c.bytes(),
            "tinypack/_core_C.abi3.so": self.core.bytes(),
            "tinypack/_moe_C.abi3.so": self.moe.bytes(),
        }


# --- torch ----------------------------------------------------------------------------------


def torch_build(
    build: str, names: Mapping[str, tuple[str, ...]], sass: str = "8.0 9.0"
) -> Snapshot:
    """A torch build: library -> what it exports; ``CUDART``'s names are versioned."""
    rows = [
        ("nvidia/cublas/lib/libcublas.so.12", 1, Loaded.GLOBAL),
        ("nvidia/cuda_runtime/lib/libcudart.so.12", 1, Loaded.GLOBAL),
        ("nvidia/cufft/lib/libcufft.so.11", 1, Loaded.NO),
        ("torch/lib/libc10.so", 0, Loaded.GLOBAL),
        ("torch/lib/libtorch.so", 0, Loaded.GLOBAL),
        ("torch/lib/libtorch_cuda.so", 0, Loaded.GLOBAL),
    ]
    libraries = []
    groups: dict[tuple[Provider, ...], tuple[str, ...]] = {}
    for place, (path, wheel, loaded) in enumerate(rows):
        soname = path.rpartition("/")[2]
        cuda = soname == "libtorch_cuda.so"
        libraries.append(
            Library(
                path=path,
                wheel=wheel,
                soname=soname,
                needed=("libtorch_cuda.so", "libc10.so") if soname == "libtorch.so" else (),
                versions=(CUDART[1],) if soname == CUDART[0] else (),
                loaded=loaded,
                cubins=dict.fromkeys(sass.split(), 3) if cuda else None,
                ptx={} if cuda else None,
            )
        )
        if found := names.get(soname):
            version = CUDART[1] if soname == CUDART[0] else ""
            groups[(Provider(place, version),)] = tuple(sorted(found))
    wheels = tuple(
        Wheel(
            project=project,
            version="1",
            filename=f"{project}-1-py3-none-any.whl",
            sha256="0" * 64,
            size=1,
            pinned=True,
        )
        for project in ("torch", "nvidia-everything-cu12")
    )
    return Snapshot(
        build=build, cxx11_abi=False, wheels=wheels, libraries=tuple(libraries), groups=groups
    )


def torch_builds(sass: str = "8.0 9.0") -> dict[str, Snapshot]:
    common = {
        "libc10.so": (CHECK_FAIL,),
        "libtorch.so": ("_ZN2at4_ops3add4callERKNS_6TensorES4_RKN3c106ScalarE",),
        "libcudart.so.12": ("cudaLaunchKernel",),
        "libcublas.so.12": ("cublasHgemm",),
        "libcufft.so.11": ("cufftExecC2C",),
    }
    newer = {**common, "libc10.so": (CHECK_FAIL, ONLY_NEWER)}
    return {
        BUILD: torch_build(BUILD, common, sass),
        "2.4.0+cu121": torch_build("2.4.0+cu121", newer),
    }


# --- the project and its wheels -------------------------------------------------------------


def make_world(parts: Parts, place: Path) -> tuple[Path, Settings]:
    """The project below ``place`` and the wheel built in it."""
    project = place / "project"
    directory = project / "recipes" / COMBO
    directory.mkdir(parents=True)
    shutil.copy(MAIN, project)
    with (project / MAIN.name).open("a") as file:
        file.write(MATRIX.format(combo=COMBO))
    recipe = RECIPE.format(combo=COMBO, toolkit=TOOLKIT) + parts.recipe
    (directory / "recipe.toml").write_text(recipe)
    settings = Settings(
        cache=place / "cache",
        recipes=(project / "recipes",),
        project=project,
        dist=place / "dist",
    )
    official = write_official(parts, place / OFFICIAL) if parts.official is not None else None
    loaded = load_recipe(settings, COMBO)
    lock = lock_path(loaded, TOOLKIT)
    write_lock(make_lock(loaded.digest, official), lock)
    if official is not None:
        Store(settings.store).put_file(official, sha256_file(official), official.stat().st_size)
    exceptions = [row.model_dump() for row in loaded.recipe.code_exceptions]
    parts.manifest.setdefault("code-exceptions", exceptions)
    return write_wheel(parts, place, sha256_file(lock), loaded.digest), settings


def make_lock(recipe: str, official: Path | None) -> Lock:
    def item(name: str, version: str, role: Role, path: Path | None = None) -> Input:
        return Input(
            roles=(role,),
            source=SourceKind.INDEX,
            name=name,
            version=version,
            path=path.name if path else f"{name}-{version}-py3-none-any.whl",
            size=path.stat().st_size if path else 10,
            sha256=sha256_file(path) if path else hashlib.sha256(name.encode()).hexdigest(),
        )

    inputs = [
        item("cuda-nvcc-12-4", "12.4.131-1", Role.TOOLKIT),
        item("libc6", "2.36-9", Role.ROOT),
        item("numpy", "1.26.4", Role.RUN),
        *([item("tinypack", "1.2", Role.REFERENCE, official)] if official else []),
        item("torch", "2.3.0", Role.RUN),
        item("torchvision", "0.18.0", Role.RUN),
    ]
    return Lock(
        lock_version=1,
        combo=COMBO,
        toolkit=TOOLKIT,
        recipe_sha256=recipe,
        matrix_sha256="2" * 64,
        data_sha256="3" * 64,
        source_date_epoch=1728941239,
        inputs=tuple(inputs),
    )


def metadata(version: str, requires: list[str]) -> bytes:
    lines = ["Metadata-Version: 2.1", "Name: tinypack", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {r}" for r in requires), "", ""]).encode()


def wheel_file(tag: str) -> bytes:
    return (
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n"
        f"Tag: cp38-abi3-{tag}\n".encode()
    )


def write_official(parts: Parts, path: Path) -> Path:
    requires = [r.replace("torch==2.3.0", "torch==2.4.0") for r in Parts().requires]
    files = {
        **Parts().files,
        **Parts().libraries(),
        **(parts.official or {}),
    }
    info = "tinypack-1.2.dist-info"
    files |= {
        f"{info}/METADATA": metadata("1.2", requires),
        f"{info}/WHEEL": wheel_file("linux_x86_64"),
    }
    return zipped(path, files, info, {})


def write_wheel(parts: Parts, place: Path, lock: str, recipe: str) -> Path:
    libraries = parts.libraries()
    files = {**parts.files, "tinypack/_version.py": b"version = 1\n", **libraries}
    info = parts.info
    files |= {
        f"{info}/METADATA": metadata(VERSION, parts.requires),
        f"{info}/WHEEL": wheel_file(parts.wheel_tag),
    }
    if parts.with_manifest:
        stated = make_manifest(libraries, parts.tag, lock, recipe)
        files[f"{info}/pinwheel.json"] = as_json({**stated, **parts.manifest})
    name = f"tinypack-{VERSION}-cp38-abi3-{parts.tag}.whl"
    return zipped(place / name, files, info, parts.record)


def zipped(path: Path, files: dict[str, bytes], info: str, record: dict[str, str]) -> Path:
    def line(name: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return record.get(name, f"{name},sha256={digest},{len(data)}")

    lines = [*(line(n, d) for n, d in files.items()), f"{info}/RECORD,,"]
    files = {**files, f"{info}/RECORD": "\n".join([*lines, ""]).encode()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def make_manifest(libraries: dict[str, bytes], tag: str, lock: str, recipe: str) -> dict[str, Any]:
    """As a build writes it, by the build's own functions."""
    stated = {}
    for name, data in libraries.items():
        read = elf_of(data, name)
        code = bool(read.device_code)
        facts = library_facts(
            read,  # type: ignore[arg-type]  # as good as the build's own
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            machine_code=code,
            elsewhere=elsewhere(),
        )
        stated[name] = {**({"cubins": count_targets(fatbins_of(data))} if code else {}), **facts}
    return build_manifest(
        {
            "combo": COMBO,
            "lock-sha256": lock,
            "recipe-sha256": recipe,
            "root": {"kind": "locked", "digest": "4" * 32},
            "toolkit": {"name": TOOLKIT, "line": "12.4", "nvcc": "12.4.131", "kind": "locked"},
            "torch": {"version": "2.3.0", "cuda": "12.1", "cxx11-abi": False},
            "python": "3.11",
            "capabilities": ["8.0", "9.0"],
            "capabilities-of-recipe": "8.0;9.0",
            "operators": {},
        },
        distribution="tinypack",
        version=VERSION,
        platform=Platform(tag, ()),
        libraries=stated,
    )


@dataclass
class Gate:
    """Makes worlds and verifies the wheel in them, with the torch builds the parts name."""

    place: Path
    monkeypatch: pytest.MonkeyPatch
    made: tuple[Path, Settings] | None = None

    @property
    def wheel(self) -> Path:
        """The wheel made last."""
        assert self.made is not None
        return self.made[0]

    @property
    def settings(self) -> Settings:
        """Those of its project."""
        assert self.made is not None
        return self.made[1]

    def make(self, parts: Parts | None = None) -> Path:
        parts = parts or Parts()
        builds = parts.builds
        self.monkeypatch.setattr(snapshots, "builds", lambda: tuple(builds))
        self.monkeypatch.setattr(snapshots, "load", lambda build: builds[build])
        self.made = make_world(parts, self.place)
        return self.wheel

    def report(self, parts: Parts | None = None, **request: Any) -> Report:
        parts = parts or Parts()
        wheel = self.make(parts)
        request.setdefault("loaded", parts.loaded)
        return self.again(wheel, **request)

    def again(self, wheel: Path, **request: Any) -> Report:
        console = Console(quiet=True)
        return verify_wheel(wheel, Request(**request), self.settings, console)


def broken(report: Report) -> dict[str, Status]:
    """Rules that are neither passed nor without application, and how they came out."""
    return {o.rule: o.status for o in report.broken()}


def outcome(report: Report, rule: str) -> Outcome:
    """What the report says of one rule."""
    (found,) = (o for o in report.outcomes if o.rule == rule)
    return found


def told(report: Report, rule: str) -> str:
    """All that the report says of one rule."""
    return json.dumps(outcome(report, rule).as_dict())


__all__ += ["elf_of", "fatbins_of"]

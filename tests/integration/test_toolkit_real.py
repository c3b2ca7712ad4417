"""Both providers with their real parts: fetch as locked, assemble, prove on this host.

The Debian toolkit is the flagship's, by its lock; the one from wheels is that of the small test
project, locked here. Several GB are fetched once into the store of the configured cache and
assembled there, so a second run takes only as long as the lock and the proof.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from pinwheel import process
from pinwheel.console import Console
from pinwheel.inputs.fetch import fetch
from pinwheel.inputs.store import Store
from pinwheel.matrix.capability import Capability
from pinwheel.recipe.load import load_recipe
from pinwheel.recipe.lock import Lock, Role
from pinwheel.recipe.lockfile import read_lock
from pinwheel.recipe.resolve import resolve
from pinwheel.settings import Settings, load_settings
from pinwheel.toolkit.assemble import Toolkit, assemble, toolkit_key
from pinwheel.toolkit.check import check_gcc, header_gcc_limit
from pinwheel.toolkit.prove import prove
from pinwheel.toolkit.spec import load_spec
from pinwheel.toolkit.stub import driver_functions

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = PROJECT / "tests" / "packages"
TARGETS = [Capability(8, 0), Capability(8, 6), Capability(8, 9), Capability(9, 0, ptx=True)]
MATH = ("cublas_v2.h", "cusparse.h", "cusolverDn.h", "curand.h", "cufft.h")

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the host runner needs g++"),
]


def compile_c(source: Path, out: Path, args: Sequence[str]) -> None:
    subprocess.run(
        ["gcc", *args, "-o", out.name, source.name], cwd=source.parent, check=True, timeout=120
    )


def run(argv: Sequence[str], *, cwd: str) -> process.Result:
    # No CUDA on this PATH: whatever runs is the assembled toolkit's own.
    return process.run(argv, cwd=Path(cwd), env={"PATH": "/usr/bin:/bin"})


def flagship_lock() -> tuple[Settings, Lock]:
    """The lock this project keeps, with the Debian toolkit."""
    path = min(PROJECT.glob("recipes/*/lock.debian-*.toml"))
    return load_settings(PROJECT), read_lock(path)


def probe_lock(index: str) -> tuple[Settings, Lock]:
    """A lock of the test project, with the toolkit from wheels.

    It is resolved here and written nowhere: no lock of the test project is kept (test_pipeline
    says why), and a real one names the very files that an index serves.
    """
    base = load_settings(PROJECT)
    settings = replace(
        base, project=PACKAGES, recipes=(PACKAGES / "recipes",), index=(index, *base.index)
    )
    (path,) = PACKAGES.glob("recipes/*/recipe.toml")
    loaded = load_recipe(settings, path.parent.name)
    return settings, resolve(settings, loaded, None, Console())


@pytest.fixture(scope="module", params=["debian", "wheels"])
def toolkit(request: pytest.FixtureRequest, probe_index: str) -> Toolkit:
    settings, lock = flagship_lock() if request.param == "debian" else probe_lock(probe_index)
    store = Store(settings.store)
    console = Console()
    parts = {i.name: i for i in lock.with_role(Role.TOOLKIT)}
    fetch(parts.values(), store, settings, console, snapshot=lock.debian_snapshot)
    spec = load_spec(lock.toolkit)
    assert spec.provider == request.param
    key = toolkit_key(spec, {name: i.sha256 for name, i in parts.items()})
    return assemble(
        spec,
        {name: store.get(i) for name, i in parts.items()},
        settings.cache / "toolkits" / f"{spec.name}-host-{key[:16]}",
        console,
        compile_c=compile_c,
        key=key,
    )


def test_compiles_links_and_disassembles_for_every_capability(
    toolkit: Toolkit, tmp_path: Path
) -> None:
    proof = prove(
        cuda_home=str(toolkit.path),
        version=toolkit.version,
        capabilities=TARGETS,
        work=tmp_path,
        run=run,
        headers=MATH,
    )
    assert [c.sm for c in proof.cubins] == ["sm_80", "sm_86", "sm_89", "sm_90"]
    assert all(c.instructions > 50 for c in proof.cubins)
    assert proof.ptx == ("sm_90",)
    assert proof.nvcc_version == toolkit.version


def test_works_from_another_place(toolkit: Toolkit, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(toolkit.path, moved, symlinks=True, ignore=shutil.ignore_patterns("lib*.so.*"))
    (tmp_path / "x.cu").write_text("#include <cuda_fp16.h>\n__global__ void k(float* p) {*p = 1;}")
    result = run([f"{moved}/bin/nvcc", "-arch=sm_80", "-cubin", "x.cu"], cwd=str(tmp_path))
    assert result.returncode == 0, result.output
    assert (tmp_path / "x.cubin").stat().st_size > 0


def test_stub_has_every_name_of_the_driver_headers(toolkit: Toolkit) -> None:
    header = (toolkit.path / "include" / "cuda.h").read_text("utf-8", "replace")
    with (toolkit.path / "lib64" / "stubs" / "libcuda.so").open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(section, SymbolTableSection)
        exported = {s.name for s in section.iter_symbols() if s.name}
    assert set(driver_functions(header)) <= exported
    assert {"cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuGetProcAddress_v2"} <= exported


def test_gcc_limit_is_stated_in_the_headers(toolkit: Toolkit) -> None:
    header = toolkit.path / "include" / "crt" / "host_config.h"
    limit = header_gcc_limit(header.read_text("utf-8", "replace"))
    assert limit is not None
    check_gcc(str(limit), line=toolkit.line, newest=limit, cuda_home=toolkit.path)

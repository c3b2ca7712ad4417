"""Our readers and rules beside independent tools, library by library, on two official wheels.

What the tools say is compared whole, not sampled. Where one differs, the difference is asserted
with its reason, so that it is seen when it changes. The wheels are fetched once into the store
(460 MB), as are the build root's binutils and NVIDIA's cuobjdump; nothing of the host is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers_kit
import pytest
from official_kit import VLLM_0_6_3, VLLM_0_22_1
from peers_kit import Image, Official, Tools
from torch_abi_audit.demangle import demangle_symbol

from pinwheel.inspect.abi import PythonAbi, TorchAbi
from pinwheel.inspect.elf import Binding, Elf, Symbol, read_elf
from pinwheel.inspect.elsewhere import elsewhere
from pinwheel.inspect.fatbin import Compression, EntryKind, FatbinEntry
from pinwheel.inspect.platform import comes_from_elsewhere, platform_of
from pinwheel.inspect.region import open_region
from pinwheel.verify.library import check_libraries

WHEELS = {item.version: item for item in (VLLM_0_6_3, VLLM_0_22_1)}

# Facts about the wheels, so that a comparison of nothing with nothing fails.
LIBRARIES = {"0.6.3": 4, "0.22.1": 15}
CUBIN_KERNELS = {"0.6.3": 14614, "0.22.1": 29895}
PTX_KERNELS = {"0.6.3": 0, "0.22.1": 3837}
#: What libraries called abi3 need that is newer than the wheel's tag.
NEWER = {
    "0.6.3": {},
    "0.22.1": {"spinloop.abi3.so": {"PyBuffer_Release": "3.11", "PyObject_CallNoArgs": "3.10"}},
}
FLOOR = (3, 8)  # both wheels are tagged cp38-abi3

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module", params=list(WHEELS))
def wheel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Official]:
    with peers_kit.official(WHEELS[request.param], tmp_path_factory.mktemp("official")) as opened:
        yield opened


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return peers_kit.tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def abi3audit(wheel: Official, tools: Tools) -> dict[str, Any]:
    return peers_kit.abi3audit_results(tools, wheel)


@pytest.fixture(scope="module")
def torch_abi_audit(wheel: Official, tools: Tools) -> dict[str, Any]:
    return peers_kit.torch_abi_audit_libraries(tools, wheel)


def version(wheel: Official) -> str:
    return wheel.path.name.split("-")[1]


def base(name: str) -> str:
    return name.rpartition("/")[2]


def deep_gemm(wheel: Official) -> list[str]:
    """The libraries that are built once for each Python, and called so."""
    return [name for name in wheel.libraries if ".cpython-3" in name]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_every_library_is_compared(wheel: Official) -> None:
    assert len(wheel.libraries) == LIBRARIES[version(wheel)]
    assert all(library.host for library in wheel.libraries.values())
    assert len(deep_gemm(wheel)) == {"0.6.3": 0, "0.22.1": 5}[version(wheel)]


# --- binutils ---------------------------------------------------------------------------------


def shown(symbol: Symbol) -> str:
    """A symbol as nm shows it; one that stands for a version has its name only."""
    if symbol.version in ("", symbol.name):
        return symbol.name
    at = "@@" if symbol.defined and symbol.default else "@"
    return f"{symbol.name}{at}{symbol.version}"


def assert_same_symbols(elf: Elf, path: Path, tools: Tools) -> None:
    symbols = [s for s in elf.symbols if s.name]
    said = tools.run("nm", "-D", "-P", "-p", path, cwd=path.parent)
    assert [(shown(s), s.defined) for s in symbols] == peers_kit.nm_symbols(said), path.name
    said = tools.run("readelf", "--dyn-syms", "-W", path, cwd=path.parent)
    ours = [(s.name, str(s.binding), s.exported) for s in symbols]
    assert ours == peers_kit.readelf_symbols(said), path.name


def facts(elf: Elf) -> dict[str, object]:
    """What readelf says too, in its words."""
    return {
        "needed": elf.needed,
        "soname": elf.soname,
        "rpath": elf.rpath,
        "runpath": elf.runpath,
        "executable_stack": elf.executable_stack,
        "interpreter": elf.interpreter,
        "build_id": elf.build_id,
        "isa": ", ".join(elf.isa),
        "type": elf.type.removeprefix("ET_"),
        "machine": {"EM_X86_64": "Advanced Micro Devices X86-64"}[elf.machine],
        "version_needs": [(need.library, need.version) for need in elf.version_needs],
    }


def assert_same_facts(elf: Elf, path: Path, tools: Tools) -> None:
    said = tools.run("readelf", "-dlhnVW", path, cwd=path.parent)
    assert facts(elf) == peers_kit.readelf_facts(said), path.name


def test_nm_and_readelf_list_the_same_dynamic_symbols(wheel: Official, tools: Tools) -> None:
    for name, library in wheel.libraries.items():
        assert_same_symbols(library.elf, wheel.folder / name, tools)
    assert sum(len(library.elf.symbols) for library in wheel.libraries.values()) > 8000


def test_readelf_says_the_same_of_each_library(wheel: Official, tools: Tools) -> None:
    for name, library in wheel.libraries.items():
        assert_same_facts(library.elf, wheel.folder / name, tools)
        assert library.elf.needed, name
        assert library.elf.version_needs, name


def test_binutils_say_the_same_of_the_build_roots_libraries(tools: Tools) -> None:
    """They have what the wheels' have not: SONAMEs, versions of their own, unique symbols."""
    elves = []
    for path in sorted(tools.system.glob("*.so.*")):
        if path.is_symlink():
            continue
        with open_region(path) as region:
            elves.append(read_elf(region))
        assert_same_symbols(elves[-1], path, tools)
        assert_same_facts(elves[-1], path, tools)
    symbols = [symbol for elf in elves for symbol in elf.symbols]
    assert sum(1 for elf in elves if elf.soname) > 50
    assert sum(1 for symbol in symbols if symbol.defined and symbol.version) > 10_000
    assert {symbol.binding for symbol in symbols} >= {Binding.GLOBAL, Binding.WEAK, Binding.UNIQUE}


# --- auditwheel -------------------------------------------------------------------------------


def test_auditwheel_finds_the_same_platform_for_each_library(
    wheel: Official, tmp_path: Path
) -> None:
    for name, library in wheel.libraries.items():
        theirs = peers_kit.auditwheel_of_one(wheel, name, tmp_path)
        assert platform_of([library.elf], elsewhere()).tag == theirs.overall_policy.name, name


def test_auditwheel_differs_on_a_wheel_only_by_what_torch_and_cuda_bring(
    wheel: Official, tools: Tools
) -> None:
    theirs = peers_kit.auditwheel_show(tools, wheel)
    elves = [library.elf for library in wheel.libraries.values()]
    ours = platform_of(elves, elsewhere()).tag
    assert theirs["sym_tag"] == ours
    # `show` cannot be told what comes from elsewhere, so such a wheel is plain linux to it.
    assert theirs["overall_tag"] == "linux_x86_64"
    assert not theirs["unsupported_isa"]
    assert not any(elf.isa for elf in elves)
    brought = {n for elf in elves for n in elf.needed if comes_from_elsewhere(n, elsewhere())}
    assert set(theirs["external_libs"]) == brought
    assert len(brought) >= 7
    upgrade = theirs["policy_upgrades"][ours]
    assert upgrade == {"libs_to_eliminate": sorted(brought)}
    needs: dict[str, set[str]] = {}
    for need in (need for elf in elves for need in elf.version_needs):
        if not need.library.startswith("ld-linux"):  # it leaves the loader out
            needs.setdefault(need.library, set()).add(need.version)
    assert {k: set(v) for k, v in theirs["versioned_symbols"].items()} == needs


# --- abi3audit --------------------------------------------------------------------------------


def test_abi3audit_names_the_same_symbols(wheel: Official, abi3audit: dict[str, Any]) -> None:
    # It looks at what is called .so; vllm-rs is a program.
    assert {*abi3audit} == {base(name) for name in wheel.libraries} - {"vllm-rs"}
    for name, library in wheel.libraries.items():
        if base(name) not in abi3audit:
            continue
        ours, said = library.python, abi3audit[base(name)]
        assert (ours.abi is not PythonAbi.FULL) == said["is_abi3"], name
        assert set(ours.outside) == set(said["non_abi3_symbols"]), name
        assert ours.minimum is not None, name
        assert numbers(said["baseline"]) == FLOOR, name
        assert max(ours.minimum, FLOOR) == numbers(said["computed"]), name
        # It names every symbol newer than the tag, we those of them that decide.
        newer = {s: numbers(v) for s, v in said["future_abi3_objects"].items()}
        newest = {s for s, v in newer.items() if v == numbers(said["computed"])}
        assert (set(ours.because) if ours.minimum > FLOOR else set()) == newest, name


def test_abi3_true_breaks_where_abi3audit_does(wheel: Official, abi3audit: dict[str, Any]) -> None:
    bad = {
        name: {*result["non_abi3_symbols"], *result["future_abi3_objects"]}
        for name, result in abi3audit.items()
        if not (result["is_abi3"] and result["is_abi3_baseline_compatible"])
    }
    # What is called cpython-312 is loaded by that Python alone, so it may use all of it; abi3audit
    # holds everything in a wheel tagged abi3 to the limited API.
    for name in deep_gemm(wheel):
        assert "PyFrame_GetBack" in bad.pop(base(name))
    assert bad == {name: set(newer) for name, newer in NEWER[version(wheel)].items()}
    found = check_libraries([*wheel.libraries.values()], wheel.tags).problems
    broken = {base(p.subject): p for p in found if p.rule == "abi3-true"}
    assert {*broken} == {*bad}
    for name, problem in broken.items():
        newer = NEWER[version(wheel)][name]
        newest = max(newer.values(), key=numbers)
        assert f"needs Python {newest}" in problem.what
        assert {s for s in newer if newer[s] == newest} <= {*problem.evidence} <= bad[name]


# --- torch-abi-audit --------------------------------------------------------------------------


def torch_verdict(said: dict[str, Any]) -> TorchAbi:
    """Its words for what a library relies on, in ours."""
    if not said["uses_torch"]:
        return TorchAbi.NONE
    if not said["stable"]:
        return TorchAbi.UNSTABLE
    return TorchAbi.UNKNOWN if said["unknown_shim_symbols"] else TorchAbi.STABLE


def test_torch_abi_audit_has_the_same_verdict_for_each_library(
    wheel: Official, torch_abi_audit: dict[str, Any]
) -> None:
    assert {*torch_abi_audit} == {*wheel.libraries} - {"vllm/vllm-rs"}  # as with abi3audit
    for name, said in torch_abi_audit.items():
        ours, torch = wheel.libraries[name].torch, said["torch"]
        minimum = ".".join(map(str, ours.minimum)) if ours.minimum else None
        assert ours.abi is torch_verdict(torch), name
        assert minimum == torch["min_torch_version"], name
        assert set(ours.because) == set(torch["version_defining_symbols"]), name
        assert list(ours.unknown) == sorted(torch["unknown_shim_symbols"]), name
        assert len(ours.shims) == torch["stable_shim_count"], name


def test_torch_abi_audit_names_the_same_symbols(
    wheel: Official, torch_abi_audit: dict[str, Any]
) -> None:
    more = {}
    for name, said in torch_abi_audit.items():
        unstable = wheel.libraries[name].torch.unstable
        # It does not know the C names of libtorch_python.
        if c_names := {symbol for symbol in unstable if symbol.startswith("THP")}:
            more[name] = c_names
        ours = sorted(demangle_symbol(s) for s in unstable if not s.startswith("THP"))
        assert ours == sorted(said["torch"]["unstable_symbols"]), name
    assert more == {name: {"THPDtypeType"} for name in deep_gemm(wheel)}


def test_torch_abi_audit_sees_the_same_of_python(
    wheel: Official, torch_abi_audit: dict[str, Any]
) -> None:
    for name, said in torch_abi_audit.items():
        ours = wheel.libraries[name]
        assert (ours.python.abi is PythonAbi.LIMITED) == said["cpython"]["compliant"], name
        assert list(ours.python.outside) == sorted(said["cpython"]["violations"]), name
        assert (ours.elf.kind == "extension") == said["extension"], name


# --- cuobjdump --------------------------------------------------------------------------------


def image(entry: FatbinEntry) -> Image:
    """An image as cuobjdump describes it."""
    return Image(
        kind={EntryKind.CUBIN: "elf", EntryKind.PTX: "ptx"}[entry.kind],
        arch=entry.target.split()[-1],
        code_version=entry.code_version,
        compressed=entry.compression is not Compression.NONE,
    )


def test_cuobjdump_lists_the_same_images(wheel: Official, tools: Tools) -> None:
    for name, library in wheel.libraries.items():
        text = tools.run("cuobjdump", name, cwd=wheel.folder, ok=(0, 255))
        assert [image(e) for e in library.entries] == peers_kit.cuobjdump_images(text), name


def test_cuobjdump_names_the_same_kernels_in_each_cubin(wheel: Official, tools: Tools) -> None:
    count = 0
    for name, library in wheel.libraries.items():
        text = tools.run("cuobjdump", "-symbols", name, cwd=wheel.folder, ok=(0, 255))
        theirs = [(i.arch, i.kernels) for i in peers_kit.cuobjdump_images(text) if i.kind == "elf"]
        ours = [
            (e.target, frozenset(e.kernels or ()))
            for e in library.entries
            if e.kind is EntryKind.CUBIN
        ]
        assert ours == theirs, name
        count += sum(len(k) for _, k in ours)
    assert count == CUBIN_KERNELS[version(wheel)]


def test_cuobjdump_extracts_the_same_kernels_as_ptx(
    wheel: Official, tools: Tools, tmp_path: Path
) -> None:
    count = 0
    for name, library in wheel.libraries.items():
        theirs = peers_kit.extracted_ptx(tools, wheel.folder / name, tmp_path / "ptx")
        ours = [frozenset(e.kernels or ()) for e in library.entries if e.kind is EntryKind.PTX]
        assert ours == theirs, name
        count += sum(map(len, ours))
    assert count == PTX_KERNELS[version(wheel)]

"""Rules one library can break by itself, and the reading of it."""

from __future__ import annotations

import os

import pytest
from packaging.tags import parse_tag
from verify_kit import (
    Gate,
    Lib,
    Parts,
    Sec,
    Sym,
    cubin_entry,
    elf_of,
    extension,
    fatbins_of,
    ptx_entry,
)

from pinwheel.errors import ArtifactError
from pinwheel.inspect.elsewhere import elsewhere
from pinwheel.inspect.pathscan import Find
from pinwheel.inspect.region import Region
from pinwheel.verify import library as library_module
from pinwheel.verify.library import (
    ReadLibrary,
    _finds,
    build_paths,
    check_libraries,
    check_vendored,
    library_code,
    shortened,
)
from pinwheel.verify.model import Checked
from pinwheel.verify.platform_rule import check_platform

ABI3 = parse_tag("cp38-abi3-manylinux_2_17_x86_64")


def read(lib: Lib, name: str = "pack/_C.abi3.so", finds: tuple[Find, ...] = ()) -> ReadLibrary:
    data = lib.bytes()
    return ReadLibrary(
        elf=elf_of(data, name), size=len(data), entries=fatbins_of(data, kernels=True), finds=finds
    )


def rules(checked: Checked) -> set[str]:
    return {p.rule for p in checked.problems}


def test_a_right_library_breaks_nothing() -> None:
    checked = check_libraries([read(extension("_C"))], ABI3)
    assert not checked.problems
    assert set(checked.looked) == {
        "abi3-true", "no-rpath", "no-build-path", "no-exec-stack", "stripped",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tag", "symbol", "breaks"),
    [
        ("pack/_C.abi3.so", "cp38-abi3-any", "PyUnicode_AsUTF8AndSize", True),
        ("pack/_C.abi3.so", "cp310-abi3-any", "PyUnicode_AsUTF8AndSize", False),
        ("pack/_C.abi3.so", "cp312-cp312-any", "PyUnicode_AsUTF8AndSize", False),
        ("pack/_C.abi3.so", "cp38-abi3-any", "_PyObject_New", False),  # limited, in spite of its _
        ("pack/_C.abi3.so", "cp38-abi3-any", "PyFrame_New", True),
        ("pack/_C.cpython-311-x86_64-linux-gnu.so", "cp38-abi3-any", "PyFrame_New", False),
        ("pack/_C.so", "cp38-abi3-any", "PyFrame_New", True),
        ("pack/_C.so", "cp311-cp311-any", "PyFrame_New", False),
        ("pack/_D.so", "cp38-abi3-any", "PyFrame_New", False),  # no extension by that name
    ],
)
def test_abi3(name: str, tag: str, symbol: str, breaks: bool) -> None:
    lib = extension("_C")
    lib.symbols.append(Sym(symbol))
    checked = check_libraries([read(lib, name)], parse_tag(tag))
    assert rules(checked) == ({"abi3-true"} if breaks else set())


def test_a_promise_that_no_tag_makes_is_unknown() -> None:
    checked = check_libraries([read(extension("_C"))], parse_tag("py3-none-linux_x86_64"))
    (problem,) = checked.problems
    assert (problem.rule, problem.unknown) == ("abi3-true", True)


def test_library_code_counts_what_runs_as_it_is() -> None:
    lib = Lib(entries=[cubin_entry(80, "a"), cubin_entry(90, "a", "b"), ptx_entry(90, "a")])
    code = read(lib).code
    assert code is not None
    assert str(code.targets) == "sm_80 sm_90 compute_90"
    assert {name: str(of) for name, of in code.kernels.items()} == {
        "a": "sm_80 sm_90 compute_90",
        "b": "sm_90",
    }
    assert library_code("a.so", ()) is None
    assert read(lib).counts == {"ptx sm_90": 1, "sm_80": 1, "sm_90": 1}
    assert read(lib).toolkits == ("13.0",)


def test_build_paths_are_found_outside_device_code_only() -> None:
    lib = extension("_C")
    lib.entries.append(ptx_entry(90, "k"))
    lib.sections.append(Sec(".rodata", b"\0/build/src/a.cu\0"))
    data = lib.bytes()
    region = Region.of(data, "pack/_C.abi3.so")
    elf = elf_of(data)
    (find,) = _finds(region, elf, build_paths(True))
    assert find.offset == data.index(b"/build/src/a.cu")
    assert find.text == "/build/src/a.cu"
    assert list(_finds(region, elf, ())) == []


def test_build_paths_are_absolute_and_end_in_a_slash() -> None:
    for ours in (True, False):
        assert all(p.startswith("/") and p.endswith("/") for p in build_paths(ours))
    assert {"/build/", "/opt/", "/cache/", "/logs/"} <= set(build_paths(True))


@pytest.mark.parametrize(
    ("members", "found"),
    [
        (["vllm/libcudart.so.12"], 1),
        (["vllm.libs/libcudart-d0da41ae.so.11.0"], 1),  # as auditwheel repairs
        (["vllm/libtorch_cuda.so", "torch/lib/libc10.so"], 2),
        (["vllm/libcuda.so.1"], 1),
        (["vllm/libcaffe2_nvrtc.so", "vllm/libcudart_static.a", "vllm/LIBCUDART.so.12"], 3),
        (["vllm/libcuda.py", "docs/libtorch.md", "vllm/_C.abi3.so"], 0),
    ],
)
def test_vendored_by_name(members: list[str], found: int) -> None:
    assert len(check_vendored(members, [], elsewhere()).problems) == found


def test_a_platform_tag_for_any_system_and_one_that_promises_nothing() -> None:
    library = read(extension("_C"))
    (problem,) = check_platform([library], parse_tag("cp38-abi3-any"), elsewhere()).problems
    assert "holds libraries" in problem.what
    assert "manylinux" in problem.next_step
    linux = check_platform([library], parse_tag("cp38-abi3-linux_x86_64"), elsewhere())
    assert not linux.problems
    assert "promises nothing" in linux.looked["platform-tag"]
    unknown = check_platform([library], parse_tag("cp38-abi3-manylinux_9_9_x86_64"), elsewhere())
    assert unknown.problems


def test_every_tag_of_a_compressed_set_must_hold() -> None:
    lib = extension("_C")
    lib.symbols.append(Sym("pow", version=("libm.so.6", "GLIBC_2.29")))
    tags = parse_tag("cp38-abi3-manylinux_2_17_x86_64.manylinux_2_34_x86_64")
    (problem,) = check_platform([read(lib)], tags, elsewhere()).problems
    assert problem.subject == "manylinux_2_17_x86_64"
    assert any("pow" in line for line in problem.evidence)


@pytest.mark.parametrize(
    ("name", "most", "says"),
    [("MAX_LIBRARIES", 2, "3 libraries are too many"), ("MAX_SYMBOLS", 9, "more than 9 symbols")],
)
def test_a_wheel_of_endless_libraries_is_not_read(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, name: str, most: int, says: str
) -> None:
    gate.make()
    monkeypatch.setattr(library_module, name, most)
    with pytest.raises(ArtifactError, match=says):
        gate.again(gate.wheel)


@pytest.mark.parametrize("larger", ["tinypack/a.so", "tinypack/b.so"])
def test_of_two_damaged_libraries_the_first_is_named(gate: Gate, larger: str) -> None:
    """Though the larger one is unpacked first."""
    elf = b"\x7fELF"
    sizes = {name: 300_000 if name == larger else 30 for name in ("tinypack/a.so", "tinypack/b.so")}
    files = {name: elf + os.urandom(size) for name, size in sizes.items()}
    wheel = gate.make(Parts(files=files))
    for _ in range(5):
        with pytest.raises(ArtifactError, match=r"tinypack/a\.so"):
            gate.again(wheel)


def test_a_long_list_is_shortened() -> None:
    assert len(shortened([str(i) for i in range(30)])) == 21
    assert shortened([str(i) for i in range(30)])[-1] == "and 10 more"
    assert shortened(["a"]) == ("a",)

"""Parity with an official wheel: files, fields, operators, and what a hostile wheel may try."""

from __future__ import annotations

import os
import stat
import struct
import warnings
import zipfile
from pathlib import Path

import pytest

from pinwheel.errors import WheelError
from pinwheel.inspect.operators import operator_names, operators_in, parse_schema
from pinwheel.inspect.parity import Change, compare_wheels

METADATA = "Metadata-Version: 2.1\nName: pkg\nVersion: {v}\nRequires-Python: >=3.8\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-abi3-{p}\n\n"
RODATA = (
    b"\0scale(Tensor x,   float by=1.0) -> Tensor\0fill_(Tensor! out) -> ()\0\0\0"
    b"scale\0fill_\0dispose\0_C\0_C_more\0\0\0helper\0"
)
DYNSTR = b"\0_Z7disposel\0_Z6helperv\0_Z5scaleRN2at6TensorEd\0"


def elf(rodata: bytes = RODATA, dynstr: bytes = DYNSTR) -> bytes:
    """A shared library that has nothing but the two sections that are read."""
    names = b"\0.rodata\0.dynstr\0.shstrtab\0"
    at, body, headers = 64, b"", [bytes(64)]
    for name, kind, data in ((1, 1, rodata), (9, 3, dynstr), (17, 3, names)):
        headers.append(
            struct.pack("<2I4Q2I2Q", name, kind, 2, 0, at + len(body), len(data), 0, 0, 1, 0)
        )
        body += data
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    table = at + len(body)
    head = struct.pack("<2HI3QI6H", 3, 62, 1, 0, 0, table, 0, 64, 56, 0, 64, len(headers), 3)
    return ident + head + body + b"".join(headers)


def wheel(
    path: Path,
    changes: dict[str, str | bytes | None] | None = None,
    *,
    version: str = "1.0",
    requires: tuple[str, ...] = ("torch==2.4.0",),
    platform: str = "linux_x86_64",
) -> Path:
    info = f"pkg-{version}.dist-info"
    files: dict[str, str | bytes | None] = {
        "pkg/__init__.py": "import pkg._C\n",
        "pkg/ops.py": "x = 1\n",
        "pkg/conf/a.json": "{}",
        "pkg/_C.abi3.so": elf(),
        f"{info}/METADATA": METADATA.format(v=version)
        + "".join(f"Requires-Dist: {r}\n" for r in requires),
        f"{info}/WHEEL": WHEEL.format(p=platform),
        f"{info}/entry_points.txt": "[console_scripts]\npkg = pkg:main\n",
        f"{info}/LICENSE": "free",
        f"{info}/RECORD": f"{version}",
    }
    files |= {k.replace("@", info): v for k, v in (changes or {}).items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            if data is not None:
                archive.writestr(name, data)
    return path


def compare(tmp_path: Path, ours, official=None, *, patched=frozenset(), absent_ok=None, **named):
    mine = wheel(tmp_path / "ours.whl", ours, **named.pop("mine", {}))
    theirs = wheel(tmp_path / "official.whl", official)
    return compare_wheels(mine, theirs, absent_ok=absent_ok or {}, patched=patched, **named)


def told(parity) -> set[tuple[str, str, str]]:
    return {(d.path, d.change.value, d.reason) for d in parity.differences}


def test_the_same_wheel_has_no_difference(tmp_path: Path):
    parity = compare(tmp_path, {})
    assert parity.ok
    assert parity.differences == ()
    assert parity.same == {"python": 2, "data": 1, "metadata": 2}
    assert parity.as_dict()["extensions"] == [
        {
            "path": "pkg/_C.abi3.so",
            "official-operators": 3,
            "operators": 3,
            "unreadable-returns": [],
        }
    ]


def test_every_kind_of_difference_is_listed(tmp_path: Path):
    parity = compare(
        tmp_path,
        {"pkg/ops.py": "x = 2\n", "pkg/conf/a.json": None, "pkg/new.py": "",
         "@/entry_points.txt": "[console_scripts]\nother = pkg:main\n"},
        {"pkg/_extra.abi3.so": elf()},
    )  # fmt: skip
    assert told(parity) == {
        ("pkg/ops.py", "different", ""),
        ("pkg/conf/a.json", "missing", ""),
        ("pkg/new.py", "added", ""),
        ("pkg/_extra.abi3.so", "missing", ""),
        ("*.dist-info/entry_points.txt", "different", ""),
    }
    assert not parity.ok
    assert parity.unexplained == parity.differences


def test_explained_differences_are_ok_and_stay_listed(tmp_path: Path):
    parity = compare(
        tmp_path,
        {"pkg/ops.py": "x = 2\n", "pkg/guard.py": "", "pkg/_version.py": "v",
         "@/pinwheel.json": "{}", "@/LICENSE": None, "@/licenses/LICENSE": "free"},
        {"pkg/attn/_attn.abi3.so": elf(), "pkg/attn/__init__.py": ""},
        patched={"pkg/ops.py", "pkg/guard.py", "setup.py"},
        absent_ok={"pkg/attn/": "attention is off"},
        generated={"pkg/_version.py": "written", "*.dist-info/pinwheel.json": "manifest"},
        requirements={"torch==2.4.0": "torch==2.3.0"},
        mine={"version": "1.0+cu121", "requires": ("torch==2.3.0",), "platform": "manylinux"},
    )  # fmt: skip
    assert parity.ok, parity.unexplained
    assert ("pkg/attn/_attn.abi3.so", "missing", "attention is off") in told(parity)
    assert ("pkg/guard.py", "added", "created by the patch series") in told(parity)
    assert ("Requires-Dist: torch==2.3.0", "added", "a requirement of the recipe") in told(parity)


def test_an_explanation_that_explains_nothing_is_a_difference(tmp_path: Path):
    parity = compare(
        tmp_path,
        {},
        patched={"pkg/ops.py"},
        absent_ok={"pkg/attn/": "attention is off", "pkg/gone.py": "old"},
        generated={"pkg/_version.py": "written"},
        requirements={"numpy<2": "numpy<3"},
    )
    assert {(d.path, d.change) for d in parity.unexplained} == {
        ("pkg/ops.py", Change.UNUSED),
        ("pkg/attn/", Change.UNUSED),
        ("pkg/gone.py", Change.UNUSED),
        ("pkg/_version.py", Change.UNUSED),
        ("Requires-Dist: numpy<2", Change.UNUSED),
    }


def test_a10_metadata_off_the_recipe_is_unexplained(tmp_path: Path):
    parity = compare(tmp_path, {}, requirements={"torch==2.4.0": "torch==2.3.0"})
    assert {d.path for d in parity.unexplained} == {"Requires-Dist: torch==2.4.0"}


def test_spelling_of_a_requirement_is_no_difference(tmp_path: Path):
    assert compare(tmp_path, {}, mine={"requires": ("Torch (==2.4.0)",)}).ok
    spaced = {"requires": ("torch == 2.3.0",)}
    assert compare(tmp_path, {}, requirements={"torch ==2.4.0": "torch==2.3.0"}, mine=spaced).ok


def test_interpreter_tag_is_compared_and_platform_is_not(tmp_path: Path):
    odd = WHEEL.replace("cp38-abi3", "cp311-cp311").format(p="linux_x86_64")
    assert {d.path for d in compare(tmp_path, {"@/WHEEL": odd}).differences} == {
        "Tag: cp38-abi3", "Tag: cp311-cp311",
    }  # fmt: skip
    assert compare(tmp_path, {}, mine={"platform": "manylinux_2_28_x86_64"}).ok


def test_operators_are_compared_by_name_arguments_and_return(tmp_path: Path):
    ours = RODATA.replace(b"fill_(", b"full_(").replace(b"by=1.0", b"by=2.0")
    ours = ours.replace(b"\0_C_more", b"\0_D_more")
    parity = compare(tmp_path, {"pkg/_C.abi3.so": elf(ours)})
    assert told(parity) == {
        ("pkg/_C.abi3.so: fill_", "missing", ""),
        ("pkg/_C.abi3.so: full_", "added", ""),
        ("pkg/_C.abi3.so: scale", "different", ""),
        ("pkg/_C.abi3.so: namespace _C_more", "missing", ""),
    }


def test_what_torch_registered_stands_in_for_what_was_read(tmp_path: Path):
    ours = RODATA.replace(b"fill_(Tensor! out) -> ()", b"fill_(Tensor! out)")
    path = "pkg/_C.abi3.so"
    names = ["_C::scale", "_C::fill_", "_C_more::dispose"]
    assert not compare(tmp_path, {path: elf(ours)}).ok
    assert compare(tmp_path, {path: elf(ours)}, registered={path: names}).ok
    short = compare(tmp_path, {path: elf(ours)}, registered={path: names[:2]})
    assert {d.path for d in short.unexplained} == {f"{path}: dispose", f"{path}: namespace _C_more"}


def test_a_return_type_that_cannot_be_read_is_unknown_not_wrong(tmp_path: Path):
    ours = RODATA.replace(b"-> Tensor\0", b"-> TensorgetDevice\0")
    parity = compare(tmp_path, {"pkg/_C.abi3.so": elf(ours)})
    assert parity.ok
    assert parity.extensions[0].unreadable == ("scale",)


# --- operators ------------------------------------------------------------------------------


def test_operators_of_a_library():
    found = operators_in(RODATA, DYNSTR, "_C")
    assert found.namespaces == ("_C", "_C_more")
    assert found.bare == ("dispose",)  # helper is a function too, but no literal of the source
    assert [(s.name, s.arguments, s.returns) for s in found.schemas] == [
        ("fill_", "Tensor! out", "()"),
        ("scale", "Tensor x, float by=1.0", "Tensor"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "copy_blocks(Tensor(a!)[] key_caches, Tensor[](b!) value_caches, Tensor m) -> ()",
        "machete_gemm(Tensor A, __torch__.torch.classes._core_C.ScalarType t, str? s)-> Tensor",
        "f(int[2] x=[1, 2], *, Generator? gen=None) -> (Tensor, Tensor)",
        "f() -> int",
        "f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        "schedules(SymInt size) -> str[]",
    ],
)
def test_schemas_of_torch_are_read(text: str):
    schema = parse_schema(text)
    assert schema is not None
    assert schema.returns is not None


@pytest.mark.parametrize(
    "text",
    [
        "void f(int) -> int",
        "f(at::Tensor x) -> ()",
        "expected f(x) -> y",
        "auto f(int x) -> decltype(g)",
        "f(Tensor) -> Tensor",
        "a -> b",
        "f(Tensor x, ) -> ()",
    ],
)
def test_other_text_is_no_schema(text: str):
    assert parse_schema(text) is None


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF" + b"\xff" * 80, elf()[:200]])
def test_a_damaged_library_is_refused(tmp_path: Path, data: bytes):
    path = tmp_path / "x.so"
    path.write_bytes(data)
    with pytest.raises(WheelError, match=r"x\.so cannot be read"):
        operator_names(path, "_C")


def test_many_namespaces_take_no_quadratic_time():
    assert operators_in(b"_C\0" * 300_000, b"", "_C").namespaces == ("_C",)


# --- hostile wheels -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x.py", "/x.py", "pkg/../../x.py", "a\\b.py", "a//b", "a\x07"])
def test_escaping_names_are_refused(tmp_path: Path, name: str):
    with pytest.raises(WheelError, match="would leave its directory"):
        compare(tmp_path, {name: "x"})


def test_symlinks_duplicates_and_damage_are_refused(tmp_path: Path):
    official = wheel(tmp_path / "official.whl")
    bad = wheel(tmp_path / "bad.whl")
    link = zipfile.ZipInfo("pkg/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(bad, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(WheelError, match="symlink"):
        compare_wheels(bad, official, absent_ok={}, patched=set())
    wheel(bad)
    with zipfile.ZipFile(bad, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("pkg/ops.py", "again")
    with pytest.raises(WheelError, match="a member twice"):
        compare_wheels(bad, official, absent_ok={}, patched=set())
    bad.write_bytes(wheel(bad).read_bytes()[:-40])
    with pytest.raises(WheelError, match="cannot be read"):
        compare_wheels(bad, official, absent_ok={}, patched=set())
    with pytest.raises(WheelError, match="cannot be read"):
        compare_wheels(tmp_path / "none.whl", official, absent_ok={}, patched=set())


def test_absurd_sizes_are_refused_before_anything_is_read(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("pinwheel.inspect.compared.MAX_TOTAL", 100)
    with pytest.raises(WheelError, match="more than"):
        compare(tmp_path, {"pkg/big.json": b"0" * 1000})


@pytest.mark.skipif("PINWHEEL_OFFICIAL_WHEEL" not in os.environ, reason="no official wheel given")
@pytest.mark.slow
def test_the_official_wheel_registers_61_and_2_operators():
    official = Path(os.environ["PINWHEEL_OFFICIAL_WHEEL"])
    parity = compare_wheels(official, official, absent_ok={}, patched=set())
    assert parity.ok
    assert {e.path: e.official for e in parity.extensions} == {
        "vllm/_C.abi3.so": 61,
        "vllm/_core_C.abi3.so": 0,
        "vllm/_moe_C.abi3.so": 2,
        "vllm/vllm_flash_attn/vllm_flash_attn_c.abi3.so": 3,
    }


@pytest.mark.parametrize("offset", [(1 << 63) - 1, 1 << 63])
def test_a_section_where_no_file_can_have_one_is_one_clear_error(tmp_path: Path, offset: int):
    """Beyond what a file system takes, which is an OSError, and beyond what seek takes."""
    data = bytearray(elf())
    table = int.from_bytes(data[0x28:0x30], "little")  # e_shoff, ELF64
    data[table + 64 + 0x18 : table + 64 + 0x20] = offset.to_bytes(8, "little")  # sh_offset
    bad = wheel(tmp_path / "bad.whl", {"pkg/_C.abi3.so": bytes(data)})
    official = wheel(tmp_path / "official.whl")
    with pytest.raises(WheelError, match="cannot be read as an ELF"):
        compare_wheels(bad, official, absent_ok={}, patched=set())

"""Finishing whole wheels, real and hostile; libraries come from the host's gcc."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.metadata import Metadata
from wheelkit import (
    DEVICE_CODE,
    EXTENSION,
    METADATA,
    WHEEL,
    compile_library,
    host_strip,
    needs_gcc,
    record,
    write_wheel,
)

from pinwheel.build.finish import FinishedWheel, FinishPlan, finish
from pinwheel.build.rawwheel import check_record
from pinwheel.console import Console
from pinwheel.errors import (
    DiskFullError,
    NotWritableError,
    PinwheelError,
    PlatformTagError,
    UnpackError,
    WheelError,
)
from pinwheel.recipe.models import Requirement

pytestmark = needs_gcc

FULL = "0.6.3+cu121.torch2.3.ctk124"
RAW = "tinypack-0.6.3-cp38-abi3-linux_x86_64.whl"
ELSEWHERE = ("libtorch*", "libc10*", "libcud*", "libnv*")
REQUIREMENTS = (Requirement(old="torch==2.4.0", new="torch==2.3.0", reason="test"),)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("libraries")
    plain = compile_library(root / "_C.abi3.so", EXTENSION)
    device = compile_library(root / "_moe_C.abi3.so", DEVICE_CODE)
    return {
        "tinypack/_C.abi3.so": plain.read_bytes(),
        "tinypack/_moe_C.abi3.so": device.read_bytes(),
    }


@pytest.fixture
def files(libraries: dict[str, bytes]) -> dict[str, bytes]:
    return {
        "tinypack/__init__.py": b"from ._version import __version__\n",
        **libraries,
        "tinypack-0.6.3.data/scripts/tiny": b"#!python\nprint('hello')\n",
    }


@pytest.fixture
def console() -> Console:
    return Console(out=io.StringIO(), err=io.StringIO())


@pytest.fixture
def plan(tmp_path: Path, files: dict[str, bytes]) -> FinishPlan:
    return FinishPlan(
        raw=write_wheel(tmp_path / "raw" / RAW, files),
        out_dir=tmp_path / "dist" / "combo",
        distribution="tinypack",
        version=FULL,
        source_date_epoch=1728941239,
        strip=host_strip,
        extensions={"tinypack/_C.abi3.so": False, "tinypack/_moe_C.abi3.so": True},
        facts={"combo": "cu121-torch2.3-tinypack0.6.3", "capabilities": ["8.0", "9.0"]},
        excluded_libraries=ELSEWHERE,
        build_paths=("/home/", "/srv/builder/"),
        requirements=REQUIREMENTS,
        version_file=True,
        built_for={"TORCH": "2.3.0", "CUDA": "12.1", "CXX11_ABI": False},
    )


def again(plan: FinishPlan, files: dict[str, bytes], **wheel: Any) -> FinishPlan:
    """The plan for another raw wheel of the same name."""
    write_wheel(plan.raw, files, **wheel)
    return plan


def refused(plan: FinishPlan, console: Console, kind: type[PinwheelError]) -> PinwheelError:
    """Finishing raises, and leaves nothing in dist/, not even something hidden."""
    with pytest.raises(kind) as caught:
        finish(plan, console)
    assert sorted(p.name for p in plan.out_dir.parent.rglob("*")) == [plan.out_dir.name]
    assert caught.value.next_step
    return caught.value


def read(wheel: FinishedWheel) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel.path) as archive:
        return {n: archive.read(n) for n in archive.namelist()}


def test_a_finished_wheel(plan: FinishPlan, console: Console, tmp_path: Path) -> None:
    done = finish(plan, console)
    inside = read(done)
    info = f"tinypack-{FULL}.dist-info"

    assert done.platform_tag.startswith("manylinux_2_")
    assert done.path.name == f"tinypack-{FULL}-1-cp38-abi3-{done.platform_tag}.whl"
    assert f"\nBuild: 1\nTag: cp38-abi3-{done.platform_tag}\n".encode() in inside[f"{info}/WHEEL"]
    assert list(inside) == [
        f"tinypack-{FULL}.data/scripts/tiny",
        "tinypack/_C.abi3.so",
        "tinypack/__init__.py",
        "tinypack/_moe_C.abi3.so",
        "tinypack/_pinwheel.py",
        "tinypack/_version.py",
        f"{info}/METADATA",
        f"{info}/WHEEL",
        f"{info}/pinwheel.json",
        f"{info}/RECORD",
    ]
    metadata = Metadata.from_email(inside[f"{info}/METADATA"])
    assert str(metadata.version) == FULL
    assert "torch==2.3.0" in {str(r) for r in metadata.requires_dist or ()}

    assert done.sha256 == hashlib.sha256(done.path.read_bytes()).hexdigest()
    assert stat.S_IMODE(done.path.stat().st_mode) == 0o644
    names = {p.name for p in plan.out_dir.iterdir()}
    assert names == {done.path.name, f"{done.path.name}.manifest.json", "SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], check=True, cwd=plan.out_dir)
    assert [p.name for p in plan.out_dir.parent.iterdir()] == ["combo"]

    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(done.path) as archive:
        archive.extractall(unpacked)
    check_record(unpacked, info)


def test_what_the_manifest_says(plan: FinishPlan, console: Console) -> None:
    plan = dataclasses.replace(plan, describe=lambda name, path: {"cubins": {"8.0": len(name)}})
    done = finish(plan, console)
    inside = read(done)
    manifest = json.loads(inside[f"tinypack-{FULL}.dist-info/pinwheel.json"])
    assert manifest == done.manifest
    assert manifest["combo"] == "cu121-torch2.3-tinypack0.6.3"
    assert manifest["version"] == FULL
    assert manifest["platform-tag"] == done.platform_tag
    facts = manifest["libraries"]["tinypack/_C.abi3.so"]
    assert facts["kind"] == "extension"
    assert facts["device-code"] is False
    assert facts["cubins"] == {"8.0": 19}
    assert facts["sha256"] == hashlib.sha256(inside["tinypack/_C.abi3.so"]).hexdigest()
    assert facts["size"] == len(inside["tinypack/_C.abi3.so"])
    assert "GLIBC" in facts["symbol-floor"]
    assert manifest["libraries"]["tinypack/_moe_C.abi3.so"]["device-code"] is True
    beside = json.loads(Path(f"{done.path}.manifest.json").read_bytes())
    assert beside["wheel"] == {"name": done.path.name, "sha256": done.sha256, "size": done.size}
    assert {k: v for k, v in beside.items() if k in manifest} == manifest


def test_uv_installs_it_and_python_imports_it(
    plan: FinishPlan, console: Console, tmp_path: Path
) -> None:
    done = finish(plan, console)
    site = tmp_path / "site"
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps"),
            *("--no-cache", "--python", sys.executable, "--target", site, done.path),
        ],
        check=True,
        capture_output=True,
    )
    code = (
        "import tinypack, tinypack._C as c, tinypack._pinwheel as p, importlib.metadata as m;"
        "print(tinypack.__version__, c.answer(b'x'), p.TORCH, m.version('tinypack'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    ).stdout
    assert said.split() == [FULL, "42", "2.3.0", FULL]


def test_the_same_from_another_place_order_and_time(
    plan: FinishPlan, console: Console, tmp_path: Path, files: dict[str, bytes]
) -> None:
    one = finish(plan, console)
    other = dataclasses.replace(
        plan,
        raw=write_wheel(tmp_path / "b" / "raw" / RAW, dict(reversed(files.items()))),
        out_dir=tmp_path / "b" / "dist" / "combo",
    )
    old = os.umask(0o077)
    try:
        two = finish(other, console)
    finally:
        os.umask(old)
    assert one.sha256 == two.sha256
    assert (plan.out_dir / "SHA256SUMS").read_bytes() == (other.out_dir / "SHA256SUMS").read_bytes()


def test_again_is_unchanged_and_mends_what_is_missing(plan: FinishPlan, console: Console) -> None:
    first = finish(plan, console)
    stamp = first.path.stat().st_mtime_ns
    (plan.out_dir / "SHA256SUMS").unlink()
    second = finish(plan, console)
    assert not first.unchanged
    assert second.unchanged
    assert second.path.stat().st_mtime_ns == stamp
    assert first.sha256 in (plan.out_dir / "SHA256SUMS").read_text()


def test_other_bytes_of_the_same_name_are_refused_unless_asked(
    plan: FinishPlan, console: Console
) -> None:
    first = finish(plan, console)
    before = {p: p.read_bytes() for p in plan.out_dir.iterdir()}
    other = dataclasses.replace(plan, facts={"combo": "other"})
    with pytest.raises(WheelError, match="other bytes") as caught:
        finish(other, console)
    assert first.sha256 in caught.value.evidence[0]
    assert {p: p.read_bytes() for p in plan.out_dir.iterdir()} == before
    second = finish(dataclasses.replace(other, replace=True), console)
    assert second.path == first.path
    assert second.sha256 != first.sha256
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], check=True, cwd=plan.out_dir)


def test_sums_of_other_wheels_stay(plan: FinishPlan, console: Console) -> None:
    plan.out_dir.mkdir(parents=True)
    (plan.out_dir / "other.whl").write_bytes(b"x")
    line = f"{hashlib.sha256(b'x').hexdigest()}  other.whl\n"
    (plan.out_dir / "SHA256SUMS").write_text(line)
    finish(plan, console)
    assert line in (plan.out_dir / "SHA256SUMS").read_text()


def test_two_at_once(plan: FinishPlan, console: Console) -> None:
    results: list[FinishedWheel] = []
    threads = [
        threading.Thread(target=lambda: results.append(finish(plan, console))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({r.sha256 for r in results}) == 1
    assert len(results) == 3
    assert len(list(plan.out_dir.iterdir())) == 3


def test_what_a_killed_run_left_is_removed_and_what_is_in_use_is_not(
    plan: FinishPlan, console: Console
) -> None:
    dist = plan.out_dir.parent
    (dist / ".finish-dead" / "tree").mkdir(parents=True)
    (dist / ".finish-busy").mkdir()
    busy = os.open(dist / ".finish-busy", os.O_RDONLY)
    fcntl.flock(busy, fcntl.LOCK_EX)
    try:
        finish(plan, console)
    finally:
        os.close(busy)
    assert {p.name for p in dist.iterdir()} == {"combo", ".finish-busy"}


# --- what must not be shipped ------------------------------------------------------------------


def with_library(
    files: dict[str, bytes], tmp_path: Path, source: str, *flags: str
) -> dict[str, bytes]:
    path = compile_library(tmp_path / "lib" / "_C.abi3.so", source, *flags)
    return files | {"tinypack/_C.abi3.so": path.read_bytes()}


@pytest.mark.parametrize(
    ("source", "flags", "evidence"),
    [
        (EXTENSION, ("-Wl,-rpath,/opt/env/lib",), "RUNPATH '/opt/env/lib'"),
        (EXTENSION, ("-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags"), "RPATH '$ORIGIN'"),
        (EXTENSION, ("-z", "execstack"), "its stack is executable"),
        (EXTENSION + DEVICE_CODE, (), "4096 bytes of device code, the recipe expects none"),
    ],
)
def test_flaws_of_a_library(
    plan: FinishPlan,
    console: Console,
    files: dict[str, bytes],
    tmp_path: Path,
    source: str,
    flags: tuple[str, ...],
    evidence: str,
) -> None:
    again(plan, with_library(files, tmp_path, source, *flags))
    error = refused(plan, console, WheelError)
    assert "tinypack/_C.abi3.so" in error.what
    assert any(line.startswith(evidence) for line in error.evidence)


def test_device_code_that_is_missing(plan: FinishPlan, console: Console) -> None:
    plan = dataclasses.replace(plan, extensions=dict.fromkeys(plan.extensions, True))
    assert "expects some" in refused(plan, console, WheelError).evidence[0]


def test_a_strip_that_does_nothing_or_too_much(plan: FinishPlan, console: Console) -> None:
    lazy = dataclasses.replace(plan, strip=lambda paths: None)
    assert "not stripped" in refused(lazy, console, WheelError).evidence[0]

    def harsh(paths: list[Path]) -> None:
        host_strip(paths)
        for path in paths:
            subprocess.run(["objcopy", "--remove-section=.nv_fatbin", str(path)], check=True)

    eager = dataclasses.replace(plan, strip=harsh)
    assert "device_code differs" in " ".join(refused(eager, console, WheelError).evidence)


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_other_libraries_than_the_recipes(
    plan: FinishPlan, console: Console, files: dict[str, bytes], change: str
) -> None:
    if change == "missing":
        again(plan, {k: v for k, v in files.items() if "_moe_C" not in k})
        wanted = "missing: tinypack/_moe_C.abi3.so"
    else:
        again(plan, files | {"tinypack/data.bin": files["tinypack/_C.abi3.so"]})
        wanted = "not expected: tinypack/data.bin"
    assert wanted in refused(plan, console, WheelError).evidence


# Case E4.
@pytest.mark.parametrize("name", ["libcuda.so.1", "libtorch.so", "libcudart.so.12", "libc10.so"])
def test_libraries_that_others_bring(
    plan: FinishPlan, console: Console, files: dict[str, bytes], name: str
) -> None:
    again(plan, files | {f"tinypack.libs/{name}": files["tinypack/_C.abi3.so"]})
    assert f"tinypack.libs/{name}" in refused(plan, console, WheelError).evidence


def test_a_needed_library_no_policy_has(
    plan: FinishPlan, console: Console, files: dict[str, bytes], tmp_path: Path
) -> None:
    compile_library(
        tmp_path / "lib" / "libodd.so.7", "int odd(void) { return 1; }", "-Wl,-soname,libodd.so.7"
    )
    source = EXTENSION + "int odd(void); int use(void) { return odd(); }"
    again(plan, with_library(files, tmp_path, source, str(tmp_path / "lib" / "libodd.so.7")))
    assert "libodd.so.7" in refused(plan, console, PlatformTagError).evidence[0]
    assert finish(
        dataclasses.replace(plan, excluded_libraries=(*ELSEWHERE, "libodd*")), console
    ).platform_tag


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tinypack/config.py", b"CACHE = '/srv/builder/.cache/x'\n"),
        ("tinypack/table.bin", b"\0\xff/home/someone/vllm/csrc/x.cu\0"),
    ],
)
def test_paths_of_the_building_machine(
    plan: FinishPlan, console: Console, files: dict[str, bytes], name: str, data: bytes
) -> None:
    again(plan, files | {name: data})
    error = refused(plan, console, WheelError)
    assert error.evidence[0].startswith(f"{name} at byte {data.index(b'/')}: ")


def test_the_directories_of_input_and_output_are_refused_unasked(
    plan: FinishPlan, console: Console, files: dict[str, bytes]
) -> None:
    again(plan, files | {"tinypack/p.py": f"P = '{plan.raw.parent}/x'\n".encode()})
    assert "tinypack/p.py" in refused(plan, console, WheelError).evidence[0]


def test_a_path_in_the_facts_does_not_slip_through(plan: FinishPlan, console: Console) -> None:
    plan = dataclasses.replace(plan, facts={"toolkit": "/home/someone/cuda"})
    assert "pinwheel.json" in refused(plan, console, WheelError).evidence[0]


def test_canonical_paths_are_counted(
    plan: FinishPlan, console: Console, files: dict[str, bytes]
) -> None:
    again(plan, files | {"tinypack/b.bin": b"\0/build/src/a.cpp\0/build/src/b.cpp\0/opt/env/x\0"})
    done = finish(
        dataclasses.replace(plan, reported_paths=("/build/", "/opt/env", "/opt/cuda")), console
    )
    assert done.paths_inside == {"tinypack/b.bin": {"/build/": 2, "/opt/env": 1}}
    beside = json.loads(Path(f"{done.path}.manifest.json").read_bytes())
    assert beside["paths-inside"] == done.paths_inside


def test_compiled_python_is_refused(
    plan: FinishPlan, console: Console, files: dict[str, bytes]
) -> None:
    again(plan, files | {"tinypack/__pycache__/x.cpython-311.pyc": b"\0"})
    assert refused(plan, console, WheelError).evidence[0].endswith(".pyc")


def test_a_lock_that_metadata_contradicts(plan: FinishPlan, console: Console) -> None:
    locked = {"torch": "2.3.0", "numpy": "2.1.0", "xformers": "0.0.27.post2"}
    error = refused(dataclasses.replace(plan, locked=locked), console, WheelError)
    assert error.evidence == ("METADATA: numpy<2.0.0; lock: numpy 2.1.0",)


def test_a_package_that_is_not_there(plan: FinishPlan, console: Console) -> None:
    error = refused(dataclasses.replace(plan, package="other"), console, WheelError)
    assert "no package other" in error.what


def test_a_pure_wheel_is_for_any_platform(
    plan: FinishPlan, console: Console, files: dict[str, bytes]
) -> None:
    pure = {k: v for k, v in files.items() if not k.endswith(".so")}
    done = finish(dataclasses.replace(again(plan, pure), extensions={}), console)
    assert done.path.name.endswith("-1-cp38-abi3-any.whl")


def test_purelib_with_libraries_is_refused(
    plan: FinishPlan, console: Console, files: dict[str, bytes]
) -> None:
    again(plan, files, wheel=WHEEL.replace(b"false", b"true"))
    assert "Root-Is-Purelib" in refused(plan, console, WheelError).what


# --- a packer that runs elsewhere --------------------------------------------------------------


def rezip(
    change: Callable[[dict[str, bytes]], dict[str, bytes]],
) -> Callable[[Path, Path, int], None]:
    def packer(tree: Path, wheel: Path, epoch: int) -> None:
        from pinwheel.build.zipping import pack

        pack(tree, wheel, epoch)
        with zipfile.ZipFile(wheel) as archive:
            whole = {n: archive.read(n) for n in archive.namelist()}
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, data in change(whole).items():
                archive.writestr(name, data)

    return packer


@pytest.mark.parametrize(
    "packer",
    [
        lambda tree, wheel, epoch: None,
        lambda tree, wheel, epoch: wheel.write_bytes(b"PK"),
        rezip(lambda w: dict(list(w.items())[1:])),
        rezip(lambda w: dict(reversed(w.items()))),
        rezip(lambda w: w | {"tinypack/__init__.py": b"import os"}),
    ],
)
def test_a_packer_that_lies(
    plan: FinishPlan, console: Console, packer: Callable[[Path, Path, int], None]
) -> None:
    refused(dataclasses.replace(plan, pack=packer), console, WheelError)


def test_a_time_no_zip_can_name(plan: FinishPlan, console: Console) -> None:
    refused(dataclasses.replace(plan, source_date_epoch=9_999_999_999), console, WheelError)


# --- hostile and contradictory raw wheels ------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "/etc/evil.py",
        "tinypack/../../evil.py",
        "a\\b.py",
        "tinypack/./x.py",
        "a//b.py",
    ],
)
def test_names_that_lead_out_or_are_not_normal(
    plan: FinishPlan, console: Console, files: dict[str, bytes], name: str
) -> None:
    again(plan, files | {name: b"x"})
    refused(plan, console, PinwheelError)
    assert not (plan.out_dir.parent.parent / "evil.py").exists()


def test_a_name_that_is_there_twice(
    plan: FinishPlan, console: Console, files: dict[str, bytes]
) -> None:
    with zipfile.ZipFile(plan.raw, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("tinypack/__init__.py", b"import os\n")
    refused(plan, console, UnpackError)


def test_a_file_where_a_directory_is(
    plan: FinishPlan, console: Console, files: dict[str, bytes]
) -> None:
    again(plan, files | {"tinypack/__init__.py/x.py": b""})
    refused(plan, console, UnpackError)


def test_a_symlink(plan: FinishPlan, console: Console) -> None:
    with zipfile.ZipFile(plan.raw, "a") as archive:
        info = zipfile.ZipInfo("tinypack/link")
        info.create_system = 3
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    refused(plan, console, UnpackError)


def test_a_bomb(plan: FinishPlan, console: Console, files: dict[str, bytes]) -> None:
    again(plan, files | {"tinypack/zeros.bin": bytes(80 << 20)})
    assert "more than" in refused(plan, console, UnpackError).what


@pytest.mark.parametrize("data", [b"", b"PK", b"no zip at all" * 100])
def test_no_zip(plan: FinishPlan, console: Console, data: bytes) -> None:
    plan.raw.write_bytes(data)
    refused(plan, console, WheelError)


def test_a_damaged_member(plan: FinishPlan, console: Console) -> None:
    data = bytearray(plan.raw.read_bytes())
    at = data.index(b"\x7fELF") if b"\x7fELF" in data else len(data) // 2
    data[at : at + 64] = bytes(64)
    plan.raw.write_bytes(data)
    refused(plan, console, PinwheelError)


def lies(text: bytes) -> Iterator[tuple[str, bytes]]:
    lines = text.splitlines(keepends=True)
    yield "a hash is wrong", text.replace(b"sha256=", b"sha256=A", 1)
    yield "a hash is missing", text.replace(lines[0].split(b",")[1], b"", 1)
    yield "md5", text.replace(b"sha256=", b"md5=", 1)
    yield "a line is missing", b"".join(lines[1:])
    yield "a line is there twice", text + lines[0]
    yield "a file is listed that is not there", text + b"ghost.py,sha256=x,1\n"
    yield "a file outside is listed", text + b"../../etc/passwd,sha256=x,1\n"
    yield "no fields", text + b"nonsense\n"
    yield "quotes that do not end", text + b'"' + b"x" * 100
    yield "not UTF-8", text + b"\xff,,\n"
    yield "empty", b""


@pytest.mark.parametrize("what", [w for w, _ in lies(b"a,sha256=x,1\n")])
def test_a_record_that_lies(
    plan: FinishPlan, console: Console, files: dict[str, bytes], what: str
) -> None:
    info = "tinypack-0.6.3.dist-info"
    true = record({**files, f"{info}/METADATA": METADATA, f"{info}/WHEEL": WHEEL}, info)
    again(plan, files, records=dict(lies(true))[what])
    assert "RECORD" in refused(plan, console, WheelError).what


def test_a_signed_record_is_refused_not_silently_broken(plan: FinishPlan, console: Console) -> None:
    with zipfile.ZipFile(plan.raw, "a") as archive:
        archive.writestr("tinypack-0.6.3.dist-info/RECORD.jws", b"{}")
    assert "RECORD.jws" in refused(plan, console, WheelError).evidence[0]


# Case E2.
@pytest.mark.parametrize(
    ("raw", "wheel"),
    [
        ("tinypack-0.6.4-cp38-abi3-linux_x86_64.whl", {}),
        (RAW, {"metadata": METADATA.replace(b"Version: 0.6.3", b"Version: 0.6.4")}),
        (RAW, {"info": "tinypack-0.6.4.dist-info"}),
        ("other-0.6.3-cp38-abi3-linux_x86_64.whl", {}),
        (RAW, {"metadata": METADATA.replace(b"Name: tinypack", b"Name: other")}),
        (RAW, {"info": "other-0.6.3.dist-info"}),
        ("tinypack-0.6.3-cp311-cp311-linux_x86_64.whl", {}),
        (RAW, {"wheel": WHEEL.replace(b"abi3", b"none")}),
        (RAW, {"wheel": b""}),
        (RAW, {"metadata": METADATA + b" " * (17 << 20)}),
        ("tinypack.whl", {}),
    ],
)
def test_names_and_versions_that_contradict_each_other(
    plan: FinishPlan, console: Console, files: dict[str, bytes], raw: str, wheel: dict[str, Any]
) -> None:
    path = write_wheel(plan.raw.with_name(raw), files, **wheel)
    refused(dataclasses.replace(plan, raw=path), console, WheelError)


def test_two_dist_info_directories(
    plan: FinishPlan, console: Console, files: dict[str, bytes]
) -> None:
    again(plan, files | {"other-1.dist-info/METADATA": b""})
    assert "one dist-info" in refused(plan, console, WheelError).what


# --- the disk ----------------------------------------------------------------------------------


def test_dist_is_a_file(plan: FinishPlan, console: Console, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotWritableError):
        finish(dataclasses.replace(plan, out_dir=tmp_path / "file" / "combo"), console)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 kB, writable or not."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], capture_output=True
    ).returncode:
        pytest.skip("may not mount here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_seen_before_anything_is_written(
    plan: FinishPlan, console: Console, files: dict[str, bytes], small_disk: Path
) -> None:
    again(plan, files | {"tinypack/big.bin": os.urandom(300_000)})
    plan = dataclasses.replace(plan, out_dir=small_disk / "dist" / "combo")
    assert "finishing takes" in refused(plan, console, DiskFullError).evidence[0]


def test_a_disk_that_fills_up_on_the_way(
    plan: FinishPlan, console: Console, small_disk: Path
) -> None:
    plan = dataclasses.replace(plan, out_dir=small_disk / "dist" / "combo")

    def fill(paths: list[Path]) -> None:
        host_strip(paths)
        subprocess.run(["dd", "if=/dev/zero", f"of={small_disk}/full"], capture_output=True)

    with pytest.raises(DiskFullError):
        finish(dataclasses.replace(plan, strip=fill), console)
    assert list((small_disk / "dist").rglob("*")) == [plan.out_dir]


def test_a_read_only_dist(plan: FinishPlan, console: Console, small_disk: Path) -> None:
    (small_disk / "combo").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(NotWritableError):
        finish(dataclasses.replace(plan, out_dir=small_disk / "combo"), console)

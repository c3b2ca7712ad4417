"""The whole pipeline for real on the test package: from its lock to a proven wheel.

Real archives, index, nvcc, torch and sandbox; the command runs as people run it. Some GB are
fetched once into the machine's cache and used again; what is compiled is compiled anew each time.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from pipeline_kit import (
    BUILD,
    COMBO,
    ROOT,
    TOOLKIT,
    Answer,
    Made,
    Place,
    fresh_cache,
    kill_when,
    made,
    once_compiled,
    remount,
    small_disk,
    wait_for,
)

from pinwheel.files import sha256_file
from pinwheel.recipe.load import load_recipe
from pinwheel.recipe.lock import Role
from pinwheel.recipe.models import Recipe
from pinwheel.settings import load_settings

PACKAGE = Path(__file__).parents[1] / "packages" / "pinprobe-0.1.0"
ALL = ("8.0", "8.6", "8.9", "9.0")
VERSION = "0.1.0+cu130.torch2.11"
LIBRARIES = ("pinprobe/_C.abi3.so", "pinprobe/_C_stable_libtorch.abi3.so")
SOURCES = 6
# No network at all where that may be had; else proxies that lead nowhere.
NOWHERE = "http://127.0.0.1:9"
CUT_OFF = (
    ("unshare", "--net") if ROOT else ("env", f"HTTP_PROXY={NOWHERE}", f"HTTPS_PROXY={NOWHERE}")
)
# Bytes of writable memory for any one process: importing torch (0.7 GB) fits, and every source.
TIGHT = 1 << 30

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(2700)]
needs_root = pytest.mark.skipif(not ROOT, reason="may not mount file systems")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, probe_index: str, make_index: Any) -> Place:
    """The test project with a lock of today and a full store.

    The lock is written here and not kept: how gzip packs the sdist differs from one Python to the
    next, and Debian's archive drops files at each point release.
    """
    base = tmp_path_factory.mktemp("locked")
    packages = Path(make_index.HERE)
    project = base / "project"
    project.mkdir()
    shutil.copy(packages / "arch_matrix.toml", project)
    for name in ("recipes", "patches"):
        shutil.copytree(packages / name, project / name)
    index = " ".join((probe_index, *load_settings(project).index))
    cache = fresh_cache(base / "cache")
    place = Place(project=project, dist=base / "dist", cache=cache, index=index)
    answer = place.run("lock", "--combo", COMBO)
    assert answer.code == 0, answer
    answer = place.run("fetch", "--combo", COMBO)
    assert answer.code == 0, answer
    return place


@pytest.fixture
def elsewhere(locked: Place, tmp_path: Path) -> Place:
    """The locked project with nothing built: own copy of it, own dist, own cache."""
    place = locked.with_project(tmp_path / "project")
    return replace(place, dist=tmp_path / "dist", cache=fresh_cache(tmp_path / "cache"))


@pytest.fixture(scope="module")
def first(locked: Place) -> Made:
    """The wheel for all four capabilities, compiled from nothing."""
    return made(locked, locked.build())


@pytest.fixture(scope="module")
def killed(locked: Place, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The wheel for 8.0 alone, from a build that was killed in unpacking and in compiling."""
    base = tmp_path_factory.mktemp("killed")
    roots = base / "roots"
    cache = fresh_cache(base / "cache", roots=roots)
    place = replace(locked, dist=base / "dist", cache=cache)
    command = (*BUILD, "--archs", "8.0")

    def unpacking(process: subprocess.Popen[bytes]) -> None:
        wait_for(lambda: list(roots.glob("*.partial/usr/bin/*")), process, 1500)

    kill_when(place, base / "unpack.log", unpacking, *command)
    assert [p.suffix for p in roots.iterdir() if p.is_dir()] == [".partial"]
    done = kill_when(place, base / "compile.log", once_compiled(place, 1), *command)
    (root,) = (p for p in roots.iterdir() if p.is_dir())
    assert root.suffix == ""
    answer = place.build("--archs", "8.0")
    assert "taking up the build where it stopped" in answer.err, answer
    compiles = place.compiles()
    assert done
    assert len(compiles) == SOURCES
    assert [len(compiles[step]) for step in done] == [1] * len(done), compiles
    return made(place, answer)


def recipe_of(place: Place) -> Recipe:
    settings = load_settings(env=place.environment())
    return load_recipe(settings, COMBO).recipe


def unpacked(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {i.filename: archive.read(i) for i in archive.infolist()}


def refused(answer: Answer, code: int, *said: str) -> str:
    """What a refusal said on stderr: the documented code, the pieces given, and no traceback."""
    assert answer.code == code, answer
    for text in said:
        assert re.search(text, answer.err), f"{text}: {answer}"
    assert "Traceback" not in answer.err + answer.out, answer
    assert "next: " in answer.err
    assert answer.json()["exit_code"] == code
    return answer.err


# --- the wheel ------------------------------------------------------------------------------


def test_the_lock_names_no_host_and_is_fresh(locked: Place) -> None:
    assert locked.run("lock", "--combo", COMBO, "--check", "--offline").code == 0
    text = locked.lock_file.read_text()
    assert "://" not in text
    assert "127.0.0.1" not in text
    roles = {role for item in locked.lock.inputs for role in item.roles}
    assert roles >= {Role.SOURCE, Role.PATCH, Role.TOOLKIT, Role.ROOT, Role.BUILD, Role.RUN}


def test_dist_holds_wheel_manifest_and_sums(first: Made) -> None:
    directory = first.place.dist / COMBO
    names = {f"{first.wheel.name}", f"{first.wheel.name}.manifest.json", "SHA256SUMS"}
    assert {p.name for p in first.place.files} == names
    assert [p for p in first.place.dist.rglob("*") if p.is_dir()] == [directory]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=directory, check=True)
    report = first.answer.json()
    assert report["sha256"] == first.sha256
    assert report["size"] == first.wheel.stat().st_size
    assert report["build"]["sources"] == SOURCES
    assert report["build"]["cache-hits"] == 0
    assert report["build"]["peak-bytes"] > 100 << 20


def test_a_dry_run_sees_what_the_build_has_made(first: Made) -> None:
    plan = first.place.build("--dry-run").json()
    assert plan["unchanged"] == str(first.wheel)
    assert plan["there"] == [{"wheel": str(first.wheel), "same-lock": True}]
    assert plan["would-stop"] == []
    made = {name for name, part in plan["workbench"].items() if part["made"]}
    assert made == {*plan["workbench"]} - {"environment of the proof"}
    assert plan["store"]["download"] == plan["disk"]["download"] == 0
    assert plan["compile"]["sources"] == plan["compile"]["compiled"] == SOURCES
    # For another list the times of this one stand in.
    other = first.place.build("--dry-run", "--archs", "8.0").json()["compile"]
    assert (other["sources"], other["compiled"]) == (SOURCES, 0)
    assert other["seconds"] > 0
    assert other["basis"].startswith("by a build for 4 capabilities")


def test_the_wheel_says_what_it_is(first: Made) -> None:
    name = re.fullmatch(
        rf"pinprobe-{re.escape(VERSION)}-1-cp311-abi3-(manylinux_2_(\d+)_x86_64)\.whl",
        first.wheel.name,
    )
    assert name, first.wheel.name
    files = unpacked(first.wheel)
    info = f"pinprobe-{VERSION}.dist-info"
    metadata = BytesParser().parsebytes(files[f"{info}/METADATA"])
    assert metadata["Version"] == VERSION
    assert sorted(metadata.get_all("Requires-Dist", [])) == [
        "torch==2.11.0",
        "typing_extensions>=4.10.0",
    ]
    wheel = BytesParser().parsebytes(files[f"{info}/WHEEL"])
    assert wheel.get_all("Tag") == [f"cp311-abi3-{name[1]}"]
    assert wheel.get_all("Build") == ["1"]
    assert VERSION in files["pinprobe/_version.py"].decode()
    assert b"2.11.0" in files["pinprobe/_pinwheel.py"]
    needed = [needs_glibc(first.wheel, library) for library in LIBRARIES]
    assert (2, int(name[2])) >= max(needed)


def elf(wheel: Path, library: str) -> ELFFile:
    archive = zipfile.ZipFile(wheel)
    return ELFFile(archive.open(library))


def needs_glibc(wheel: Path, library: str) -> tuple[int, int]:
    """The newest GLIBC_x.y a library asks for."""
    section = elf(wheel, library).get_section_by_name(".gnu.version_r")
    assert isinstance(section, GNUVerNeedSection)
    names = [a.name for _, auxiliaries in section.iter_versions() for a in auxiliaries]
    found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name) for name in names]
    return max((int(m[1]), int(m[2])) for m in found if m)


def test_libraries_have_no_search_path_and_no_build_path(first: Made) -> None:
    for library in LIBRARIES:
        dynamic = elf(first.wheel, library).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        tags = {tag.entry.d_tag for tag in dynamic.iter_tags()}
        assert not tags & {"DT_RPATH", "DT_RUNPATH"}
    own = load_settings(Path(__file__).parent).cache
    paths = (str(first.place.cache), str(first.place.project), str(own), "/build/src", "/opt/cuda")
    for name, data in unpacked(first.wheel).items():
        assert not [p for p in paths if p.encode() in data], name


def test_the_manifest_counts_the_cubins_that_are_there(first: Made, tmp_path: Path) -> None:
    manifest = manifest_of(first)
    assert manifest["capabilities"] == list(ALL)
    with zipfile.ZipFile(first.wheel) as archive:
        archive.extractall(tmp_path)
    # The machine's cache may hold the toolkit of other locks too; any of them reads the same.
    cuobjdump = min((first.place.cache / "toolkits").glob(f"{TOOLKIT}-*/bin/cuobjdump"))
    wanted = {f"sm_{c.replace('.', '')}" for c in ALL}
    for library in LIBRARIES:
        listed = subprocess.run(
            [cuobjdump, "--list-elf", library],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        seen = Counter(re.findall(r"\.(sm_\d+[af]?)\.cubin", listed))
        assert manifest["libraries"][library]["cubins"] == seen
        assert set(seen) == wanted
    # rotate.cu leaves 8.6 and 8.9 to the code for 8.0, as its CMake lists say.
    cubins = manifest["libraries"][LIBRARIES[0]]["cubins"]
    assert cubins["sm_80"] == cubins["sm_86"] + 1


def manifest_of(build: Made) -> dict[str, Any]:
    info = f"pinprobe-{VERSION}.dist-info"
    manifest: dict[str, Any] = json.loads(unpacked(build.wheel)[f"{info}/pinwheel.json"])
    return manifest


def test_the_manifest_says_nothing_of_host_user_or_time(first: Made) -> None:
    manifest = manifest_of(first)
    text = json.dumps(manifest)
    for word in (socket.gethostname(), str(Path.home()), str(first.place.project.parent), "://"):
        assert word not in text, word
    assert not re.search(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", text)
    assert manifest["lock-sha256"] == sha256_file(first.place.lock_file)
    assert manifest["toolkit"]["nvcc"] == "13.0.88"
    assert manifest["torch"] == {"version": "2.11.0", "cuda": "13.0", "cxx11-abi": True}


def test_the_proof_saw_the_operators_of_the_recipe(first: Made) -> None:
    proof = first.answer.json()["proof"]
    assert proof["version"] == VERSION
    assert proof["torch"] == "2.11.0+cu130"
    expected = {n: sorted(e.operators) for n, e in recipe_of(first.place).extensions.items()}
    assert proof["operators"] == expected
    assert sum(map(len, expected.values())) == 5
    assert proof["entry-points"]["pinprobe --help"].startswith("usage: pinprobe")
    for library in ("libtorch", "libtorch_cuda", "libc10", "libcudart"):
        assert library in proof["libraries"]


def test_the_toolkit_was_proven_for_every_capability(first: Made) -> None:
    toolkits = first.place.cache / "toolkits"
    assert list(toolkits.glob(f"{TOOLKIT}-*.proven-*-sm_80-sm_86-sm_89-sm_90"))


def test_progress_is_plain_lines_with_job_count_and_sources(first: Made) -> None:
    said = first.answer.err
    assert "\x1b" not in said
    assert "2 compilers at once, asked for" in said
    assert f"of {SOURCES} sources" in said
    for source in ("csrc/activation.cu", "csrc/rotate.cu", "csrc/stable/scale.cu"):
        assert re.search(rf"compiled {source} in ", said), source
    logs = first.place.work / "logs" / "sources"
    assert len([p for p in logs.glob("*.log") if "csrc" in p.name]) == SOURCES


# --- again ----------------------------------------------------------------------------------


def test_again_takes_seconds_and_says_that_nothing_changed(first: Made) -> None:
    before = first.wheel.stat()
    answer = first.place.build()
    assert answer.code == 0, answer
    assert answer.json()["unchanged"] is True
    assert answer.json()["sha256"] == first.sha256
    assert "nothing changed" in answer.err
    assert answer.seconds < 30
    assert first.wheel.stat().st_mtime_ns == before.st_mtime_ns


def test_offline_elsewhere_gives_the_same_bytes(first: Made, elsewhere: Place) -> None:
    """D4: nothing but the store, in another directory; the compile cache is the first build's."""
    place = replace(only_what_is_new(elsewhere, first), index=NOWHERE)
    again = made(place, place.build("--offline", prefix=CUT_OFF))
    assert again.sha256 == first.sha256
    report = again.answer.json()
    assert report["unchanged"] is False
    # CMake's own questions are compiled too, and not all of them can be cached.
    assert report["build"]["cache-misses"] <= 2
    assert report["build"]["cache-hits"] > SOURCES


@pytest.mark.faults
def test_a_killed_build_goes_on_and_is_named_by_its_capability(killed: Made) -> None:
    """What the fixture saw: nothing compiled twice, nothing in dist before the end."""
    assert killed.wheel.name.startswith(f"pinprobe-{VERSION}-0sm80-cp311-abi3-")
    for library in manifest_of(killed)["libraries"].values():
        assert set(library["cubins"]) == {"sm_80"}


# --- what goes wrong on the way ---------------------------------------------------------------

PATCH = """\
Subject: A source that fails
Why: The error a person gets for it is what this tests.
Upstream: not sent; for this test only
Checked-by: tests/integration/test_pipeline.py

--- a/{name}
+++ b/{name}
@@ -1,1 +1,2 @@
 {first}
+{added}
"""


def add_line(place: Place, name: str, added: str) -> None:
    """Put a line behind the first of a source, by a patch of the series."""
    (series,) = (place.project / "patches").glob("*/*")
    first = (PACKAGE / name).read_text().splitlines()[0]
    text = PATCH.format(name=name, first=first, added=added)
    (series / "0002-fail.patch").write_text(text)
    place.freshen()


def only_what_is_new(place: Place, other: Made) -> Place:
    """The place with the compile cache of another build, so that a changed source alone counts."""
    cache = fresh_cache(place.cache.with_name("warm"), sccache=other.place.cache / "sccache")
    return replace(place, cache=cache)


@pytest.mark.faults
def test_a_failing_source_is_named_with_command_log_and_message(
    killed: Made, elsewhere: Place
) -> None:
    add_line(elsewhere, "csrc/rotate.cu", "static int broken = no_such_name;")
    place = only_what_is_new(elsewhere, killed)
    answer = place.build("--archs", "8.0", "--offline")
    said = refused(
        answer,
        40,
        r"csrc/rotate\.cu did not compile",
        r"command: /opt/cuda/bin/nvcc .*-c /build/src/csrc/rotate\.cu",
        r'\| .*rotate\.cu\(2\): error: identifier "no_such_name" is undefined',
        r"cause: .*no_such_name",
    )
    log = re.search(r"log: (\S+rotate\S+\.log)", said)
    assert log
    assert "no_such_name" in Path(log[1]).read_text()
    assert place.files == []


@pytest.mark.faults
def test_out_of_memory_is_recognised_and_names_a_job_count(killed: Made, elsewhere: Place) -> None:
    """D2: a source whose templates take gigabytes, and no process may have as much."""
    name = "csrc/stable/torch_bindings.cpp"
    tree = (
        "template <int D, long N> struct Node "
        "{ enum : long { v = Node<D - 1, 2 * N>::v + Node<D - 1, 2 * N + 1>::v }; }; "
        "template <long N> struct Node<0, N> { enum : long { v = N }; }; "
        "long all = Node<24, 0>::v;"
    )
    add_line(elsewhere, name, tree)
    place = only_what_is_new(elsewhere, killed)
    limited = ("prlimit", f"--data={TIGHT}")
    answer = place.build("--archs", "8.0", "--offline", prefix=limited)
    refused(
        answer,
        41,
        rf"{re.escape(name)} did not compile: out of memory, with 2 compilers at once \(asked for",
        rf"command: /usr/bin/g\+\+ .*-c /build/src/{re.escape(name)}",
        r"cause: .*out of memory|cause: .*Cannot allocate memory",
        r"next: Run it again with --jobs 1",
        r"log: \S+\.log",
    )
    assert place.files == []


@pytest.mark.faults
@needs_root
def test_a_full_work_disk_is_an_error_of_its_own_and_resumed(
    killed: Made, elsewhere: Place
) -> None:
    """D10; the two wheels for 8.0 also show that compiling twice gives the same bytes."""
    with small_disk(elsewhere.cache / "work", "3m") as disk:
        answer = elsewhere.build("--archs", "8.0", "--offline")
        refused(answer, 23, "no space left to write")
        assert elsewhere.files == []
        remount(disk, "size=200m")
        again = made(elsewhere, elsewhere.build("--archs", "8.0", "--offline"))
        assert "taking up the build where it stopped" in again.answer.err
        assert again.sha256 == killed.sha256


@pytest.mark.faults
@needs_root
@pytest.mark.parametrize("more", [-16, 0], ids=["no room for the wheel", "room for it alone"])
def test_a_full_dist_keeps_nothing_half_written(killed: Made, tmp_path: Path, more: int) -> None:
    kib = -(-killed.wheel.stat().st_size // 4096) * 4 + more
    with small_disk(tmp_path / "dist", f"{kib}k") as disk:
        place = replace(killed.place, dist=disk)
        answer = place.build("--archs", "8.0", "--offline", "--again")
        refused(answer, 23, re.escape(str(disk)))
        assert place.files == []
        assert [p.name for p in disk.iterdir()] == [COMBO]


@needs_root
def test_an_unwritable_dist_is_found_before_the_work(locked: Place, tmp_path: Path) -> None:
    with small_disk(tmp_path / "dist", "64k") as disk:
        remount(disk, "ro")
        place = replace(locked, dist=disk, cache=fresh_cache(tmp_path / "cache"))
        answer = place.build("--offline")
        refused(answer, 24, re.escape(str(disk)))
        assert answer.seconds < 30
        assert not (place.cache / "work").exists()


# --- the store --------------------------------------------------------------------------------


@pytest.fixture
def own_store(elsewhere: Place, locked: Place, tmp_path: Path) -> Place:
    """A place whose store may be spoilt: links to the real files."""
    store = tmp_path / "store"
    for item in locked.lock.inputs:
        path = Path("sha256") / item.sha256[:2] / item.sha256
        (store / path.parent).mkdir(parents=True, exist_ok=True)
        if not (store / path).is_symlink():
            (store / path).symlink_to((locked.cache / "store" / path).resolve())
    return replace(elsewhere, cache=fresh_cache(tmp_path / "own", store=store))


def stored(place: Place, sha256: str) -> Path:
    return place.cache / "store" / "sha256" / sha256[:2] / sha256


def test_other_bytes_in_the_store_are_refused_and_kept_aside(own_store: Place) -> None:
    """D6: one bit of the source is another one."""
    (source,) = own_store.lock.with_role(Role.SOURCE)
    path = stored(own_store, source.sha256)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    answer = own_store.build("--offline")
    said = refused(answer, 21, source.name, source.sha256, hashlib.sha256(data).hexdigest())
    kept = re.search(r"kept at (\S+)", said)
    assert kept
    assert Path(kept[1]).read_bytes() == data
    assert not path.exists()
    assert own_store.files == []
    mended = own_store.run("fetch", "--combo", COMBO)
    assert mended.code == 0, mended
    assert sha256_file(path) == source.sha256


def test_offline_lists_every_missing_input_at_once(own_store: Place) -> None:
    """D5: before anything is unpacked or compiled."""
    lock = own_store.lock
    gone = [lock.with_role(role)[0] for role in (Role.SOURCE, Role.ROOT, Role.TOOLKIT, Role.RUN)]
    for item in gone:
        stored(own_store, item.sha256).unlink()
    answer = own_store.build("--offline", prefix=CUT_OFF)
    said = refused(answer, 22, *(i.sha256 for i in gone), f"pinwheel fetch --combo {COMBO}")
    assert len(re.findall(r"\b[0-9a-f]{64}\b", said)) == len(gone)
    assert own_store.files == []
    assert not list((own_store.cache / "work").glob("*/src"))


# --- what a person wrote ----------------------------------------------------------------------


def spoil_matrix(place: Place) -> None:
    place.change(place.project / "arch_matrix.toml", "matrix-version = 1", "matrix-version = x")


def spoil_recipe(place: Place) -> None:
    place.change(place.recipe, 'python = "3.11"', "python = 3.11")


def spoil_lock(place: Place) -> None:
    place.change(place.lock_file, "size = ", "size = -")


def change_recipe(place: Place) -> None:
    place.change(place.recipe, "job-memory-gib = 1.5", "job-memory-gib = 2.5")


def change_nothing(place: Place) -> None:
    pass


@pytest.mark.parametrize(
    ("spoil", "arguments", "code", "said"),
    [
        (spoil_matrix, (), 10, r"arch_matrix\.toml:2\b"),
        (change_nothing, ("--combo", "cu130-torch2.10-pinprobe0.1.0"), 11, f"nearest: {COMBO}"),
        (spoil_recipe, (), 12, r"recipe\.toml:\d+.*python"),
        (spoil_lock, (), 13, r"lock\.wheels-13\.0\.88\.toml:\d+.*size"),
        (change_nothing, ("--archs", "8.0;native"), 14, "native"),
        (change_nothing, ("--archs", "10.3"), 14, r"10\.3"),
        (change_recipe, (), 16, "pinwheel lock --combo"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_bad_input_is_one_error_and_nothing_is_written(
    elsewhere: Place,
    spoil: Callable[[Place], None],
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    spoil(elsewhere)
    refused(elsewhere.build(*arguments), code, said)
    assert not elsewhere.dist.exists()
    assert not (elsewhere.cache / "work").exists()

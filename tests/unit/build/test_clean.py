from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinwheel.build.clean import (
    DAY,
    Cleaning,
    Fate,
    Kind,
    clean,
    remember_order,
    remove_superseded,
)
from pinwheel.build.work import Work
from pinwheel.buildroot.lastuse import last_used, lock_of, mark_used
from pinwheel.cli.main import main
from pinwheel.files import file_lock
from pinwheel.inspect.wheel import open_wheel
from pinwheel.settings import Settings, load_settings

COMBO = "cu121-torch2.3-vllm0.6.3"
KEY = "9bde172b67e8fb86"
HEX = "6dcb596d7e443a6f497b65299ab0597c"
NOW = 1_800_000_000.0
MIB = 1 << 20


class Cache:
    """A cache with one of each part, last used ``days`` ago."""

    def __init__(self, path: Path, project: Path) -> None:
        self.path = path
        self.settings: Settings = load_settings(project, {"PINWHEEL_CACHE": str(path)})

    def make(self, name: str, days: float = 100, size: int = MIB) -> Path:
        path = self.path / name
        path.mkdir(parents=True)
        (path / "data").write_bytes(os.urandom(size))
        self.used(path, days)
        return path

    def used(self, path: Path, days: float) -> None:
        lock = lock_of(path.with_name(path.name.removesuffix(".partial")))
        lock.touch()
        for each in (path, lock):
            os.utime(each, (NOW - days * DAY,) * 2)

    def clean(self, older_than: int = 30, *, dry_run: bool = False) -> Cleaning:
        return clean(self.settings, older_than=older_than, dry_run=dry_run, now=NOW)

    def fates(self, **options: Any) -> dict[str, tuple[Fate, str]]:
        parts = self.clean(**options).parts
        return {str(p.path.relative_to(self.path)): (p.fate, p.reason) for p in parts}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    (tmp_path / "project").mkdir()
    return Cache(tmp_path / "cache", tmp_path / "project")


WORK, ENV, ROOT = f"work/{COMBO}-{KEY}", f"envs/{HEX}", f"roots/{HEX}"
TOOLKIT, TOOLS = f"toolkits/debian-12.4.131-{KEY}", f"tools/{HEX}"
ALL = (WORK, ENV, ROOT, TOOLKIT, TOOLS)


@contextmanager
def held_elsewhere(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """The lock as another process would hold it: by a file opened on its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, how)
        yield


def test_an_empty_cache(cache: Cache) -> None:
    done = cache.clean()
    assert (done.parts, done.size, done.freed) == ((), 0, 0)
    assert not cache.path.exists()


def test_what_was_not_used_for_long_goes_and_the_rest_stays(cache: Cache) -> None:
    for name in ALL:
        cache.make(name)
    young = [cache.make(name[:-1] + "0", days=29) for name in ALL]
    done = cache.clean()
    assert {p.kind for p in done.parts if p.fate is Fate.REMOVED} == {
        *(Kind.WORK, Kind.ENVIRONMENT, Kind.ROOT, Kind.TOOLKIT, Kind.TOOLS)
    }
    assert not [name for name in ALL if (cache.path / name).exists()]
    assert all((path / "data").exists() for path in young)
    assert {p.reason for p in done.parts} == {"not used for 100 days", "used 29 days ago"}
    assert done.freed >= 5 * MIB
    assert done.size >= 10 * MIB
    # The locks stay: removing one would let two processes hold two files of one name.
    assert lock_of(cache.path / ENV).exists()


def test_a_dry_run_says_the_same_and_writes_nothing(cache: Cache) -> None:
    for name in ALL:
        cache.make(name)
    lock_of(cache.path / TOOLS).unlink()
    os.utime(cache.path / TOOLS, (NOW - 100 * DAY,) * 2)
    before = sorted(cache.path.rglob("*"))
    tried = cache.clean(dry_run=True)
    assert {p.fate for p in tried.parts} == {Fate.REMOVABLE}
    assert sorted(cache.path.rglob("*")) == before
    done = cache.clean()
    assert (done.freed, done.size) == (tried.freed, tried.size)


def test_zero_days_is_all_that_is_not_in_use(cache: Cache) -> None:
    for name in ALL:
        cache.make(name, days=0)
    assert not [p for p in cache.clean().parts if p.fate is not Fate.KEPT]
    assert {p.fate for p in cache.clean(older_than=0).parts} == {Fate.REMOVED}


def test_a_running_build_keeps_its_directory_and_all_that_builds_share(cache: Cache) -> None:
    for name in ALL:
        cache.make(name)
    other = cache.make(f"work/{COMBO}-{'0' * 16}")
    with held_elsewhere(lock_of(cache.path / WORK)):
        for dry_run in (True, False):
            fates = cache.fates(older_than=0, dry_run=dry_run)
            assert fates[WORK] == (Fate.KEPT, "in use")
            for name in (ENV, ROOT, TOOLKIT, TOOLS):
                assert fates[name] == (Fate.KEPT, f"a build is running: {COMBO}-{KEY}")
    assert all((cache.path / name / "data").exists() for name in ALL)
    assert not other.exists()  # another build's, which does not run
    assert cache.fates(older_than=0)[WORK][0] is Fate.REMOVED


def test_a_build_that_begins_while_the_cache_is_looked_through_keeps_all(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its lock after `clean` has looked, and before the part's own lock was taken."""
    import pinwheel.build.clean as module

    cache.make(ENV)
    cache.make(WORK, days=0)
    look = module._in_use
    running = held_elsewhere(lock_of(cache.path / WORK))

    def look_and_begin(path: Path, kind: Kind, part: Path) -> str:
        said = look(path, kind, part)
        running.__enter__()
        return said

    monkeypatch.setattr(module, "_in_use", look_and_begin)
    assert cache.fates()[ENV] == (Fate.KEPT, f"a build is running: {COMBO}-{KEY}")
    running.__exit__(None, None, None)
    assert (cache.path / ENV / "data").exists()


def test_somebody_makes_an_environment_of_that_name(cache: Cache) -> None:
    cache.make(ENV)
    cache.make(f"{ENV}.partial")
    with held_elsewhere(lock_of(cache.path / ENV)):
        fates = cache.fates(older_than=0)
        assert fates == {ENV: (Fate.KEPT, "in use"), f"{ENV}.partial": (Fate.KEPT, "in use")}
    assert {fate for fate, _ in cache.fates(older_than=0).values()} == {Fate.REMOVED}


def test_what_a_killed_build_left_goes_at_any_age(cache: Cache) -> None:
    for name in ALL:
        cache.make(name, days=0)
        cache.make(f"{name}.partial", days=0)
    sidecar = (cache.path / TOOLKIT).with_name(f"{Path(TOOLKIT).name}.json")
    sidecar.write_text("{}")
    fates = cache.fates()
    for name in ALL:
        assert fates[f"{name}.partial"] == (Fate.REMOVED, "half-made")
        assert fates[name][0] is Fate.KEPT
        assert (cache.path / name / "data").exists()
    assert sidecar.exists()


def opened(cache: Cache, name: str, hours: float) -> Path:
    """What a verify that was killed leaves: an unpacked library, no lock."""
    path = cache.path / "work" / name
    path.mkdir(parents=True)
    (path / "0").write_bytes(os.urandom(MIB))
    for each in (path / "0", path):
        os.utime(each, (NOW - hours * 3600,) * 2)
    return path


def test_what_a_killed_verify_left_goes_and_a_running_ones_stays(cache: Cache) -> None:
    left, young = opened(cache, "inspect-ab_c0123", 2), opened(cache, "inspect-zzzzzzzz", 0.5)
    running = opened(cache, "inspect-00000000", 2000)
    other = opened(cache, "inspect-me", 2000)  # no name that a command gives
    with (running / "0").open("rb"):
        fates = cache.fates(dry_run=True)
        assert fates["work/inspect-ab_c0123"] == (
            Fate.REMOVABLE,
            "left by a command that was killed",
        )
        assert left.exists()
        done = cache.clean()
    assert {p.path.name: p.fate for p in done.parts} == {
        "inspect-ab_c0123": Fate.REMOVED,
        "inspect-zzzzzzzz": Fate.KEPT,
        "inspect-00000000": Fate.KEPT,
    }
    assert {p.kind for p in done.parts} == {Kind.OPENED}
    assert MIB <= done.freed < 2 * MIB
    assert not left.exists()
    assert young.exists()
    assert (running / "0").exists()
    assert other.exists()
    assert cache.fates(older_than=0)["work/inspect-00000000"][0] is Fate.REMOVED


def test_another_process_that_reads_a_wheel_is_seen(cache: Cache) -> None:
    path = opened(cache, "inspect-00000000", 2)
    reading = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", reading, str(path / "0")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cache.fates()["work/inspect-00000000"] == (Fate.KEPT, "in use")
        process.communicate(timeout=30)
    assert cache.fates()["work/inspect-00000000"][0] is Fate.REMOVED


def test_the_directory_that_verify_really_makes_is_known(cache: Cache, tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1\n")
        archive.writestr(
            "x-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("x-1.dist-info/RECORD", "")
    with open_wheel(wheel, cache.settings.work):
        (part,) = clean(cache.settings, older_than=0, dry_run=True).parts
        assert (part.kind, part.fate) == (Kind.OPENED, Fate.KEPT)
    assert clean(cache.settings, older_than=0, dry_run=True).parts == ()


def test_what_was_replaced_while_in_use_goes_once_no_build_runs(cache: Cache) -> None:
    for name in (ROOT, TOOLKIT):
        cache.make(name, days=0)
        cache.make(f"{name}.replaced-0", days=0)
    replaced = {f"{name}.replaced-0" for name in (ROOT, TOOLKIT)}
    with held_elsewhere(lock_of(cache.path / WORK)):
        fates = cache.fates()
        assert {fates[name] for name in replaced} == {
            (Fate.KEPT, f"a build is running: {COMBO}-{KEY}")
        }
    fates = cache.fates()
    assert {name for name, (fate, _) in fates.items() if fate is Fate.REMOVED} == replaced
    assert fates[f"{ROOT}.replaced-0"][1] == "replaced by one made anew"
    assert (cache.path / ROOT / "data").exists()


def test_files_beside_a_directory_go_with_it(cache: Cache) -> None:
    for name, beside in ((ENV, ["log"]), (TOOLKIT, ["json", "proven-5e941710-sm_80"])):
        path = cache.make(name)
        for suffix in beside:
            path.with_name(f"{path.name}.{suffix}").write_text("{}")
        other = path.with_name(f"{path.name}0.json")
        other.write_text("{}")
    cache.clean()
    assert sorted(p.name for p in (cache.path / "toolkits").iterdir()) == [
        f"{Path(TOOLKIT).name}.lock",
        f"{Path(TOOLKIT).name}0.json",
    ]
    assert [p.name for p in (cache.path / "envs").iterdir() if p.suffix == ".log"] == []


def test_names_that_no_build_gives_are_left_alone(cache: Cache, tmp_path: Path) -> None:
    """PINWHEEL_CACHE may point anywhere by mistake."""
    kept = [
        cache.make(name)
        for name in ("work/thesis", "envs/venv", "roots/home", "tools/.hidden", "documents/x")
    ]
    outside = tmp_path / "outside"
    outside.mkdir()
    (cache.path / WORK).parent.mkdir(exist_ok=True)
    (cache.path / WORK).symlink_to(outside)
    assert cache.clean(older_than=0).parts == ()
    assert outside.exists()
    assert all(path.exists() for path in kept)


def test_inputs_and_compile_cache_are_measured_and_kept(cache: Cache) -> None:
    cache.make("store/sha256/ab", size=3 * MIB)
    cache.make("sccache/0", size=2 * MIB)
    parts = {p.kind: p for p in cache.clean(older_than=0).parts}
    assert {p.fate for p in parts.values()} == {Fate.KEPT}
    assert parts[Kind.STORE].size >= 3 * MIB
    assert parts[Kind.COMPILED].size >= 2 * MIB


def test_hard_links_are_counted_once_and_freed_with_the_last(cache: Cache) -> None:
    uv = cache.make("envs/.uv/archive-v0/x", size=4 * MIB)
    old, new = cache.make(ENV, size=1), cache.make(f"envs/{'0' * 32}", days=0, size=1)
    for path in (old, new):
        (path / "torch.so").hardlink_to(uv / "data")
        cache.used(path, 100 if path == old else 0)
    done = cache.clean()
    fates = {p.path.name: p.fate for p in done.parts}
    assert fates == {old.name: Fate.REMOVED, new.name: Fate.KEPT, ".uv": Fate.REMOVED}
    assert (new / "torch.so").stat().st_nlink == 1
    assert done.size < 5 * MIB
    assert done.freed < MIB  # the other environment holds the file
    again = cache.clean(older_than=0)
    assert again.freed >= 4 * MIB


def test_uvs_cache_stays_while_every_environment_does(cache: Cache) -> None:
    cache.make("envs/.uv/archive-v0/x")
    cache.make(ENV, days=0)
    left = cache.path / "envs/.uv.partial"  # by a cleaning that was killed
    left.mkdir()
    assert cache.fates()["envs/.uv"] == (Fate.KEPT, "the next environment is made of it")
    assert not left.exists()
    (cache.path / ENV / "data").unlink()
    (cache.path / ENV).rmdir()
    (cache.path / "envs/.uv/.lock").touch()
    with held_elsewhere(cache.path / "envs/.uv/.lock", fcntl.LOCK_SH):  # as uv does
        assert cache.fates()["envs/.uv"] == (Fate.KEPT, "in use")
    assert cache.fates()["envs/.uv"] == (Fate.REMOVED, "no environment is left")
    assert not list((cache.path / "envs").glob(".uv*"))


def test_use_is_noted_beside_the_directory(cache: Cache) -> None:
    path = cache.make(ROOT)
    assert last_used(path) == NOW - 100 * DAY
    mark_used(path)
    assert last_used(path) > NOW - 100 * DAY
    assert last_used(cache.path / "nothing") == 0
    mark_used(cache.path / "nothing")  # no lock file, no harm
    assert not (cache.path / "nothing.lock").exists()


def test_a_build_supersedes_its_earlier_keys_and_nothing_else(cache: Cache) -> None:
    def begun(number: int, toolkit: str = "t", capabilities: str = "8.0;9.0") -> Work:
        work = Work(cache.make(f"work/{COMBO}-{number:016x}", days=0))
        remember_order(work, COMBO, toolkit, capabilities)
        return work

    mine, earlier, running = begun(1), begun(2), begun(3)
    others = [begun(4, toolkit="u"), begun(5, capabilities="8.0")]
    unknown = cache.make(f"work/{COMBO}-{6:016x}", days=0)  # an older pinwheel's
    with held_elsewhere(lock_of(running.path)):
        assert remove_superseded(cache.settings, mine) == [earlier.path]
    assert all(p.exists() for p in (mine.path, running.path, unknown, *(o.path for o in others)))
    assert remove_superseded(cache.settings, Work(unknown)) == []
    damaged = earlier.path
    damaged.mkdir()
    (damaged / "order.json").write_text("{")
    assert remove_superseded(cache.settings, mine) == [running.path]
    assert damaged.exists()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["clean", *arguments])
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.out, said.err


def test_the_command(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    cache.make(WORK)
    cache.make("store/sha256/ab")
    where = ("--cache", str(cache.path))
    code, out, _ = run(capsys, *where, "--dry-run")
    assert code == 0
    title, header, first, *_, last = out.splitlines()
    assert (title, header) == (f"# {cache.path}", "what\tname\tsize\tfate\twhy")
    assert first.split("\t")[1:4:2] == [WORK, "would be removed"]
    assert re.fullmatch(rf"{cache.path} takes .* would be freed \(.*\)", last)
    assert run(capsys, *where, "--dry-run", "-q") == (0, f"{last}\n", "")
    assert (cache.path / WORK).exists()
    code, out, _ = run(capsys, *where, "--json", "--older-than", "7")
    report = json.loads(out)
    assert code == 0
    assert report["cache"] == str(cache.path)
    assert report["older-than-days"] == 7
    assert report["freed-bytes"] >= MIB
    assert [(p["kind"], p["fate"]) for p in report["parts"]] == [
        ("work directory", "removed"),
        ("inputs", "kept"),
    ]
    assert not (cache.path / WORK).exists()


def test_the_command_of_an_empty_cache(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "--cache", str(cache.path))
    assert said == (0, f"{cache.path} holds nothing\n", "")


def test_with_0_days_all_that_is_not_in_use_goes(cache: Cache) -> None:
    cache.make(ENV, days=0.5)
    assert cache.fates(older_than=0)[ENV] == (Fate.REMOVED, "not in use")


@pytest.mark.parametrize("days", ["-1", "x", "1e9", "nan"])
def test_days_that_are_none(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--older-than", days)[0] == 2


def test_a_lock_that_is_taken_again_in_this_process_counts_as_held(cache: Cache) -> None:
    cache.make(WORK)
    with file_lock(lock_of(cache.path / WORK)):
        assert cache.fates(older_than=0)[WORK] == (Fate.KEPT, "in use")

"""What `build --dry-run` sees: it looks, and so every test puts something there to be seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from order_kit import COMBO, TOOLKIT, Project

from pinwheel.build.order import Order, Request, take_order
from pinwheel.build.plan import costs_of_order, work_of
from pinwheel.build.work import Work
from pinwheel.buildroot.lastuse import lock_of
from pinwheel.files import file_lock, sha256_file
from pinwheel.inputs.store import Store
from pinwheel.recipe.lock import Input, SourceKind
from pinwheel.settings import Settings, load_settings
from pinwheel.toolkit.kept import keep

STEPS = [f"CMakeFiles/_C.dir/csrc/{name}.cu.o" for name in ("a", "b", "c")]
WHEEL = "vllm-0.6.3+cu121.torch2.3.ctk124-1-cp38-abi3-manylinux_2_34_x86_64.whl"
# Of this machine, not of what a test puts there.
OF_THE_HOST = {"sandbox-refused", "disk-full"}


class Place(Project):
    """A project whose store, cache and dist a test fills."""

    @property
    def settings(self) -> Settings:
        return load_settings(self.path)

    def order(self, **request: Any) -> Order:
        return take_order(Request(combo=COMBO, **request), self.settings)

    @property
    def work(self) -> Work:
        return work_of(self.order(), self.settings)

    def remote(self) -> list[Input]:
        inputs = self.order().lock.inputs
        return [i for i in inputs if i.source is not SourceKind.PROJECT]

    def put(self, item: Input, size: int | None = None) -> None:
        """A file of that size in the store; holes cost nothing."""
        path = Store(self.settings.store).path_of(item.sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(item.size if size is None else size)

    def begun(self, *finished: str) -> None:
        """A work directory in which CMake has run, and these sources were compiled in 60 s."""
        ninja = self.work.source / "build/temp.x/build.ninja"
        ninja.parent.mkdir(parents=True)
        ninja.write_text("".join(f"build {s}: CUDA_COMPILER__x_ /s/{s}\n" for s in STEPS))
        self.work.logs.mkdir(parents=True)
        lines = []
        for step in finished:
            event = {"step": step, "source": "csrc/x.cu", "log": "x", "time": 1.0}
            lines.append({**event, "event": "start"})
            lines.append({**event, "event": "end", "code": 0, "seconds": 60.0})
        (self.work.logs / "events.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in lines))

    def costs(self, seconds: dict[str, float], sources: int | None) -> None:
        path = costs_of_order(self.order(), self.settings)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"sources": sources, "seconds": seconds}))

    def wheel(self, lock_sha256: str, name: str = WHEEL) -> Path:
        path = self.path / "dist" / COMBO / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"wheel")
        manifest = {"lock-sha256": lock_sha256}
        path.with_name(f"{name}.manifest.json").write_text(json.dumps(manifest))
        return path

    def plan(self, *arguments: str) -> dict[str, Any]:
        answer = self.build("--json", *arguments)
        plan = answer.json()
        assert answer.code == bool(plan["would-stop"])
        return plan

    def row(self, what: str, *arguments: str) -> str:
        lines = [line.split("\t") for line in self.build(*arguments).out.splitlines()]
        (value,) = [cells[1] for cells in lines if cells[0] == what]
        return value


@pytest.fixture
def place(project: Project, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(project.path, capsys)


def stops(plan: dict[str, Any]) -> set[str]:
    return {error["rule"] for error in plan["would-stop"]} - OF_THE_HOST


def test_nothing_is_there_and_all_of_it_is_to_be_had(
    place: Place, nothing_written: Callable[[], bool]
) -> None:
    plan = place.plan()
    remote = place.remote()
    assert stops(plan) == set()
    assert plan["store"]["download"] == len(remote) == len(plan["store"]["missing"])
    assert plan["store"]["bytes-download"] == sum(i.size for i in remote)
    assert plan["store"]["present"] == 0
    assert not any(part["made"] for part in plan["workbench"].values())
    assert plan["disk"]["download"] == plan["store"]["bytes-download"]
    assert plan["disk"]["unpack"] > plan["disk"]["download"]
    assert plan["disk"]["free"] > 0
    assert plan["compile"] == {
        "sources": None,
        "compiled": 0,
        "seconds": None,
        "estimate": "",
        "basis": "nothing was built before",
    }
    assert (plan["unchanged"], plan["there"]) == (None, [])
    assert nothing_written()


def test_inputs_that_are_there_are_told_from_those_to_be_downloaded(place: Place) -> None:
    remote = place.remote()
    for item in remote[:-3]:
        place.put(item)
    place.put(remote[-3], size=remote[-3].size + 1)
    partial = place.settings.store / "partial" / remote[-1].sha256
    partial.parent.mkdir()
    partial.write_bytes(b"12345")
    stock = place.plan()["store"]
    assert stock["present"] == len(remote) - 3
    assert [i["sha256"] for i in stock["missing"]] == [i.sha256 for i in remote[-3:]]
    assert stock["bytes-download"] == sum(i.size for i in remote[-3:]) - 5
    assert (stock["bytes-resumed"], stock["altered"]) == (5, [remote[-3].sha256])
    row = place.row("inputs")
    assert f": {len(remote) - 3} in the store (" in row
    assert ", 3 to download (" in row
    listed = place.build("-v").out.partition("# to download\n")[2].splitlines()
    assert [line.split("\t")[5] for line in listed[1:4]] == [i.sha256 for i in remote[-3:]]
    for item in remote[-3:]:
        place.put(item)
    assert place.row("inputs").endswith(", nothing to download")
    assert "0 B to download" in place.row("disk")


def test_what_would_stop_it_is_found_now_and_is_exit_1(
    place: Place, nothing_written: Callable[[], bool]
) -> None:
    plan = place.plan("--offline")
    assert stops(plan) == {"input-missing-offline"}
    (error,) = [e for e in plan["would-stop"] if e["rule"] == "input-missing-offline"]
    assert f"pinwheel fetch --combo {COMBO} --toolkit {TOOLKIT}" in error["next"]
    answer = place.build("--offline", "-q")
    assert answer.code == 1
    assert answer.out.startswith("would not build 0.6.3+cu121.torch2.3.ctk124: exit code ")
    assert len(answer.out.splitlines()) == 1
    assert "warning: this would stop it (input-missing-offline, exit code 22): " in answer.err
    assert nothing_written()


def test_a_build_that_runs_and_a_dist_that_cannot_be_written_are_found(place: Place) -> None:
    (place.path / "dist").write_text("a file")
    with file_lock(lock_of(place.work.path)):
        assert stops(place.plan()) == {"busy", "not-writable"}
    assert stops(place.plan()) == {"not-writable"}


def test_a_source_without_a_url_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINWHEEL_MIRRORS_DEBIAN", "")
    monkeypatch.setattr(Settings, "urls", lambda _, source: ("x",) if source == "index" else ())
    assert stops(place.plan()) == {"settings"}
    for item in place.remote():
        place.put(item)
    assert stops(place.plan()) == set()  # what is in the store needs none


def test_the_workbench_is_made_or_to_be_made(place: Place, tmp_path: Path) -> None:
    names = list(place.plan()["workbench"])
    assert {*names} == {
        *("build root", "tools", "toolkit", "build environment", "environment of the proof")
    }
    before = place.plan()["disk"]["unpack"]
    for name in ("build root", "toolkit"):
        made = tmp_path / "made"
        made.mkdir()
        path = Path(place.plan()["workbench"][name]["path"])
        path.parent.mkdir(parents=True)
        keep(made, path)
    plan = place.plan()
    assert [n for n in names if plan["workbench"][n]["made"]] == ["build root", "toolkit"]
    assert plan["disk"]["unpack"] < before
    assert place.row("workbench").startswith("made: build root, toolkit; to be made: tools, ")


def test_sources_and_what_they_cost_by_an_earlier_build(place: Place) -> None:
    place.costs(dict(zip(STEPS, (60.0, 120.0, 1200.0), strict=True)), 3)
    compile_ = place.plan("--jobs", "2")["compile"]
    assert (compile_["sources"], compile_["compiled"], compile_["seconds"]) == (3, 0, 1200.0)
    place.begun(STEPS[0])
    compile_ = place.plan("--jobs", "1")["compile"]
    assert (compile_["sources"], compile_["compiled"], compile_["seconds"]) == (3, 1, 1320.0)
    assert place.row("sources") == "3, 1 of them compiled by a run that was stopped"
    assert place.row("compile time", "--jobs", "1").startswith(
        "about 22 min, by what each source took before"
    )


def test_of_a_build_that_was_only_stopped_no_time_is_guessed(place: Place) -> None:
    place.begun(STEPS[0])
    place.costs({STEPS[0]: 60.0}, 3)
    compile_ = place.plan()["compile"]
    assert (compile_["sources"], compile_["compiled"], compile_["seconds"]) == (3, 1, None)
    assert place.row("compile time") == (
        "not known (earlier builds timed 1 of 3 sources, and were stopped)"
    )


def test_times_of_who_knows_how_many_sources_are_no_sum(place: Place) -> None:
    place.costs({STEPS[0]: 60.0}, None)
    assert place.row("compile time") == (
        "not known (1 source timed before, and nobody noted of how many)"
    )


def test_killed_with_nothing_recorded_it_is_not_known_either(place: Place) -> None:
    place.begun(STEPS[0])
    compile_ = place.plan()["compile"]
    assert (compile_["sources"], compile_["compiled"], compile_["seconds"]) == (3, 1, None)


def test_all_compiled_takes_no_time_any_more(place: Place) -> None:
    place.begun(*STEPS)
    compile_ = place.plan()["compile"]
    assert (compile_["sources"], compile_["compiled"], compile_["seconds"]) == (3, 3, 0.0)


def test_a_wheel_in_dist_is_seen_with_the_lock_it_came_of(place: Place) -> None:
    mine = place.wheel(sha256_file(place.lock))
    # For fewer capabilities: another build tag, so another name.
    place.wheel("0" * 64, WHEEL.replace("-1-", "-0sm80-"))
    plan = place.plan()
    assert plan["there"] == [{"wheel": str(mine), "same-lock": True}]
    assert place.row("result").endswith(f"; there already: {WHEEL} (of this lock)")
    assert "exit code 50" not in place.build().err
    place.wheel("0" * 64)
    assert place.plan()["there"] == [{"wheel": str(mine), "same-lock": False}]
    assert "(exit code 50) unless --replace is given" in place.build().err
    assert "exit code 50" not in place.build("--replace").err


@pytest.mark.parametrize("manifest", ["", "[]", "{}", "\x00"])
def test_a_wheel_with_no_proper_manifest_is_of_no_known_lock(place: Place, manifest: str) -> None:
    path = place.wheel("")
    path.with_name(f"{WHEEL}.manifest.json").write_text(manifest)
    assert [w["same-lock"] for w in place.plan()["there"]] == [False]


def test_the_same_wheel_is_there_and_nothing_would_be_built(place: Place) -> None:
    wheel = place.wheel(sha256_file(place.lock))
    place.work.path.mkdir(parents=True)
    done = {"wheel": WHEEL, "sha256": sha256_file(wheel)}
    (place.work.path / "done.json").write_text(json.dumps(done))
    assert place.plan()["unchanged"] == str(wheel)
    last = place.build("-q").out.splitlines()[-1]
    if not place.plan()["would-stop"]:
        assert last == f"would build nothing: {wheel} is what this lock builds"
    assert place.plan("--again")["unchanged"] is None
    wheel.write_bytes(b"other")
    assert place.plan()["unchanged"] is None


def test_quiet_keeps_the_verdict_alone(place: Place) -> None:
    if place.plan()["would-stop"]:
        pytest.skip("this host cannot build")
    answer = place.build("-q")
    assert answer.out == "would build 0.6.3+cu121.torch2.3.ctk124 for 8.0;8.6;8.9;9.0\n"
    assert answer.err == ""


def test_a_real_build_says_its_plan_first(place: Place) -> None:
    answer = place.build("--offline", dry=False)
    plan, _, error = answer.err.partition("error: ")
    assert answer.code == 22, answer.err
    assert error
    for said in (
        "building 0.6.3+cu121.torch2.3.ctk124\n",
        f"  lock          {place.lock}\n",
        "  capabilities  8.0 8.6 8.9 9.0\n",
        f"  toolkit       {TOOLKIT} (CUDA 12.4)\n",
        f"  result        {place.path / 'dist' / COMBO}\n",
        " to download (",
        " at once, ",
    ):
        assert said in plan, said
    assert place.build("--offline", "-q", dry=False).err.startswith("error: ")

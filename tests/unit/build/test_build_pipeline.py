"""The order of the stages and what is left where; the stages themselves are played.

The real ones run in tests/integration/test_pipeline.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinwheel.build import gate as gate_module
from pinwheel.build import pipeline
from pinwheel.build.clean import remember_order
from pinwheel.build.compile import Compiled, SourceTime
from pinwheel.build.jobs import JobPlan
from pinwheel.build.order import Request
from pinwheel.build.placing import require_writable
from pinwheel.build.proof import Proof
from pinwheel.build.report import Report
from pinwheel.build.work import Work
from pinwheel.cli.build import _show
from pinwheel.console import Console
from pinwheel.errors import GateError, NotWritableError, WheelError
from pinwheel.files import sha256_file
from pinwheel.matrix.capability import Capability
from pinwheel.settings import Settings, load_settings
from pinwheel.verify.model import Checked, Problem, Profile
from pinwheel.verify.model import Report as Verified
from pinwheel.verify.rules import RULES, asked, judge

COMBO = "cu121-torch2.3-vllm0.6.3"
WHEEL = "vllm-1-py3-none-any.whl"
LIBRARY = "vllm/_C.abi3.so"
MANIFEST = {
    "libraries": {
        LIBRARY: {"cubins": {"sm_80": 27, "sm_90": 27}},
        "vllm/_core_C.abi3.so": {"device-code": False},
    },
    "parity": {
        "official": "vllm-0.6.3.whl",
        "same": {"python": 900, "data": 80},
        "differences": [
            {"kind": "python", "path": "a.py", "change": "different", "reason": "patched"},
            {"kind": "python", "path": "b.py", "change": "different", "reason": "patched"},
            {"kind": "extension", "path": "fa.so", "change": "missing", "reason": "off"},
        ],
    },
}
STAGES = (
    "fetch",
    "_verified",
    "prepare",
    "set_up",
    "compile_wheel",
    "_finish",
    "prove_wheel",
    "gate",
)


def verified(*problems: Problem) -> Verified:
    """What verify says of a wheel with these problems and no others."""
    checked = Checked(looked=dict.fromkeys(RULES, ""), problems=problems)
    return Verified(
        wheel=WHEEL,
        sha256="0" * 64,
        size=5,
        profile=Profile.OURS,
        claim={},
        outcomes=judge(checked, Profile.OURS),
        facts={},
    )


class Build:
    """A build whose stages are played; ``fails`` names one that refuses."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = settings
        self.fails = ""
        self.data = b"wheel"
        self.key = "0" * 16
        self.said = StringIO()
        self.monkeypatch = monkeypatch
        played: dict[str, Callable[..., Any]] = {
            "preflight": lambda: None,
            "take_order": lambda *_: self.order(),
            "take_plan": lambda *_: None,  # tests/unit/build/test_plan.py has it
            "_say": lambda *_: None,
            "fetch": lambda *_, **__: None,
            "_verified": lambda *_: {},
            "prepare": self.prepare,
            "set_up": lambda *_: None,
            "_compile_plan": lambda *_: None,
            "compile_wheel": lambda *_: self.compiled(),
            "_finish": lambda *_: self.finished(),
            "prove_wheel": lambda *_: self.proof(),
            "gate": lambda *_: verified(),
        }
        for name, function in played.items():
            monkeypatch.setattr(pipeline, name, self.refusing(name, function))

    def refusing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.fails == name:
                raise WheelError(name, next_step="")
            return function(*args, **options)

        return call

    @property
    def work(self) -> Work:
        return Work(self.settings.work / f"{COMBO}-{self.key}")

    @property
    def out(self) -> Path:
        return self.settings.dist / COMBO

    def order(self) -> Any:
        return SimpleNamespace(
            loaded=SimpleNamespace(combo=COMBO, recipe=None, project=None),
            lock=SimpleNamespace(inputs=(), debian_snapshot="", source_date_epoch=1),
            key=self.key,
            lock_path=None,
            toolkit="debian-12.4.131",
            capabilities=(Capability(8, 0), Capability(9, 0)),
            capability_list="8.0;9.0",
            version="1",
        )

    def prepare(self, work: Work, *_: Any) -> bool:
        work.path.mkdir(parents=True, exist_ok=True)
        return False

    def compiled(self) -> Compiled:
        return Compiled(
            wheel=Path("raw.whl"),
            seconds=3000.0,
            cpu_seconds=5040.0,
            peak_bytes=4 << 30,
            largest_bytes=2 << 30,
            hits=1,
            misses=2,
            jobs=JobPlan(2, "by processors: 2"),
            times=(SourceTime("csrc/attention_kernels.cu", "a.o", 1261.0, False),),
        )

    def finished(self) -> Any:
        path = self.work.path / WHEEL
        path.write_bytes(self.data)
        path.with_name(f"{WHEEL}.manifest.json").write_text(json.dumps(MANIFEST))
        return SimpleNamespace(
            path=path, sha256=sha256_file(path), size=len(self.data), manifest=MANIFEST
        )

    def proof(self) -> Proof:
        return Proof("1", "2.3.0+cu121", {LIBRARY: ("_C::a", "_C::b")}, {}, {})

    def run(self, **request: Any) -> Report:
        console = Console(err=self.said)
        return pipeline.build(Request(combo=COMBO, **request), self.settings, console)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    settings = load_settings(tmp_path, {"PINWHEEL_CACHE": str(tmp_path / "cache")})
    return Build(settings, monkeypatch)


@pytest.mark.parametrize("stage", STAGES)
def test_a_build_that_is_refused_leaves_no_empty_directory(build: Build, stage: str) -> None:
    build.fails = stage
    with pytest.raises(WheelError, match=stage):
        build.run()
    assert not build.settings.dist.exists()


def test_the_figures_are_in_the_report_and_in_a_file_of_their_own(build: Build) -> None:
    report = build.run()
    data = report.as_dict()
    assert {p.name for p in build.out.iterdir()} == {
        *(WHEEL, f"{WHEEL}.manifest.json", "SHA256SUMS")
    }
    assert data["name"] == WHEEL
    assert (data["sha256"], data["size"]) == (sha256_file(build.out / WHEEL), 5)
    assert data["cubins"] == {LIBRARY: {"sm_80": 27, "sm_90": 27}}
    assert data["operators"] == {LIBRARY: 2}
    assert data["parity"] == {
        "official": "vllm-0.6.3.whl",
        "identical": 980,
        "differences": 3,
        "by-kind": {"extension missing": 1, "python different": 2},
    }
    assert data["build"]["per-source"][0]["seconds"] == 1261.0
    assert list(data["run"]["stages"]) == [
        *("fetch", "verify", "source", "workbench", "compile", "finish", "proof", "gate")
    ]
    assert data["run"]["seconds"] >= sum(data["run"]["stages"].values()) - 0.4
    kept = json.loads(Path(data["record"]).read_text())
    assert kept == {
        k: v for k, v in data.items() if k not in ("proof", "verify", "manifest", "record")
    }
    json.dumps(data)


def test_times_are_in_nothing_that_must_be_the_same(build: Build) -> None:
    """The wheel is the finished one, byte for byte; what lies beside it is its manifest."""
    build.run()
    assert (build.out / WHEEL).read_bytes() == build.data
    assert json.loads((build.out / f"{WHEEL}.manifest.json").read_text()) == MANIFEST
    sums = (build.out / "SHA256SUMS").read_text()
    assert sorted(line.split()[1] for line in sums.splitlines()) == [
        *(WHEEL, f"{WHEEL}.manifest.json")
    ]


def test_unchanged_it_names_the_figures_of_the_run_that_made_it(build: Build) -> None:
    first = build.run()
    record = build.work.record.read_bytes()
    known = build.run()
    assert known.unchanged
    assert known.as_dict()["build"] is None
    assert known.as_dict()["run"] is None
    assert known.cubins == first.cubins
    assert known.record == build.work.record
    # Built once more from the compile cache, the same bytes are no news of what they cost.
    assert build.run(again=True).unchanged
    assert build.work.record.read_bytes() == record
    build.data = b"other"
    assert not build.run(again=True, replace=True).unchanged
    assert json.loads(build.work.record.read_text())["sha256"] != first.sha256


def test_a_person_sees_the_main_figures(build: Build) -> None:
    out = StringIO()
    _show(build.run(), Console(out=out))
    for said in (
        "5 B (5 bytes)",
        "sm_80: 27, sm_90: 27",
        "980 files as in vllm-0.6.3.whl; 3 differences, each explained",
        "1 sources in 50 min 00 s, 1 h 24 min of CPU time, peak memory 4.3 GB, largest process",
        "2 at once, by processors: 2",
        "attention_kernels.cu 21 min 01 s",
        "imports, 2 operators register, one libtorch",
        f"fits: {len(asked(Profile.OURS))} rules passed",
        "proof 0 s",
        str(build.work.record),
    ):
        assert said in out.getvalue(), said


def test_quiet_leaves_the_wheel_alone(build: Build) -> None:
    out = StringIO()
    _show(build.run(), Console(out=out, quiet=True))
    _show(build.run(), Console(out=out, quiet=True))
    assert out.getvalue() == f"built: {build.out / WHEEL}\nunchanged: {build.out / WHEEL}\n"


def test_a_finished_build_removes_the_directories_it_supersedes(build: Build) -> None:
    old = Work(build.settings.work / f"{COMBO}-{'1' * 16}")
    old.path.mkdir(parents=True)
    remember_order(old, COMBO, "debian-12.4.131", "8.0;9.0")
    build.fails = "prove_wheel"
    with pytest.raises(WheelError):
        build.run()
    assert old.path.exists()
    build.fails = ""
    build.run()
    assert not old.path.exists()
    assert f"removed {old.path}, which this build supersedes" in build.said.getvalue()


def test_a_wheel_that_breaks_a_rule_is_refused_and_a_warning_is_told(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Problem(rule="abi-version", subject=LIBRARY, what="it lacks x", evidence=("from 2.4",))
    mild = Problem(rule="abi-preload", subject=LIBRARY, what="it relies on y")
    unsure = Problem(rule="parity", subject="", what="who knows", unknown=True)
    asked: list[Any] = []

    def ask(problems: tuple[Problem, ...]) -> list[str]:
        def verify(_: Path, request: Any, *__: object) -> Verified:
            asked.append(request)
            return verified(*problems)

        monkeypatch.setattr(gate_module, "verify_wheel", verify)
        out = StringIO()
        console = Console(err=out)
        try:
            gate_module.gate(
                Path(WHEEL), build.order(), {"libtorch": "/a/libtorch.so"}, build.settings, console
            )
        except GateError as error:
            return [out.getvalue(), *error.evidence]
        return [out.getvalue()]

    assert "it relies on y" in ask((mild,))[0]
    assert asked[0].loaded == {"libtorch": ("/a/libtorch.so",)}
    assert (asked[0].combo, asked[0].profile) == (COMBO, Profile.OURS)
    _, *lines = ask((bad, mild, unsure))
    assert lines == ["abi-version: it lacks x", "    from 2.4", "parity: who knows"]


def test_a_dist_that_can_be_written_is_not_made_for_asking(tmp_path: Path) -> None:
    require_writable(tmp_path / "dist" / COMBO)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "dist").write_text("a file")
    with pytest.raises(NotWritableError, match="a part of the path is a file"):
        require_writable(tmp_path / "dist" / COMBO)
    with pytest.raises(NotWritableError):
        require_writable(Path("/proc/dist") / COMBO)
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(NotWritableError) as caught:
        require_writable(tmp_path / "gone" / COMBO)
    assert "a link to nothing" in caught.value.evidence[0]

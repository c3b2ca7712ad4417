"""`pinwheel abi` on small wheels, against the snapshots there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from pinwheel.cli.main import main
from pinwheel.verify.snapshot import Snapshot, builds, load

OLD, NEW = "2.3.0+cu121", "2.4.0+cu121"
DRIFT = "_ZN5torch3jit17parseSchemaOrNameERKSsb"  # torch 2.4 gave it the second argument
KIT = Path(__file__).parents[1] / "inspect" / "inspect_kit.py"


@pytest.fixture(scope="module")
def kit(load_script: Callable[[Path, str], ModuleType]) -> ModuleType:
    return load_script(KIT, "inspect_kit")


@pytest.fixture
def make(kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a wheel whose library needs these names, and gives its path."""
    monkeypatch.setenv("PINWHEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PINWHEEL_MIRRORS_INDEX", "file:///nowhere")

    def wheel(*names: str, needed: tuple[str, ...] = ("libtorch_cpu.so", "libc10.so")) -> str:
        data = kit.make_elf(needed=needed, symbols=[kit.Sym(name) for name in names])
        cubin = kit.make_cubin()
        files = kit.wheel_files(**{"tiny_pack/_C.abi3.so": data, "tiny_pack/k.cubin": cubin})
        return str(kit.write_wheel(tmp_path, files))

    return wheel


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only two torch builds, read once: each of them takes its time."""
    monkeypatch.setattr("pinwheel.verify.snapshot.load_all", lambda: _two())


@cache
def _two() -> tuple[Snapshot, ...]:
    return load(OLD), load(NEW)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["abi", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_table(make: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(make(DRIFT)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(f"{build}\t") for line in lines) for build in builds())
    rows = {build: next(line for line in lines if build in line) for build in (OLD, NEW)}
    assert rows[OLD].split("\t")[:3] == [OLD, "0", "no"]
    assert "torch version drift: built for torch 2.4" in rows[OLD]
    assert DRIFT in rows[OLD]
    assert rows[NEW].split("\t")[2] == "yes"
    assert DRIFT not in rows[NEW]


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(("build", "code"), [(OLD, 1), (NEW, 0)])
@pytest.mark.parametrize("public", [False, True])
def test_one_build_decides(
    make: Callable[..., str],
    build: str,
    code: int,
    public: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--torch", build.partition("+")[0] if public else build, make(DRIFT)) == code
    lines = capsys.readouterr().out.splitlines()
    assert [b for b in builds() if any(line.startswith(b) for line in lines)] == [build]


@pytest.mark.usefixtures("two")
def test_a_release_with_several_builds_names_them(
    make: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pinwheel.verify.snapshot.builds", lambda: (OLD, NEW, "2.4.0+cu124"))
    assert run("--torch", "2.4.0", make(DRIFT)) == 2
    assert f"any of {NEW}, 2.4.0+cu124" in capsys.readouterr().err


@pytest.mark.usefixtures("two")
def test_plain_data(make: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--torch", OLD, "--torch", NEW, make(DRIFT)) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["wheel"].startswith("tiny_pack-1.2.0")
    assert data["fits"] == [NEW]
    assert [row["build"] for row in data["builds"]] == [OLD, NEW]
    (library,) = data["builds"][0]["libraries"]  # a cubin is none
    assert library["missing"][0]["symbol"] == DRIFT
    assert NEW in library["missing"][0]["builds"]


@pytest.mark.usefixtures("two")
def test_what_is_needed_and_nowhere(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--torch", NEW, make(needed=("libcudart.so.11",))) == 1
    assert "NEEDED, nowhere, there is libcudart.so.12" in capsys.readouterr().out


@pytest.mark.usefixtures("two")
def test_a_reason_shows_a_few_names_or_all(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = make(*(f"_ZN4vllm2f{n}Ev" for n in range(5)))
    run("--torch", NEW, wheel)
    out = capsys.readouterr().out
    assert out.count("in no torch at all") == 1
    assert "and 2 more" in out
    run("--torch", NEW, "--all", wheel)
    out = capsys.readouterr().out
    assert all(f"_ZN4vllm2f{n}Ev" in out for n in range(5))


@pytest.mark.usefixtures("two")
def test_a_wheel_that_does_not_use_torch(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(make(needed=("libc.so.6",))) == 0
    assert "none of its 1 libraries uses torch" in capsys.readouterr().err


def test_the_stable_abi(make: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    run(make("aoti_torch_get_data_ptr"))
    assert "1 functions of torch's stable ABI alone" in capsys.readouterr().out


@pytest.mark.usefixtures("two")
def test_names_of_a_hostile_wheel_move_no_cursor(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("--torch", NEW, make("\x1b[2Jevil", "x" * 60_000, needed=("\x1b]0;lib.so",)))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "evil" in out
    assert len(max(out.splitlines(), key=len)) < 2000


@pytest.mark.usefixtures("two")
def test_a_build_that_is_not_known(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--torch", "9.9.9+cu999", make(DRIFT)) == 2
    assert NEW in capsys.readouterr().err


def test_a_file_that_is_no_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(b"PK")
    assert run(str(path)) == 60
    assert run(str(tmp_path / "none-1-py3-none-any.whl")) == 60
    assert "cannot be read" in capsys.readouterr().err

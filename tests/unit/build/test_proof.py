from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinwheel.build.proof import judge
from pinwheel.build.work import Work
from pinwheel.console import Console
from pinwheel.errors import ProofError
from pinwheel.process import Result
from pinwheel.recipe.models import Recipe

VERSION = "0.1.0+cu130.torch2.11"
SITE = "/opt/env/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch/lib"
CUDART = f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"

RECIPE = {
    "recipe-version": 1,
    "combo": "cu130-torch2.11-pinprobe0.1.0",
    "native": True,
    "python": "3.11",
    "capabilities": ["8.0"],
    "source": {"package": "pinprobe", "version": "0.1.0"},
    "toolkits": {"default": "t", "offered": ["t"]},
    "driver": {},
    "build": {"requires": ["wheel"]},
    "run": {"as-of": "2026-04-01T00:00:00Z", "companions": ["torch==2.11.0"]},
    "extensions": {
        "pinprobe/_C.abi3.so": {"namespace": "_C", "operators": ["_C::rms_norm", "_C::silu"]},
        "pinprobe/_S.abi3.so": {"namespace": "_S", "operators": ["_S::scale"]},
    },
    "proof": {"module": "pinprobe", "entry-points": [["pinprobe", "--help"]]},
}


def library(operators: list[str]) -> dict[str, Any]:
    """What the probe says of a library that is as it should be."""
    return {
        "load": {
            "code": 0,
            "output": "PROBE...",
            "found": {
                "operators": operators,
                "maps": [
                    f"{TORCH}/libc10.so",
                    f"{TORCH}/libtorch.so",
                    CUDART,
                    "/usr/lib/libm.so.6",
                ],
                "torch": "2.11.0+cu130",
                "abi": True,
                "cuda": "13.0",
            },
        },
        "resolved": {
            "libtorch.so": f"{TORCH}/libtorch.so",
            "libc10.so": f"{TORCH}/libc10.so",
            "libcudart.so.12": CUDART,
            "libc.so.6": "/usr/lib/x86_64-linux-gnu/libc.so.6",
        },
    }


SEEN: dict[str, Any] = {
    "import": {
        "code": 0,
        "output": "PROBE...",
        "found": {"version": VERSION, "file": f"{SITE}/pinprobe/__init__.py"},
    },
    "entry_points": {
        "pinprobe --help": {
            "code": 0,
            "output": "INFO loading\n\nusage: pinprobe [-h] COMMAND\n",
            "found": None,
        }
    },
    "torch_itself": {"libtorch.so": f"{TORCH}/libtorch.so", "libc10.so": f"{TORCH}/libc10.so"},
    "libraries": {
        "pinprobe/_C.abi3.so": library(["_C::rms_norm", "_C::silu"]),
        "pinprobe/_S.abi3.so": library(["_S::scale"]),
    },
}


@pytest.fixture
def seen() -> dict[str, Any]:
    return copy.deepcopy(SEEN)


@pytest.fixture
def recipe() -> Recipe:
    return Recipe.model_validate(RECIPE)


def test_a_wheel_as_its_recipe_says(seen: dict[str, Any], recipe: Recipe) -> None:
    proof = judge(seen, "p.whl", VERSION, recipe)
    assert proof.version == VERSION
    assert proof.torch == "2.11.0+cu130"
    assert proof.operators["pinprobe/_C.abi3.so"] == ("_C::rms_norm", "_C::silu")
    assert proof.entry_points == {"pinprobe --help": "usage: pinprobe [-h] COMMAND"}
    assert proof.libraries == {
        "libc10": f"{TORCH}/libc10.so",
        "libcudart": CUDART,
        "libtorch": f"{TORCH}/libtorch.so",
    }
    assert set(proof.as_dict()) == {
        *("version", "torch", "operators", "entry-points", "libraries"),
    }


def failing_import(seen: dict[str, Any]) -> None:
    seen["import"] = {"code": 1, "output": "Traceback\nImportError: no torch\n", "found": None}


def silent_import(seen: dict[str, Any]) -> None:
    seen["import"]["found"] = None


def other_version(seen: dict[str, Any]) -> None:
    seen["import"]["found"]["version"] = "0.1.0"


def failing_command(seen: dict[str, Any]) -> None:
    seen["entry_points"]["pinprobe --help"].update(code=1, output="no such thing\n")


def helpless_command(seen: dict[str, Any]) -> None:
    seen["entry_points"]["pinprobe --help"]["output"] = "hello\n"


def _c(seen: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = seen["libraries"]["pinprobe/_C.abi3.so"]
    return found


def does_not_load(seen: dict[str, Any]) -> None:
    _c(seen)["load"] = {"code": 1, "output": "OSError: undefined symbol: _Z1f\n", "found": None}


def crashes(seen: dict[str, Any]) -> None:
    _c(seen)["load"] = {"code": -11, "output": "", "found": None}


def missing_operator(seen: dict[str, Any]) -> None:
    _c(seen)["load"]["found"]["operators"].remove("_C::silu")


def more_operators(seen: dict[str, Any]) -> None:
    _c(seen)["load"]["found"]["operators"].append("_C::left_over")


def unresolved(seen: dict[str, Any]) -> None:
    _c(seen)["resolved"]["libcublas.so.12"] = "not found"


def two_torches_by_ldd(seen: dict[str, Any]) -> None:
    _c(seen)["resolved"]["libtorch.so"] = "/usr/local/lib/libtorch.so"


def two_runtimes_in_the_process(seen: dict[str, Any]) -> None:
    _c(seen)["load"]["found"]["maps"].append(f"{SITE}/pinprobe.libs/libcudart-d0da41ae.so.12.1")


def torch_of_the_host(seen: dict[str, Any]) -> None:
    seen["torch_itself"]["libc10.so"] = "/opt/other/libc10.so"


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (failing_import, ["import pinprobe failed:", "| ImportError: no torch"]),
        (silent_import, ["pinprobe.__version__ is None, not " + VERSION]),
        (other_version, ["pinprobe.__version__ is 0.1.0, not " + VERSION]),
        (failing_command, ["`pinprobe --help` ended with 1:", "| no such thing"]),
        (helpless_command, ["`pinprobe --help` ended with 0:", "| hello"]),
        (does_not_load, ["pinprobe/_C.abi3.so does not load:", "| OSError: undefined symbol"]),
        (crashes, ["pinprobe/_C.abi3.so does not load:"]),
        (missing_operator, ["pinprobe/_C.abi3.so: operator _C::silu is missing"]),
        (more_operators, ["pinprobe/_C.abi3.so: operator _C::left_over is not expected"]),
        (unresolved, ["libcublas.so.12 is not found with torch's library path"]),
        (two_torches_by_ldd, ["two copies of libtorch: ", "/usr/local/lib/libtorch.so"]),
        (two_runtimes_in_the_process, ["two copies of libcudart: ", "libcudart-d0da41ae"]),
        (torch_of_the_host, ["two copies of libc10: ", "/opt/other/libc10.so"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_each_difference_is_found_alone(
    seen: dict[str, Any],
    recipe: Recipe,
    break_it: Callable[[dict[str, Any]], None],
    said: list[str],
) -> None:
    break_it(seen)
    with pytest.raises(ProofError, match=r"p\.whl is not what its recipe says") as caught:
        judge(seen, "p.whl", VERSION, recipe)
    evidence = "\n".join(caught.value.evidence)
    for words in said:
        assert words in evidence
    heads = [line for line in caught.value.evidence if not line.startswith("|")]
    assert len(heads) == 1, heads


def test_all_differences_are_told_at_once(seen: dict[str, Any], recipe: Recipe) -> None:
    for break_it in (other_version, failing_command, missing_operator, more_operators, unresolved):
        break_it(seen)
    with pytest.raises(ProofError) as caught:
        judge(seen, "p.whl", VERSION, recipe)
    assert len([line for line in caught.value.evidence if not line.startswith("|")]) == 5


def test_the_probe_has_no_name_the_judge_does_not_know() -> None:
    """The two sides of findings.json are two programs; their keys must not drift apart."""
    import pinwheel.build.proof as proof

    inside = (Path(proof.__file__).parent / "inside/probe.py").read_text()
    for key in ("import", "entry_points", "torch_itself", "libraries", "load", "resolved"):
        assert f'"{key}"' in inside


@pytest.mark.parametrize("answers", ["right", "wrong", "nothing"])
def test_the_environment_of_a_proof_is_removed_whatever_was_found(
    seen: dict[str, Any],
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: str,
) -> None:
    import pinwheel.build.proof as module

    work = Work(tmp_path / "work")
    environment = tmp_path / "envs/0123"
    environment.mkdir(parents=True)
    environment.with_name("0123.log").touch()
    if answers == "wrong":
        missing_operator(seen)

    def look(*_: object, **__: object) -> Result:
        assert environment.is_dir()
        if answers != "nothing":
            (work.out / "findings.json").write_text(json.dumps(seen))
        return Result(0, "said", 0.0, 0.0)

    monkeypatch.setattr(module, "install_environment", lambda *_, **__: environment)
    bench: Any = SimpleNamespace(
        files={},
        sandbox=SimpleNamespace(run=look),
        tools=None,
        toolkit=SimpleNamespace(path=tmp_path),
    )
    lock: Any = SimpleNamespace(with_role=lambda _: ())
    settings: Any = SimpleNamespace(cache=tmp_path)
    with nullcontext() if answers == "right" else pytest.raises(ProofError):
        module.prove_wheel(
            Path("p.whl"), VERSION, recipe, lock, bench, work, settings, Console(quiet=True)
        )
    assert [p.name for p in environment.parent.iterdir()] == ["0123.lock"]


PROBE = Path(__file__).parents[3] / "src/pinwheel/build/inside/probe.py"


def test_a_library_is_loaded_after_those_it_names(tmp_path: Path) -> None:
    """The probe itself, with a torch that notes what it loads."""
    site, out = tmp_path / "site", tmp_path / "out"
    out.mkdir()
    (site / "torch").mkdir(parents=True)
    (site / "torch/__init__.py").write_text(
        "import types\n"
        "loaded = []\n"
        "ops = types.SimpleNamespace(load_library=loaded.append)\n"
        "_C = types.SimpleNamespace(_dispatch_get_all_op_names=lambda: list(loaded))\n"
        "version = types.SimpleNamespace(cuda='13.0')\n"
        "__version__ = '2'\n"
        "compiled_with_cxx11_abi = lambda: True\n"
    )
    text = PROBE.read_text()
    start = f"import sys\nsys.path.insert(0, {str(site)!r})\n"
    text = text.replace('_LOAD = """\n', f'_LOAD = """\n{start}', 1)
    text = text.replace('_IMPORT = """\n', f'_IMPORT = """\n{start}', 1)
    text = text.replace('SITE = sysconfig.get_paths()["platlib"]', 'SITE = "/site"', 1)
    text = text.replace('"/out/findings.json"', repr(str(out / "findings.json")), 1)
    orders = {
        "module": "torch",
        "entry_points": [],
        "libraries": {"a.so": [], "b.so": ["c.so", "a.so"]},
    }
    subprocess.run(
        [sys.executable, "-c", text], input=json.dumps(orders), text=True, check=True, timeout=60
    )
    seen = json.loads((out / "findings.json").read_text())["libraries"]
    loaded = {name: facts["load"]["found"]["operators"] for name, facts in seen.items()}
    # What was loaded first is not counted as the library's own.
    assert loaded == {"a.so": ["/site/a.so"], "b.so": ["/site/b.so"]}
    assert "c.so" not in json.dumps(loaded)


def test_the_probe_is_told_what_comes_first(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pinwheel.build.proof as module

    first, second = sorted(recipe.extensions)
    changed = recipe.extensions[second].model_copy(update={"after": (first,)})
    recipe = recipe.model_copy(update={"extensions": {**recipe.extensions, second: changed}})
    told: list[Any] = []

    def look(*_: object, stdin: bytes, **__: object) -> Result:
        told.append(json.loads(stdin)["libraries"])
        return Result(1, "stopped", 0.0, 0.0)

    bench: Any = SimpleNamespace(
        sandbox=SimpleNamespace(run=look), toolkit=SimpleNamespace(path=tmp_path)
    )
    with pytest.raises(ProofError, match="did not answer"):
        module._look(tmp_path, "p.whl", recipe, bench, Work(tmp_path / "work"), Console(quiet=True))
    assert told == [{first: [], second: [first]}]

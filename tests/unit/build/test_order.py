from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from order_kit import COMBO, TOOLKIT, Project

from pinwheel.build.order import Request, take_order
from pinwheel.build.work import Work
from pinwheel.cli.main import main
from pinwheel.errors import PinwheelError
from pinwheel.files import file_lock
from pinwheel.recipe.lock import Role
from pinwheel.recipe.lockfile import read_lock
from pinwheel.settings import load_settings


def test_the_plan_is_shown_and_nothing_is_written(
    project: Project, nothing_written: Callable[[], bool]
) -> None:
    answer = project.build("--json")
    plan = answer.json()
    assert answer.code == bool(plan["would-stop"])
    assert plan["version"] == "0.6.3+cu121.torch2.3.ctk124"
    assert plan["capabilities"] == ["8.0", "8.6", "8.9", "9.0"]
    assert plan["build-tag"] == "1"
    assert plan["toolkit"] == TOOLKIT
    assert plan["inputs"] > 100
    assert plan["patches"] == [p.relative_to(project.path).as_posix() for p in project.patches]
    table = project.build()
    assert table.code == answer.code
    assert "\nversion\t0.6.3+cu121.torch2.3.ctk124, build tag 1\n" in table.out
    assert nothing_written()


@pytest.mark.parametrize(
    ("archs", "capabilities", "tag"),
    [
        ("8.0", ["8.0"], "0sm80"),
        ("8.0;8.6;8.9;9.0", ["8.0", "8.6", "8.9", "9.0"], "1"),  # B1, in any spelling
        ("8.0 8.6 8.9 9.0", ["8.0", "8.6", "8.9", "9.0"], "1"),
        ("90,89,86,80", ["8.0", "8.6", "8.9", "9.0"], "1"),
        ("9.0", ["9.0"], "0sm90"),
    ],
)
def test_another_capability_list_has_a_name_of_its_own(
    project: Project, archs: str, capabilities: list[str], tag: str
) -> None:
    plan = project.build("--archs", archs, "--json").json()
    assert plan["capabilities"] == capabilities
    assert plan["build-tag"] == tag
    assert re.fullmatch(r"[0-9][A-Za-z0-9._]*", tag)  # PyPA: a build tag


@pytest.mark.parametrize(
    ("archs", "capabilities", "tag"),
    [
        ("8.0;9.0a", ["8.0", "9.0a"], "0sm80.sm90a"),
        ("8.9+PTX", ["8.9+PTX"], "0sm89ptx"),
        ("8.9", ["8.9"], "0sm89"),  # what is declared with PTX may be built without
    ],
)
def test_variants_and_ptx_that_the_recipe_declares(
    project: Project, archs: str, capabilities: list[str], tag: str
) -> None:
    project.change(project.recipe, '"8.9", "9.0"]', '"8.9+PTX", "9.0a"]')
    project.freshen()
    plan = project.build("--archs", archs, "--json").json()
    assert (plan["capabilities"], plan["build-tag"]) == (capabilities, tag)
    # Code for 9.0a is not code for 9.0.
    assert project.build("--archs", "9.0").code == 14


@pytest.mark.parametrize(
    ("archs", "missing", "instead"),
    [
        ("8.7", "8.7", 'what it declares: --archs "8.0;8.6;8.9;9.0"'),
        ("9.0a", "9.0a", '--archs "9.0" instead'),
        ("8.0;9.0a", "9.0a", '--archs "8.0;9.0" instead'),
        ("8.0 9.0+PTX", "9.0+PTX", '--archs "8.0;9.0" instead'),
        ("7.5,8.0,8.7", "7.5 8.7", '--archs "8.0" instead'),
    ],
)
def test_what_the_recipe_does_not_declare_is_refused_before_anything_is_fetched(
    project: Project,
    nothing_written: Callable[[], bool],
    archs: str,
    missing: str,
    instead: str,
) -> None:
    """The toolkit targets all of these; vLLM 0.6.3 leaves them out once hours have passed."""
    answer = project.build("--archs", archs, dry=False)
    assert answer.code == 14
    assert f"recipe {COMBO} does not declare {missing}\n" in answer.err
    assert f"next: Ask for {instead}" in answer.err
    assert f"{project.recipe}: capabilities: 8.0;8.6;8.9;9.0" in answer.err
    assert f"pinwheel lock --combo {COMBO} --toolkit {TOOLKIT}" in answer.err
    assert nothing_written()


@pytest.mark.parametrize("command", [["build", "--dry-run"], ["fetch"], ["lock", "--check"]])
@pytest.mark.parametrize("where", ["nowhere", "a file", "empty"])
def test_a_wrong_directory_of_recipes_is_not_the_combos_fault(
    project: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    where: str,
) -> None:
    path = tmp_path / where
    if where == "a file":
        path.write_text("")
    elif where == "empty":
        path.mkdir()
    with pytest.raises(SystemExit) as ended:
        main([*command, "--combo", COMBO, "--recipes", str(path)])
    said = capsys.readouterr().err
    assert ended.value.code == 17
    assert f"there are no recipes in {path}" in said
    reason = {"nowhere": "No such file or directory", "a file": "no directory"}.get(where, "no */")
    assert f"  {path}: {reason}" in said
    assert "--recipes, PINWHEEL_RECIPES" in said
    assert "arch_matrix.toml [combos]" not in said


def test_matrix_check_of_a_directory_that_is_not_there(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["matrix", "--check", "--recipes", str(tmp_path / "nowhere")])
    assert ended.value.code == 17
    assert "--recipes, PINWHEEL_RECIPES" in capsys.readouterr().err


def test_a_combo_that_only_the_matrix_has(project: Project, tmp_path: Path) -> None:
    other = tmp_path / "other" / "cu130-torch2.11-thing1"
    other.mkdir(parents=True)
    shutil.copy(project.recipe, other)
    answer = project.build("--recipes", str(other.parent))
    assert answer.code == 12
    assert f"no recipe answers to {COMBO}" in answer.err
    assert f"{other.parent}: no {COMBO}/recipe.toml" in answer.err


@pytest.mark.parametrize(
    ("archs", "said"),
    [
        ("native", "native"),  # B2
        ("", "empty"),
        ("8.0;8.0", "8.0"),
        ("all", "all"),
        ("12.1(2.0)", "12.1(2.0)"),
        ("10.0", "CUDA 12.4 cannot target 10.0"),  # B3
        ("8.0;12.0", "CUDA 12.4 cannot target 12.0"),
    ],
)
def test_a_capability_list_is_refused_before_anything_happens(
    project: Project, nothing_written: Callable[[], bool], archs: str, said: str
) -> None:
    answer = project.build("--archs", archs, dry=False)
    assert answer.code == 14
    assert answer.err.startswith("error: --archs: ")
    assert said in answer.err
    assert '--archs "' in answer.err.partition("next: ")[2]
    assert nothing_written()


def test_a_variant_that_the_toolkit_lacks_has_the_plain_target_as_the_next_step(
    project: Project,
) -> None:
    matrix = project.path / "arch_matrix.toml"
    text = matrix.read_text()
    place = text.index('[cuda."12.4"]')
    at = text.index('"9.0a"', place)
    matrix.write_text(text[:at] + text[at:].replace('"9.0a",', "", 1))
    project.freshen()
    answer = project.build("--archs", "8.0;9.0a", dry=False)
    assert answer.code == 14
    assert "--archs: CUDA 12.4 cannot target 9.0a\n" in answer.err
    assert 'next: Ask for --archs "8.0;9.0" instead. No toolkit that the' in answer.err


def test_each_list_is_a_build_of_its_own(project: Project) -> None:
    settings = load_settings(project.path)
    keys = [
        take_order(Request(combo=COMBO, archs=archs), settings).key
        for archs in (None, "8.0", "9.0", "8.0;8.6;8.9;9.0")
    ]
    assert keys[0] == keys[3]
    assert len({*keys}) == 3


def test_a_recipe_or_patch_that_changed_is_another_build(project: Project) -> None:
    settings = load_settings(project.path)
    before = take_order(Request(combo=COMBO), settings).key
    project.change(project.recipe, "job-memory-gib = ", "job-memory-gib = 1")
    project.freshen()
    changed = take_order(Request(combo=COMBO), settings).key
    project.patches[0].write_text(project.patches[0].read_text() + "\n")
    project.freshen()
    assert len({before, changed, take_order(Request(combo=COMBO), settings).key}) == 3


def spoil_matrix(project: Project) -> None:
    project.change(project.path / "arch_matrix.toml", "matrix-version = 1", "matrix-version = x")


def spoil_recipe(project: Project) -> None:
    project.change(project.recipe, 'python = "3.11"', "python = 3.11")


def unknown_key(project: Project) -> None:
    project.change(project.recipe, "[source]", "[source]\nurl = 'x'")


def spoil_lock(project: Project) -> None:
    project.change(project.lock, "size = ", "size = -")


def cut_lock(project: Project) -> None:
    text = project.lock.read_text()
    project.lock.write_text(text[: len(text) // 2])


def no_lock(project: Project) -> None:
    project.lock.unlink()


def change_recipe(project: Project) -> None:
    project.change(project.recipe, "job-memory-gib = ", "job-memory-gib = 1")


def change_patch(project: Project) -> None:
    project.change(project.patches[-1], "Why:", "Why: well,")


def add_patch(project: Project) -> None:
    number = len(project.patches) + 1
    last = project.patches[-1]
    shutil.copy(last, last.with_name(f"{number:04d}-more.patch"))


def lose_patch(project: Project) -> None:
    project.patches[-1].unlink()


def claim_native(project: Project) -> None:
    project.change(project.recipe, "native = false", "native = true")
    project.freshen()


def newer_compiler(project: Project) -> None:
    project.change(project.lock, 'name = "g++-12"', 'name = "g++-14"')


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (spoil_matrix, 10, [r"arch_matrix\.toml:\d+"]),
        (spoil_recipe, 12, [r"recipe\.toml:\d+.*python"]),
        (unknown_key, 12, [r"recipe\.toml:\d+.*source\.url"]),
        (spoil_lock, 13, [r"lock\.debian-12\.4\.131\.toml:\d+.*size"]),
        (cut_lock, 13, [r"lock\.debian-12\.4\.131\.toml"]),
        (no_lock, 13, ["there is no lock", "pinwheel lock --combo"]),
        (change_recipe, 16, ["stale", "says something else now", "pinwheel lock --combo"]),
        (change_patch, 16, [r"patch patches/.*\.patch has changed"]),
        (add_patch, 16, ["more.patch is not in the lock"]),
        (lose_patch, 16, ["no longer in the series"]),
        (claim_native, 15, ["native", "torch"]),
        (newer_compiler, 18, ["g\\+\\+ 14 is too new for CUDA 12.4", "gcc up to 13"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_a_person_wrote_is_refused_with_its_place(
    project: Project, tmp_path: Path, spoil: Callable[[Project], None], code: int, said: list[str]
) -> None:
    spoil(project)
    answer = project.build("--json")
    assert answer.code == code, answer.err
    assert answer.json()["exit_code"] == code
    for pattern in said:
        assert re.search(pattern, answer.err), answer.err
    assert "next: " in answer.err
    assert not (tmp_path / "cache").exists()
    assert not (project.path / "dist").exists()


def test_an_unknown_toolkit_is_refused(project: Project) -> None:
    answer = project.build("--toolkit", "debian-99")
    assert answer.code == 12
    assert TOOLKIT in answer.err


def test_offline_names_every_missing_input_at_once(project: Project) -> None:
    """D5, before anything compiles or is unpacked."""
    answer = project.build("--offline", "--json", dry=False)
    assert answer.code == 22
    lock = read_lock(project.lock)
    for item in lock.inputs:
        if Role.PATCH not in item.roles:
            assert item.sha256 in answer.out, item.path
    assert f"pinwheel fetch --combo {COMBO}" in answer.err
    cache = Path(load_settings(project.path).cache)
    assert not (cache / "roots").exists()
    # A late refusal leaves no empty directory behind.
    assert not (project.path / "dist").exists()


def test_a_dist_that_cannot_be_written_is_found_before_the_work(project: Project) -> None:
    (project.path / "dist").write_text("a file")
    answer = project.build("--offline", dry=False)
    assert answer.code == 24
    assert str(project.path / "dist") in answer.err


def test_the_same_build_twice_at_once_is_refused(project: Project) -> None:
    settings = load_settings(project.path)
    order = take_order(Request(combo=COMBO), settings)
    work = Work(settings.work / f"{COMBO}-{order.key}")
    with file_lock(work.path.with_name(f"{work.path.name}.lock")):
        answer = project.build("--offline", dry=False)
        assert answer.code == 42
        assert order.key in answer.err
        # Another capability list is another build.
        assert project.build("--offline", "--archs", "8.0", dry=False).code == 22


def test_errors_raised_are_of_the_documented_kind(project: Project) -> None:
    settings = load_settings(project.path)
    with pytest.raises(PinwheelError) as caught:
        take_order(Request(combo="cu121-torch2.3-vllm0.6.2"), settings)
    assert caught.value.exit_code == 11
    assert COMBO in caught.value.next_step + " ".join(caught.value.evidence)

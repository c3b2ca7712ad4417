"""Finding recipes and their patch series; what is malformed names file, line and key."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from recipe_kit import FLAGSHIP, SERIES, TOOLKIT, make_settings

from pinwheel.errors import RecipeError, UnknownComboError
from pinwheel.recipe.load import chosen_toolkit, load_recipe, lock_path
from pinwheel.settings import Settings


def edit(project: Path, old: str, new: str) -> int:
    """Replace ``old`` in the recipe; gives the line where ``new`` begins."""
    path = project / "recipes" / FLAGSHIP / "recipe.toml"
    text = path.read_text()
    assert text.count(old) >= 1
    changed = text.replace(old, new, 1)
    path.write_text(changed)
    return changed[: text.index(old)].count("\n") + 1


def test_the_flagship_is_found_with_its_patches(local: Settings, project: Path) -> None:
    loaded = load_recipe(local, FLAGSHIP)
    assert loaded.recipe.source.package == "vllm"
    assert loaded.patch_names()[0].startswith(f"{SERIES}/0001-")
    assert [p.name[:4] for p in loaded.patches] == [
        f"{n:04d}" for n in range(1, len(loaded.patches) + 1)
    ]
    assert lock_path(loaded, TOOLKIT) == loaded.directory / f"lock.{TOOLKIT}.toml"
    assert chosen_toolkit(loaded, None) == TOOLKIT


def test_unknown_combo_offers_the_nearest(local: Settings) -> None:
    with pytest.raises(UnknownComboError) as caught:
        load_recipe(local, "cu121-torch2.3-vllm0.6.4")
    assert FLAGSHIP in " ".join((*caught.value.evidence, caught.value.next_step))


@pytest.mark.parametrize(
    "name", ["", "../recipes", "/etc", f"{FLAGSHIP}/../{FLAGSHIP}", "a" * 5000]
)
def test_what_is_typed_never_becomes_a_path(local: Settings, name: str) -> None:
    with pytest.raises(UnknownComboError):
        load_recipe(local, name)


def test_the_first_directory_that_has_a_combo_wins(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    settings = make_settings(project, recipes=(other, project / "recipes"))
    assert load_recipe(settings, FLAGSHIP).directory.parent == project / "recipes"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('python = "3.11"', 'pyhton = "3.11"', "pyhton"),
        ("native = false", 'native = "perhaps"', "native"),
        ("as-of = ", 'as-of = "never" # ', "run.as-of"),
        ("job-memory-gib = 4.0", "job-memory-gib = 4000", "build.job-memory-gib"),
        ('package = "nvidia-cutlass"', "package = 3", "dependencies.cutlass.package"),
        ('default = "debian-12.4.131"', 'default = "debian-9"', "toolkits.default"),
        ('version = "0.6.3"', 'version = "0.6.2"', "source"),
        (f'combo = "{FLAGSHIP}"', 'combo = "cu121-torch2.3-vllm0.6.2"', "combo"),
        ('patches = "torch-2.3"', 'patches = "../x"', "patches"),
        ('patches = "torch-2.3"', 'patches = "absent"', "patches"),
    ],
)
def test_a_malformed_recipe_names_file_line_and_key(
    local: Settings, project: Path, old: str, new: str, key: str
) -> None:
    line = edit(project, old, new)
    with pytest.raises(RecipeError) as caught:
        load_recipe(local, FLAGSHIP)
    said = "\n".join((caught.value.what, *caught.value.evidence))
    found = re.search(rf"(recipe\.toml):(\d+): [^\n]*{re.escape(key)}", said)
    assert found, said
    # An error about a table points at its header, which is just above the key.
    assert abs(int(found[2]) - line) <= 2


def test_kernels_for_names_what_the_recipe_has(local: Settings, project: Path) -> None:
    edit(project, 'operators = ["machete_gemm"', 'operators = ["machete_gem"')
    with pytest.raises(RecipeError) as caught:
        load_recipe(local, FLAGSHIP)
    assert "lists no operator machete_gem" in caught.value.what


def test_a_syntax_error_names_its_line(local: Settings, project: Path) -> None:
    line = edit(project, "native = false", "native = = false")
    with pytest.raises(RecipeError, match=rf"recipe\.toml:{line}: not TOML"):
        load_recipe(local, FLAGSHIP)


def test_every_fault_is_listed(local: Settings, project: Path) -> None:
    edit(project, "native = false", "native = 7")
    edit(project, "job-memory-gib = 4.0", "job-memory-gib = 0")
    with pytest.raises(RecipeError) as caught:
        load_recipe(local, FLAGSHIP)
    assert len(caught.value.evidence) == 1


@pytest.mark.parametrize("name", ["0009-gap.patch", "fix.patch", "0001-twice.patch", "README"])
def test_a_series_has_no_gaps_and_nothing_else(local: Settings, project: Path, name: str) -> None:
    (project / SERIES / name).write_text("")
    with pytest.raises(RecipeError, match="patches:"):
        load_recipe(local, FLAGSHIP)


def test_the_digest_is_of_the_meaning(local: Settings, project: Path) -> None:
    before = load_recipe(local, FLAGSHIP).digest
    edit(project, "native = false", "# a comment\nnative  =  false")
    assert load_recipe(local, FLAGSHIP).digest == before
    edit(project, '"9.0"]', '"9.0a"]')
    assert load_recipe(local, FLAGSHIP).digest != before


def test_a_toolkit_that_is_not_offered_is_refused(local: Settings) -> None:
    with pytest.raises(RecipeError, match="offers no toolkit 'wheels-13"):
        chosen_toolkit(load_recipe(local, FLAGSHIP), "wheels-13.0.88")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('= "include"', '= "a\\u0000b"'),
        ('= "include"', '= "a\\\\b"'),
        ("[dependencies.cutlass", '[dependencies."../x"'),
        ("[dependencies.cutlass", "[dependencies.cuda"),
        ("CUTLASS_DIR = ", '"X 1)\\nexecute_process(COMMAND id)\\n#" = '),
        ('CUTLASS_DIR = "/opt/cutlass"', 'CUTLASS_DIR = "a\\nb"'),
        ("VLLM_TARGET_DEVICE = ", '"A=B" = '),
        ("VLLM_TARGET_DEVICE = ", '"" = '),
        ('VLLM_TARGET_DEVICE = "cuda"', 'VLLM_TARGET_DEVICE = "a\\u0000b"'),
        ('"--py-limited-api=cp38"', '"--x\\u0000"'),
        ('"vllm/_C.abi3.so"', '"../../_C.abi3.so"'),
        ('"vllm/_C.abi3.so"', '"/etc/_C.abi3.so"'),
        ('"build", #', '"build @ https://user:secret@host.example/x.whl", #'),
        ('"build", #', '"build @ file:///etc/passwd", #'),
        ('"build", #', '"--index-url=https://host.example", #'),
        ('"build", #', '"build\\n-r /etc/passwd", #'),
        ('"outlines-core==0.1.26"', '"-e ."'),
        ('python = "3.11"', 'python = "3.x"'),
        ("job-memory-gib = 4.0", "job-memory-gib = nan"),
        ("job-memory-gib = 4.0", 'job-memory-gib = "4"'),
        ("job-memory-gib = 4.0", "job-memory-gib = 1e-300"),
        ("00:00:00Z", "00:00:00"),
        ("2024-10-15T00:00:00Z", "0001-01-01T00:00:00+23:00"),
        ("native = false", 'native = "no"'),
        ('new = "torch==2.3.0"', 'new = "torch==2.3.0\\nX: 1"'),
        ('official = "vllm==0.6.3"', 'official = "../x"'),
        ('[["vllm", "--help"]]', "[[]]"),
        ('module = "vllm"', 'module = "os; import x"'),
        ('"_C::advance_step_flashattn"', '"\\u001b[2J"'),
        ('after = ["vllm/_core_C.abi3.so"]', 'after = ["vllm/_other.so"]'),
        ('after = ["vllm/_core_C.abi3.so"]', 'after = ["vllm/_C.abi3.so"]'),
        (
            '[extensions."vllm/_core_C.abi3.so"]',
            '[extensions."vllm/_core_C.abi3.so"]\nafter = ["vllm/_C.abi3.so"]',
        ),
        ("native = false", "native = false\nhuge = " + "9" * 5000),
        ("native = false", "native = false\ndeep = " + "[" * 5000),
    ],
)
def test_hostile_values_are_refused_with_their_line(
    local: Settings, project: Path, old: str, new: str
) -> None:
    edit(project, old, new)
    with pytest.raises(RecipeError) as caught:
        load_recipe(local, FLAGSHIP)
    assert re.search(r"recipe\.toml:\d+: ", caught.value.what)
    assert len(caught.value.what) < 600


def test_a_recipe_that_is_a_pipe_does_not_block(local: Settings, project: Path) -> None:
    path = project / "recipes" / FLAGSHIP / "recipe.toml"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(local, FLAGSHIP)

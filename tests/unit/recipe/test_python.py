"""Requirements, wheel choice and what is handed to uv; no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from recipe_kit import an_input, make_settings

from pinwheel.errors import RecipeError, ResolveError
from pinwheel.recipe.export import pylock_text, without_credentials
from pinwheel.recipe.python import (
    Target,
    best_wheel,
    exact_pins,
    resolve_wheels,
    rewrite_requirements,
    uv_environment,
    without_extras,
)

TARGET = Target("3.11", "2.36")
RANKS = {tag: rank for rank, tag in reversed(list(enumerate(TARGET.tags())))}
SHA = "ab" * 32


def pick(*names: str, **changes: object) -> str:
    wheels = [{"url": f"https://x.test/{n}", "size": 1, "hashes": {"sha256": SHA}} for n in names]
    for wheel in wheels:
        wheel.update(changes)
    return best_wheel({"name": "a", "version": "1", "wheels": wheels}, RANKS, "run").filename


def test_the_most_specific_wheel_that_fits_wins() -> None:
    newer, older = (
        "a-1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "a-1-cp311-cp311-manylinux1_x86_64.whl",
    )
    abi3, pure = "a-1-cp39-abi3-manylinux2014_x86_64.whl", "a-1-py3-none-any.whl"
    assert pick(pure, abi3, older, newer) == newer
    assert pick(pure, abi3, older) == older
    assert pick(pure, abi3) == abi3
    assert pick(pure, "a-1-cp311-cp311-linux_x86_64.whl") == "a-1-cp311-cp311-linux_x86_64.whl"


def test_build_number_then_name_decide_between_equals() -> None:
    assert pick("a-1-1-py3-none-any.whl", "a-1-2-py3-none-any.whl") == "a-1-2-py3-none-any.whl"
    twice = ("a-1-py3-none-any.whl", "a-1-py2.py3-none-any.whl")
    assert pick(*twice) == pick(*reversed(twice))


@pytest.mark.parametrize(
    "name",
    [
        "a-1-cp312-cp312-manylinux_2_17_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_37_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_17_aarch64.whl",
        "a-1-cp311-cp311-musllinux_1_2_x86_64.whl",
        "a-1-cp311-cp311t-manylinux_2_17_x86_64.whl",
        "a-1.tar.gz",
    ],
)
def test_a_wheel_that_does_not_fit_is_no_choice(name: str) -> None:
    with pytest.raises(ResolveError, match="no wheel that fits") as caught:
        pick(name)
    assert caught.value.evidence == (name,)


def test_a_file_without_sha256_is_refused() -> None:
    with pytest.raises(ResolveError, match="no sha256"):
        pick("a-1-py3-none-any.whl", hashes={"md5": "0"})


def test_tags_do_not_depend_on_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = [str(t) for t in TARGET.tags()]
    assert tags[0] == "cp311-cp311-manylinux_2_36_x86_64"
    assert tags[-1] == "py30-none-any"
    assert not any(f"cp{sys.version_info[0]}{sys.version_info[1]}t" in t for t in tags)


LINES = ["torch==2.4.0", 'xformers==1; platform_system == "Linux"', "numpy<2,>=1.2"]


def test_rewrites_go_by_meaning() -> None:
    got = rewrite_requirements(
        LINES,
        [("torch == 2.4.0", "torch==2.3.0"), ("numpy>=1.2,<2", "numpy<3")],
        where="PKG-INFO",
    )
    assert got == ["torch==2.3.0", LINES[1], "numpy<3"]


def test_a_line_to_rewrite_that_is_gone_is_an_error() -> None:
    with pytest.raises(RecipeError, match="no longer in PKG-INFO") as caught:
        rewrite_requirements(LINES, [("torch==2.5.0", "torch==2.3.0")], where="PKG-INFO")
    assert caught.value.evidence == ("there is: torch==2.4.0",)
    with pytest.raises(RecipeError, match="is no requirement"):
        rewrite_requirements(LINES, [("torch=2.4.0", "torch==2.3.0")], where="PKG-INFO")


def test_markers_are_of_the_target() -> None:
    lines = [
        'a; extra == "audio"',
        'b; python_version > "3.11"',
        'c; python_version >= "3.9" and sys_platform == "linux"',
        'd; platform_machine == "aarch64"',
        "e",
    ]
    assert [line[0] for line in without_extras(lines, TARGET)] == ["c", "e"]


def test_exact_pins() -> None:
    assert exact_pins(["b==1", "a[x]==2.0; python_version > '3'", "c==1.*", "d>=1", "e"]) == [
        "a",
        "b",
    ]


def test_uv_sees_the_configured_index_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_INDEX", "UV_EXCLUDE_NEWER", "PIP_INDEX_URL", "PIP_CONSTRAINT", "UV_OFFLINE"):
        monkeypatch.setenv(name, "elsewhere")
    settings = make_settings(tmp_path, index=("https://first.test/s", "https://u:p@last.test/s"))
    env = uv_environment(settings)
    assert env["UV_INDEX"] == "https://first.test/s"
    assert env["UV_DEFAULT_INDEX"] == "https://u:p@last.test/s"
    assert "elsewhere" not in env.values()


def test_resolving_offline_is_refused(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, index=("https://x.test/s",), offline=True)
    with pytest.raises(ResolveError, match="offline"):
        resolve_wheels(settings, TARGET, ["a"], as_of=None, what="run")


def test_an_unreachable_index_shows_no_password(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, index=("http://user:hunter2@127.0.0.1:9/simple",))
    with pytest.raises(ResolveError) as caught:
        resolve_wheels(settings, TARGET, ["a"], as_of=None, what="run")
    assert "hunter2" not in "\n".join((caught.value.what, *caught.value.evidence))


def test_pylock_is_what_pep_751_wants() -> None:
    import tomllib

    from packaging.pylock import Pylock

    item = an_input("a")
    text = pylock_text([item], {item.path: "https://x.test/a"}, "3.11")
    lock = Pylock.from_dict(tomllib.loads(text))
    assert str(lock.requires_python) in (">=3.11,<3.12", "<3.12,>=3.11")
    (package,) = lock.packages
    assert package.wheels is not None
    assert (package.wheels[0].name, package.wheels[0].size) == (item.path, 10)
    assert package.wheels[0].hashes == {"sha256": SHA}


@pytest.mark.parametrize("url", ["https://u:p@x.test:8/a?b", "https://u@x.test:8/a?b"])
def test_exported_urls_hold_no_password(url: str) -> None:
    assert without_credentials(url) == "https://x.test:8/a?b"

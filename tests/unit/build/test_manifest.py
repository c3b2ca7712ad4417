from __future__ import annotations

import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.build.manifest import as_json, build_manifest, kind_of, merge_sums
from pinwheel.errors import WheelError
from pinwheel.inspect.platform import Platform
from pinwheel.recipe.lock import Input, Lock, Role, SourceKind

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(), plain, max_size=6))
def test_one_spelling_whatever_the_order(facts: dict[str, object]) -> None:
    turned = dict(reversed(facts.items()))
    assert as_json(facts) == as_json(turned)
    assert json.loads(as_json(facts)) == facts
    assert as_json(facts).isascii()


@pytest.mark.parametrize(
    "value", [1.5, datetime.datetime(2024, 1, 1), {1: "x"}, b"x", {"a": [{}, 0.1]}]
)
def test_what_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(WheelError):
        as_json({"x": value})


def test_the_builders_facts_may_not_contradict_the_manifest() -> None:
    with pytest.raises(WheelError) as caught:
        build_manifest(
            {"version": "9"}, distribution="vllm", version="1", platform=None, libraries={}
        )
    assert "version" in caught.value.evidence[0]


def test_tuples_become_what_json_has() -> None:
    manifest = build_manifest(
        {"capabilities": ("8.0", "9.0")},
        distribution="vllm",
        version="1",
        platform=Platform("manylinux_2_17_x86_64", ()),
        libraries={},
    )
    assert manifest["capabilities"] == ["8.0", "9.0"]
    assert manifest["platform-tag"] == "manylinux_2_17_x86_64"


def test_parity_says_which_device_code_was_held_against_which() -> None:
    """B10."""
    parity = {
        "official": "vllm.whl",
        "official-sha256": "a" * 64,
        "differences": [],
        "official-targets": {"a.so": {"sm_70": 1, "sm_80": 2}, "gone.so": {"sm_80": 1}},
    }
    manifest = build_manifest(
        {"parity": parity},
        distribution="vllm",
        version="1",
        platform=None,
        libraries={
            "a.so": {"cubins": {"sm_80": 2}},
            "b.so": {"device-code": False},
            "c.so": {"cubins": {"sm_90": 1}},
        },
    )
    assert manifest["parity"] == {
        "official": "vllm.whl",
        "official-sha256": "a" * 64,
        "differences": [],
        "targets": {
            "a.so": {"official": {"sm_70": 1, "sm_80": 2}, "ours": {"sm_80": 2}},
            "c.so": {"official": {}, "ours": {"sm_90": 1}},
            "gone.so": {"official": {"sm_80": 1}, "ours": {}},
        },
    }


@pytest.mark.parametrize("parity", [None, {"official": "vllm.whl"}])
def test_parity_without_targets_stays_as_it_is(parity: dict[str, str] | None) -> None:
    manifest = build_manifest(
        {"parity": parity}, distribution="vllm", version="1", platform=None, libraries={}
    )
    assert manifest["parity"] == parity


def test_locked_is_what_the_lock_has_the_files_of() -> None:
    item = Input(
        roles=(Role.ROOT,),
        source=SourceKind.INDEX,
        name="libc6",
        version="2.36",
        path="libc6.deb",
        size=1,
        sha256="1" * 64,
    )
    lock = Lock(
        lock_version=1,
        combo="cu121-torch2.3-vllm0.6.3",
        toolkit="debian-12.4.131",
        recipe_sha256="1" * 64,
        matrix_sha256="2" * 64,
        data_sha256="3" * 64,
        source_date_epoch=1728941239,
        inputs=(item,),
    )
    assert kind_of(lock, Role.ROOT) == "locked"
    assert kind_of(lock, Role.TOOLKIT) == "host"


def test_sums_keep_the_lines_of_other_files() -> None:
    a, b, c = "a" * 64, "b" * 64, "c" * 64
    old = f"{a}  one.whl\n{b} *two.whl\n{c}  gone.whl\nnonsense\n"
    new = merge_sums(old, {"three.whl": c, "one.whl": b}, {"one.whl", "two.whl", "three.whl"})
    assert new == f"{b}  one.whl\n{c}  three.whl\n{b}  two.whl\n"
    assert merge_sums(new, {"three.whl": c}, {"one.whl", "two.whl", "three.whl"}) == new

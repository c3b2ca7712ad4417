from __future__ import annotations

import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.build.manifest import as_json, build_manifest, merge_sums
from pinwheel.errors import WheelError
from pinwheel.inspect.platform import Platform

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


def test_sums_keep_the_lines_of_other_files() -> None:
    a, b, c = "a" * 64, "b" * 64, "c" * 64
    old = f"{a}  one.whl\n{b} *two.whl\n{c}  gone.whl\nnonsense\n"
    new = merge_sums(old, {"three.whl": c, "one.whl": b}, {"one.whl", "two.whl", "three.whl"})
    assert new == f"{b}  one.whl\n{c}  three.whl\n{b}  two.whl\n"
    assert merge_sums(new, {"three.whl": c}, {"one.whl", "two.whl", "three.whl"}) == new

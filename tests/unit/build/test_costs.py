from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwheel.build.costs import Costs, costs_path, estimate, read_costs, record_costs

COMBO = "cu121-torch2.3-vllm0.6.3"


def test_costs_are_kept_by_combo_and_number_of_capabilities(tmp_path: Path) -> None:
    path = costs_path(tmp_path / "costs", COMBO, 4)
    assert path.name == f"{COMBO}-4.json"
    assert read_costs(path) == Costs()
    record_costs(path, {"a.o": 10.0})
    record_costs(path, {"b.o": 20.0})
    assert read_costs(path) == Costs(seconds={"a.o": 10.0, "b.o": 20.0})


def test_the_nearest_number_of_capabilities_stands_in(tmp_path: Path) -> None:
    for count, seconds in ((1, 1.0), (3, 3.0), (9, 9.0)):
        record_costs(costs_path(tmp_path, COMBO, count), {"a.o": seconds})
    record_costs(costs_path(tmp_path, f"{COMBO}.post1", 4), {"a.o": 99.0})
    (tmp_path / f"{COMBO}-4x.json").write_text('{"a.o": 98}')
    assert read_costs(costs_path(tmp_path, COMBO, 4)) == Costs(seconds={"a.o": 3.0}, capabilities=3)
    assert read_costs(costs_path(tmp_path, COMBO, 2)) == Costs(seconds={"a.o": 1.0}, capabilities=1)
    assert read_costs(costs_path(tmp_path, COMBO, 3)).capabilities is None


def test_a_hit_of_the_compile_cache_is_no_cost(tmp_path: Path) -> None:
    path = costs_path(tmp_path, COMBO, 1)
    record_costs(path, {"a.o": 1261.0, "b.o": 60.0})
    record_costs(path, {"a.o": 2.0, "b.o": 45.0})
    assert read_costs(path).seconds == {"a.o": 1261.0, "b.o": 45.0}


@pytest.mark.parametrize("text", ["", "[]", "[1]", '{"a": "x"}', '{"a": null}', "\x00", "3"])
def test_damaged_costs_are_none(tmp_path: Path, text: str) -> None:
    path = costs_path(tmp_path, COMBO, 1)
    path.write_text(text)
    assert read_costs(path) == Costs()
    record_costs(path, {"a.o": 1.0})
    assert json.loads(path.read_text()) == {"a.o": 1.0}


def test_costs_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    record_costs(tmp_path / "file" / "x-1.json", {"a.o": 1.0})


def test_one_long_source_is_the_floor() -> None:
    """The flagship: a long pole, and many that the other compilers do meanwhile."""
    seconds = {"attention.o": 1261.0, **{f"{i}.o": 60.0 for i in range(10)}}
    said = estimate(Costs(seconds=seconds), waiting=seconds, running={}, finished={}, jobs=16)
    assert said == "about 21 min by the last build's times"
    said = estimate(Costs(seconds=seconds), waiting=seconds, running={}, finished={}, jobs=1)
    assert said == "about 31 min by the last build's times"


def test_what_has_run_already_is_not_left() -> None:
    costs = Costs(seconds={"a.o": 600.0})
    said = estimate(costs, waiting=[], running={"a.o": 480.0}, finished={}, jobs=2)
    assert said.startswith("about 2 min")
    said = estimate(costs, waiting=[], running={"a.o": 6000.0}, finished={}, jobs=2)
    assert said.startswith("about 1 min")


def test_times_for_other_capabilities_are_brought_to_scale() -> None:
    costs = Costs(seconds={"a.o": 60.0, "b.o": 600.0}, capabilities=1)
    said = estimate(costs, waiting=["a.o", "b.o"], running={}, finished={}, jobs=1)
    assert said == "about 11 min by a build for 1 capability, so rather more or less"
    said = estimate(costs, waiting=["b.o"], running={}, finished={"a.o": 180.0}, jobs=1)
    assert said == "about 30 min by a build for 1 capability"


def test_a_first_build_has_only_its_own_pace() -> None:
    nothing = Costs()
    assert estimate(nothing, waiting=["a"], running={"b": 9.0}, finished={}, jobs=2) == ""
    said = estimate(nothing, waiting=["a", "b"], running={}, finished={"c": 120.0}, jobs=2)
    assert said.startswith("perhaps 2 min; a first build")


times = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e7), max_size=6)


@given(
    times,
    st.none() | st.integers(0, 9),
    st.sets(st.sampled_from("abcdefgh")),
    times,
    times,
    st.integers(0, 64),
)
def test_any_numbers_make_words(
    seconds: dict[str, float],
    capabilities: int | None,
    waiting: set[str],
    running: dict[str, float],
    finished: dict[str, float],
    jobs: int,
) -> None:
    said = estimate(
        Costs(seconds=seconds, capabilities=capabilities),
        waiting=waiting,
        running=running,
        finished=finished,
        jobs=jobs,
    )
    assert said == "" or re.match(r"(about|perhaps) (\d+ h )?\d+ min\b", said)

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwheel.build.costs import Costs, Estimate, costs_path, estimate, read_costs, record_costs

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


def test_a_build_that_was_only_stopped_is_told_from_one_that_was_finished(tmp_path: Path) -> None:
    path = costs_path(tmp_path, COMBO, 4)
    steps = ["a.o", "b.o", "c.o"]
    record_costs(path, {"a.o": 60.0}, steps)
    assert read_costs(path) == Costs(seconds={"a.o": 60.0}, sources=3)
    assert not read_costs(path).whole
    record_costs(path, {"b.o": 60.0, "c.o": 1261.0}, steps)
    assert read_costs(path).whole
    # A source that a patch took away is no part of the next build.
    record_costs(path, {"a.o": 50.0}, ["a.o", "d.o"])
    assert read_costs(path) == Costs(seconds={"a.o": 50.0}, sources=2)


def test_a_finished_build_of_another_number_comes_before_a_stopped_one(tmp_path: Path) -> None:
    record_costs(costs_path(tmp_path, COMBO, 4), {"a.o": 9.0}, ["a.o", "b.o"])
    record_costs(costs_path(tmp_path, COMBO, 1), {"a.o": 1.0, "b.o": 2.0}, ["a.o", "b.o"])
    found = read_costs(costs_path(tmp_path, COMBO, 4))
    assert found == Costs(seconds={"a.o": 1.0, "b.o": 2.0}, capabilities=1, sources=2)


def test_times_kept_without_a_count_are_read(tmp_path: Path) -> None:
    path = costs_path(tmp_path, COMBO, 1)
    path.write_text('{"a.o": 60.0}')
    assert read_costs(path) == Costs(seconds={"a.o": 60.0})
    assert not read_costs(path).whole  # nobody says that it is all


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[1]", '{"a": "x"}', '{"a": null}', "\x00", "3", "{}"),
        *('{"seconds": 3}', '{"seconds": {}, "sources": 2}', '{"seconds": null, "sources": "x"}'),
    ],
)
def test_damaged_costs_are_none(tmp_path: Path, text: str) -> None:
    path = costs_path(tmp_path, COMBO, 1)
    path.write_text(text)
    assert read_costs(path) == Costs()
    record_costs(path, {"a.o": 1.0})
    assert read_costs(path) == Costs(seconds={"a.o": 1.0})


def test_costs_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    record_costs(tmp_path / "file" / "x-1.json", {"a.o": 1.0})


def test_one_long_source_is_the_floor() -> None:
    """The flagship: a long pole, and many that the other compilers do meanwhile."""
    seconds = {"attention.o": 1261.0, **{f"{i}.o": 60.0 for i in range(10)}}
    said = estimate(Costs(seconds=seconds), waiting=seconds, running={}, finished={}, jobs=16)
    assert said == Estimate("about 21 min left", "by what each source took before", 1261.0)
    said = estimate(Costs(seconds=seconds), waiting=seconds, running={}, finished={}, jobs=1)
    assert said.left == "about 31 min left"


def test_what_has_run_already_is_not_left() -> None:
    costs = Costs(seconds={"a.o": 600.0})
    said = estimate(costs, waiting=[], running={"a.o": 480.0}, finished={}, jobs=2)
    assert said.left == "about 2 min left"
    said = estimate(costs, waiting=[], running={"a.o": 6000.0}, finished={}, jobs=2)
    assert said.left == "about 1 min left"


def test_times_for_other_capabilities_are_brought_to_scale() -> None:
    costs = Costs(seconds={"a.o": 60.0, "b.o": 600.0}, capabilities=1)
    said = estimate(costs, waiting=["a.o", "b.o"], running={}, finished={}, jobs=1)
    assert said.left == "about 11 min left"
    assert said.basis == "by a build for 1 capability, so rather more or less"
    said = estimate(costs, waiting=["b.o"], running={}, finished={"a.o": 180.0}, jobs=1)
    assert said.left == "about 30 min left"
    assert said.basis == "by a build for 1 capability, scaled by what is finished"


def test_of_what_a_stopped_build_never_came_to_nothing_is_guessed() -> None:
    """It has timed the short sources; a mean of those would promise far too much."""
    stopped = Costs(seconds={"a.o": 60.0, "b.o": 60.0}, sources=4)
    said = estimate(stopped, waiting=["attention.o", "c.o"], running={}, finished={}, jobs=1)
    assert said == Estimate("", "none: no source that is left was timed in an earlier build")
    said = estimate(stopped, waiting=["attention.o", "b.o"], running={}, finished={}, jobs=1)
    assert said.left == "at least 1 min left"
    assert said.basis.endswith("; sources that were never timed are not counted")


def test_a_first_build_has_only_its_own_pace() -> None:
    nothing = Costs()
    assert estimate(nothing, waiting=["a"], running={"b": 9.0}, finished={}, jobs=2) == Estimate()
    said = estimate(nothing, waiting=["a", "b"], running={}, finished={"c": 120.0}, jobs=2)
    assert said.left == "perhaps 2 min left"
    assert said.basis.startswith("by this build's pace alone")


def test_nothing_left_is_nothing_to_say() -> None:
    costs = Costs(seconds={"a.o": 60.0})
    assert estimate(costs, waiting=[], running={}, finished={"a.o": 1.0}, jobs=2) == Estimate()


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
    pattern = r"(about|at least|perhaps) (\d+ h )?\d+ min left"
    assert said.left == "" or re.fullmatch(pattern, said.left)
    assert bool(said.left) == (said.seconds is not None) <= bool(said.basis)

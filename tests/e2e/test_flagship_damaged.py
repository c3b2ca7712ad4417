"""The flagship wheel fits; damaged in any of these ways it breaks that rule and no other.

``PINWHEEL_E2E_WHEEL`` names a flagship wheel that is there already; otherwise it is built.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from damages import DAMAGES, NO_BYTES
from damages_wheel import Wheel, lean
from flagship import COMBO, PROJECT

from pinwheel.console import Console
from pinwheel.inputs.store import Store
from pinwheel.matrix.models import load_matrix
from pinwheel.recipe.load import chosen_toolkit, load_recipe, lock_path
from pinwheel.recipe.lock import Role
from pinwheel.recipe.lockfile import read_lock
from pinwheel.settings import MATRIX, Settings, load_settings
from pinwheel.verify.model import Report, Status
from pinwheel.verify.rules import RULES
from pinwheel.verify.run import Request, verify_wheel

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(6 * 3600)]

WHEEL = "PINWHEEL_E2E_WHEEL"


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Verify, with a directory of its own to work in and the store of the build."""

    settings: Settings
    official: Path

    def report(self, wheel: Path, **asked: Any) -> Report:
        request = {"combo": COMBO, "official": self.official, **asked}
        return verify_wheel(wheel, Request(**request), self.settings, Console(quiet=True))


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest) -> Path:
    given = os.environ.get(WHEEL)
    return Path(given or request.getfixturevalue("built")["wheel"])


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    place = tmp_path_factory.mktemp("verify")
    settings = load_settings(PROJECT)
    (place / "store").symlink_to(settings.store)
    loaded = load_recipe(settings, load_matrix(PROJECT / MATRIX).combo(COMBO))
    lock = read_lock(lock_path(loaded, chosen_toolkit(loaded, None)))
    (item,) = lock.with_role(Role.REFERENCE)
    official = lean(Store(settings.store).get(item), item.path, place)
    return Gate(settings=replace(settings, cache=place), official=official)


@pytest.fixture(scope="module")
def flagship(path: Path) -> Wheel:
    return Wheel.read(path)


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Path]:
    """Where a damaged wheel lies for one test; fifty of them are more than a small disk has."""
    yield tmp_path
    for wheel in tmp_path.glob("*.whl"):
        wheel.unlink()


@pytest.fixture(scope="module")
def right(gate: Gate, flagship: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What verify says of a wheel that was taken apart, put together, and not damaged."""
    return gate.report(flagship.copy().pack(tmp_path_factory.mktemp("right")))


def broken(report: Report) -> dict[str, Status]:
    """Rules that are neither passed nor without application, and how they came out."""
    return {o.rule: o.status for o in report.broken()}


def told(report: Report, *rules: str) -> str:
    """All that the report says of some rules."""
    return json.dumps([o.as_dict() for o in report.outcomes if o.rule in rules], indent=1)


def test_the_flagship_fits(gate: Gate, path: Path) -> None:
    """Against the official wheel as it is; most damaged ones meet it without its device code."""
    whole, less = gate.report(path, official=None), gate.report(path)
    assert whole.fits, told(whole, *broken(whole))
    assert whole.outcomes == less.outcomes
    facts = [{**r.facts["parity"], "official-sha256": "", "targets": {}} for r in (whole, less)]
    assert facts[0] == facts[1]


def test_taken_apart_and_put_together_it_still_fits(gate: Gate, path: Path, right: Report) -> None:
    assert right.fits, told(right, *broken(right))
    # What the loader took is kept for the very bytes that were built.
    before, after = (
        [o for o in report.outcomes if o.rule != "one-libtorch"]
        for report in (gate.report(path), right)
    )
    assert before == after


@pytest.mark.parametrize("name", DAMAGES)
def test_one_damage_breaks_its_rule_and_no_other(
    name: str, gate: Gate, flagship: Wheel, right: Report, packed: Path
) -> None:
    damage = DAMAGES[name]
    wheel = flagship.copy()
    damage.do(wheel)
    report = gate.report(wheel.pack(packed), **damage.asked)
    # It has a warning as it is: cublasHgemm, which torch's own libraries bring.
    assert broken(report) == broken(right) | damage.breaks, told(report, *broken(report))
    assert damage.says in told(report, damage.rule)
    assert damage.says not in told(right, damage.rule), "that is so without the damage"
    assert report.fits is (damage.status is Status.WARNING)


def test_every_rule_has_a_damage_or_a_reason_why_no_bytes_break_it() -> None:
    damaged = {damage.rule for damage in DAMAGES.values()}
    assert damaged.isdisjoint(NO_BYTES)
    assert damaged | NO_BYTES.keys() == RULES.keys()
    assert all(NO_BYTES.values())
    assert all(why for damage in DAMAGES.values() for _, why in damage.also.values())


def test_a_rule_that_cannot_break_alone_is_the_exception() -> None:
    """Requirements stand in parity too, and what nothing is known of leaves more than one open."""
    alone = {damage.rule for damage in DAMAGES.values() if not damage.also}
    shared = {"torch-pin", "companion-pins", "torch-known"}
    of_release = {"hermetic", "recipe-known", "loader-answered"}  # and it is for 8.0 alone
    assert alone.isdisjoint(shared | of_release)
    assert alone | shared | of_release | NO_BYTES.keys() == RULES.keys()

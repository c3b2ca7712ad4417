"""``[[code-exceptions]]`` of a recipe: optional, strict, and no change for those without."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from verify_kit import COMBO, RECIPE, TOOLKIT, Gate, Parts, broken, cubin_entry, told

from pinwheel import toml
from pinwheel.matrix.models import load_matrix
from pinwheel.recipe.load import recipe_digest
from pinwheel.recipe.models import Recipe
from pinwheel.verify.code import CodeFault
from pinwheel.verify.exceptions import code_exceptions
from pinwheel.verify.model import Status

TEXT = RECIPE.format(combo=COMBO, toolkit=TOOLKIT)


def row(**changes: str) -> str:
    values = {
        "library": "tinypack/_moe_C.abi3.so",
        "capability": "9.0",
        "fault": "missing",
        "reason": "a test",
        **changes,
    }
    return "\n[[code-exceptions]]\n" + "".join(f'{k} = "{v}"\n' for k, v in values.items())


def recipe(more: str = "") -> Recipe:
    return Recipe.model_validate(toml.loads(TEXT + more))


def test_recipes_without_it_mean_what_they_meant() -> None:
    assert recipe().code_exceptions == ()
    dumped = recipe().model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert "code-exceptions" not in dumped
    assert recipe_digest(recipe()) != recipe_digest(recipe(row()))


@pytest.mark.parametrize(
    "wrong",
    [
        row(fault="anything"),
        row(reason=""),
        row(library="tinypack/_other.so"),
        row(library="/etc/passwd"),
        row(extra="key"),
        row() + row(),
    ],
)
def test_a_wrong_row_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError):
        recipe(wrong)


def test_rows_become_the_rules_exceptions(gate: Gate) -> None:
    gate.make()
    known = load_matrix(gate.settings.project / "arch_matrix.toml").known
    (one,) = code_exceptions(recipe(row(fault="ptx-only")).code_exceptions, known=known)
    assert (one.fault, str(one.capability)) == (CodeFault.PTX_ONLY, "9.0")


def test_an_exception_lets_its_fault_pass(gate: Gate) -> None:
    parts = Parts(recipe=row())
    parts.moe.entries = [cubin_entry(80)]
    report = gate.report(parts)
    assert broken(report) == {}
    assert "1 in use" in told(report, "code-exceptions")


def test_a_wheel_for_part_of_the_capabilities_needs_part_of_the_exceptions(gate: Gate) -> None:
    parts = Parts(recipe=row(), manifest={"capabilities": ["8.0"]})
    for library in (parts.c, parts.moe):
        library.entries = [cubin_entry(80)]
    report = gate.report(parts)
    assert broken(report) == {}
    assert "0 in use" in told(report, "code-exceptions")


def test_one_for_a_capability_that_the_recipe_does_not_have_is_stale(gate: Gate) -> None:
    report = gate.report(Parts(recipe=row(capability="8.6")))
    assert broken(report) == {"code-exceptions": Status.FAILED}


def test_one_for_a_capability_nobody_knows_is_unknown(gate: Gate) -> None:
    report = gate.report(Parts(recipe=row(capability="9.9")))
    assert broken(report)["code-exceptions"] is Status.UNKNOWN

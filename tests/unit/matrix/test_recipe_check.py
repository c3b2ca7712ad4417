from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from pinwheel.matrix.models import Matrix
from pinwheel.recipe.check import check_recipe
from pinwheel.recipe.models import Recipe

Make = Callable[..., Recipe]


def rules(matrix: Matrix, recipe: Recipe) -> set[str]:
    return {finding.rule for finding in check_recipe(matrix, recipe)}


def test_the_flagship_agrees(matrix: Matrix, make_recipe: Make) -> None:
    assert check_recipe(matrix, make_recipe()) == []


DRIVER = {"debian-12.4.131": {"native": "550.54.15", "minimum": "525.60.13"}}


@pytest.mark.parametrize(
    ("changes", "rule", "sides"),
    [
        ({"native": True}, "off-pin", ("native = true", "torch 2.4.0", "2.3.0")),
        ({"reason": "  "}, "off-pin", ("no reason", "torch 2.4.0")),
        ({"patches": ""}, "off-pin", ("no patches", "torch 2.4.0")),
        ({"combo": "cu121-torch2.3-vllm0.6.4"}, "combo-unknown", ("vllm0.6.4", "nearest")),
        ({"source": {"package": "vllm", "version": "0.6.2"}}, "source-differs", ("0.6.2", "0.6.3")),
        ({"driver": {}}, "driver-missing", ("debian-12.4.131",)),
        (
            {"driver": {"debian-12.4.131": {"native": "530.30.02", "minimum": "525.60.13"}}},
            "driver-differs",
            ("530.30.02", "550.54.15", "release notes"),
        ),
        (
            {"driver": {"debian-12.4.131": {"native": "550.54.15", "minimum": "550.54.15"}}},
            "driver-differs",
            ("525.60.13",),
        ),
        (
            {"driver": {**DRIVER, "wheels-13.0.88": DRIVER["debian-12.4.131"]}},
            "driver-missing",
            ("wheels-13.0.88",),
        ),
        (
            {"toolkits": {"default": "debian-12.4.131", "offered": ["debian-12.4.99"]}},
            "toolkit-unknown",
            ("debian-12.4.99", "debian-12.4.131"),
        ),
        (
            {"toolkits": {"default": "x", "offered": ["debian-12.4.131"]}},
            "toolkit-default",
            ("x", "debian-12.4.131"),
        ),
        (
            {
                "toolkits": {"default": "wheels-13.0.88", "offered": ["wheels-13.0.88"]},
                "driver": {"wheels-13.0.88": {"native": "580.65.06", "minimum": "580"}},
            },
            "toolkit-major",
            ("13.0", "12.1"),
        ),
        ({"capabilities": ["8.0"]}, "capabilities", ("8.0", "vllm/_C.abi3.so")),
        ({"capabilities": ["8.0", "10.0"]}, "capabilities", ("10.0", "ptxas")),
        ({"capabilities": ["native"]}, "capabilities", ("native",)),
        ({"capabilities": ["8.0", "8.0"]}, "capabilities", ("8.0",)),
        ({"capabilities": []}, "capabilities", ()),
        ({"python": "3.13"}, "python", ("3.13", "3.12")),
        ({"python": "3.7"}, "python", ("3.7", ">=3.8")),
    ],
)
def test_each_rule(
    matrix: Matrix, make_recipe: Make, changes: dict[str, Any], rule: str, sides: tuple[str, ...]
) -> None:
    findings = [f for f in check_recipe(matrix, make_recipe(**changes)) if f.rule == rule]
    assert findings, rules(matrix, make_recipe(**changes))
    said = "\n".join(side for finding in findings for side in finding.sides)
    for text in sides:
        assert text in said
    assert all(len(f.sides) >= 1 and f.next_step for f in findings)


@pytest.mark.parametrize(
    "requires", ["torch==2.4.0", "torch==2.3.0+cu121", "torch>=2.3", "torch", "Torch==2.4.0"]
)
def test_torch_requirement_must_be_the_combos_build(
    matrix: Matrix, make_recipe: Make, requires: str
) -> None:
    recipe = make_recipe()
    build = recipe.build.model_dump(by_alias=True) | {"requires": ["wheel", requires]}
    assert rules(matrix, make_recipe(build=build)) == {"torch-requirement"}


def test_on_pin_with_native_false_is_refused(matrix: Matrix, make_recipe: Make) -> None:
    data = copy.deepcopy(matrix.model_dump(by_alias=True, exclude_none=True))
    data["combos"] = {"cu121-torch2.4-vllm0.6.3": {"torch": "2.4.0+cu121", "source": "here it is"}}
    pinned = Matrix.model_validate(data)
    base = make_recipe(combo="cu121-torch2.4-vllm0.6.3")
    dump = base.model_dump(by_alias=True)
    dump["build"]["requires"] = ["torch==2.4.0"]
    dump["run"]["companions"] = ["torch==2.4.0"]
    dump["requirements"] = []
    assert rules(pinned, Recipe.model_validate(dump)) == {"on-pin"}
    dump["native"], dump["reason"], dump["patches"] = True, "", ""
    assert rules(pinned, Recipe.model_validate(dump)) == set()

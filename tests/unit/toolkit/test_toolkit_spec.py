from __future__ import annotations

import copy
from typing import Any

import pytest

from pinwheel.errors import ToolkitError
from pinwheel.toolkit.spec import Rule, known_toolkits, load_spec, parse_spec

GOOD: dict[str, Any] = {
    "toolkit": {
        "name": "wheels-13.0.88",
        "provider": "wheels",
        "line": "13.0",
        "version": "13.0.88",
    },
    "package": [{"name": "nvidia-cuda-nvcc", "version": "13.0.88"}],
}
LAYOUT: dict[str, Any] = {"layout": {"rules": [["a", "b"]], "system_includes": []}}


@pytest.mark.parametrize("name", known_toolkits())
def test_every_shipped_toolkit_loads(name: str) -> None:
    spec = load_spec(name)
    assert spec.name == name
    assert spec.parts
    assert spec.rules


def test_both_providers_are_shipped() -> None:
    assert {load_spec(name).provider for name in known_toolkits()} == {"debian", "wheels"}


@pytest.mark.parametrize("name", ["", "debian", "../x", "debian-12.4.131.toml", "Debian-12.4.131"])
def test_unknown_names_offer_the_known_ones(name: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        load_spec(name)
    assert len(caught.value.evidence) == len(known_toolkits())


@pytest.mark.parametrize(
    ("table", "key", "value", "says"),
    [
        ("toolkit", "provider", "conda", "none of"),
        ("toolkit", "version", "13.0.89", "not provider and version"),
        ("toolkit", "line", "12.4", "does not belong to line"),
        ("toolkit", "line", "13", "does not belong to line"),
        ("toolkit", "version", None, "KeyError"),
    ],
)
def test_contradictions(table: str, key: str, value: str | None, says: str) -> None:
    data = copy.deepcopy(GOOD)
    if value is None:
        del data[table][key]
    else:
        data[table][key] = value
    if says == "does not belong to line" and value == "13":
        data["toolkit"]["line"] = "13.1"
    with pytest.raises(ToolkitError) as caught:
        parse_spec("wheels-13.0.88", data, LAYOUT)
    assert says in caught.value.evidence[0]


def test_a_package_listed_twice() -> None:
    data = copy.deepcopy(GOOD)
    data["package"] *= 2
    with pytest.raises(ToolkitError):
        parse_spec("wheels-13.0.88", data, LAYOUT)


@pytest.mark.parametrize(
    ("rule", "name", "target"),
    [
        (Rule("usr/bin", "bin"), "usr/bin/nvcc", "bin/nvcc"),
        (Rule("usr/bin", "bin"), "usr/bin2/nvcc", None),
        (Rule("usr/bin/nvcc", ""), "usr/bin/nvcc", ""),
        (Rule("usr/bin/nvcc", ""), "usr/bin/nvcc.profile", None),
        (Rule("a/cicc", "nvvm/bin/cicc"), "a/cicc", "nvvm/bin/cicc"),
        (Rule("a/libnvvm.so*", "nvvm/lib64"), "a/libnvvm.so.4.0", "nvvm/lib64/libnvvm.so.4.0"),
        (Rule("*.a", ""), "usr/lib/x/libbig.a", ""),
        (Rule("usr/share", ""), "usr/share/doc/x", ""),
    ],
)
def test_rules(rule: Rule, name: str, target: str | None) -> None:
    assert rule.apply(name) == target


@pytest.mark.parametrize(
    ("toolkit", "name", "target"),
    [
        ("debian-12.4.131", "usr/bin/nvcc", ""),
        ("debian-12.4.131", "usr/lib/nvidia-cuda-toolkit/bin/nvcc", "bin/nvcc"),
        ("debian-12.4.131", "usr/lib/nvidia-cuda-toolkit/bin/gcc", ""),
        ("debian-12.4.131", "usr/lib/nvidia-cuda-toolkit/bin/nvcc.profile", ""),
        ("debian-12.4.131", "usr/lib/x86_64-linux-gnu/libcublas_static.a", ""),
        ("debian-12.4.131", "usr/lib/x86_64-linux-gnu/libcudadevrt.a", "lib64/libcudadevrt.a"),
        ("debian-12.4.131", "usr/lib/x86_64-linux-gnu/libnvvm.so", "nvvm/lib64/libnvvm.so"),
        ("debian-12.4.131", "usr/include/cub/cub.cuh", "include/cub/cub.cuh"),
        ("debian-12.4.131", "opt/new", None),
        ("wheels-13.0.88", "nvidia/cu13/bin/nvcc.profile", ""),
        ("wheels-13.0.88", "nvidia/cu13/lib/libcublas.so.13", "lib64/libcublas.so.13"),
        ("wheels-13.0.88", "x-1.dist-info/RECORD", ""),
    ],
)
def test_shipped_layouts(toolkit: str, name: str, target: str | None) -> None:
    assert load_spec(toolkit).place(name) == target

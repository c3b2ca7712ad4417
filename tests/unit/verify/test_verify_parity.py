"""Parity of operators through the whole of verify: a renamed one passes nowhere."""

from __future__ import annotations

import pytest
import verify_kit
from verify_kit import Gate, Parts, Sec, Sym, broken, cubin_entry, extension, outcome

from pinwheel.verify.model import Status

LIBRARY = "tinypack/_C.abi3.so"
TABLE = f'[extensions."{LIBRARY}"]\n'
#: Two with a schema, a long name among them, and one whose schema torch infers.
RODATA = (
    b"\0scale(Tensor x, float by=1.0) -> Tensor\0rotary_embedding(Tensor! q) -> ()\0\0\0"
    b"scale\0rotary_embedding\0dispose\0_C\0"
)
OPERATORS = ["_C::dispose", "_C::rotary_embedding", "_C::scale"]


def library(rodata: bytes = RODATA, function: str = "_Z7disposel") -> verify_kit.Lib:
    lib = extension("_C")
    lib.sections.append(Sec(".rodata", rodata))
    lib.symbols.append(Sym(function, defined=True))
    return lib


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    recipe = verify_kit.RECIPE.replace(TABLE, f'{TABLE}namespace = "_C"\noperators = {OPERATORS}\n')
    monkeypatch.setattr(verify_kit, "RECIPE", recipe)
    return Parts(c=library(), official={LIBRARY: library().bytes()})


def test_the_same_operators_agree(gate: Gate, parts: Parts) -> None:
    report = gate.report(parts)
    assert broken(report) == {}, [o.as_dict() for o in report.broken()]
    (compared,) = [e for e in report.facts["parity"]["extensions"] if e["path"] == LIBRARY]
    assert (compared["official-operators"], compared["operators"]) == (3, 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"scale", b"scole", id="everywhere"),
        pytest.param(b"\0scale(", b"\0scole(", id="its schema alone"),
        pytest.param(b"\0scale\0", b"\0scole\0", id="its binding alone"),
        pytest.param(b"rotary_embedding", b"rotary_embeddinG", id="its last letter"),
        pytest.param(b"\0rotary_embedding(", b"\0rotary_embeddinG(", id="its schema's last letter"),
        pytest.param(b"\0rotary_embedding\0", b"\0rotary_embeddinG\0", id="its binding's last one"),
        pytest.param(b"scale", b"scale_", id="a letter more"),
        pytest.param(b"float by", b"float on", id="an argument"),
        pytest.param(b"\0_C\0", b"\0_D\0", id="the namespace"),
    ],
)
def test_a_renamed_operator_breaks_parity(gate: Gate, parts: Parts, old: bytes, new: bytes) -> None:
    parts.c = library(RODATA.replace(old, new))
    found = outcome(gate.report(parts), "parity")
    assert found.status is Status.FAILED, found


KERNELS_FOR = """
[[kernels-for]]
library = "tinypack/_C.abi3.so"
capability = "9.0"
operators = ["scale"]
reason = "its source is for 9.0 alone"
"""
UNBOUND = RODATA.replace(b"\0scale\0", b"\0\0\0\0\0\0\0")


def only_80(parts: Parts, rodata: bytes) -> Parts:
    """A wheel for 8.0 of a recipe for 8.0 and 9.0."""
    parts.recipe = KERNELS_FOR
    parts.manifest = {"capabilities": ["8.0"]}
    parts.c = library(rodata)
    for lib in (parts.c, parts.moe):
        lib.entries = [cubin_entry(80)]
    return parts


def test_without_its_capability_an_operator_may_lack_a_kernel(gate: Gate, parts: Parts) -> None:
    found = outcome(gate.report(only_80(parts, UNBOUND)), "parity")
    assert found.status is Status.PASSED, found


def test_what_is_bound_all_the_same_needs_no_reason(gate: Gate, parts: Parts) -> None:
    found = outcome(gate.report(only_80(parts, RODATA)), "parity")
    assert found.status is Status.FAILED
    assert "unused explanation" in str(found.as_dict())


def test_with_its_capability_it_must_have_one(gate: Gate, parts: Parts) -> None:
    parts.recipe = KERNELS_FOR
    parts.c = library(UNBOUND)
    found = outcome(gate.report(parts), "parity")
    assert found.status is Status.FAILED
    assert "a kernel is bound to" in str(found.as_dict())


def test_one_without_a_schema_breaks_it_too(gate: Gate, parts: Parts) -> None:
    parts.c = library(RODATA.replace(b"dispose", b"dispone"), "_Z7disponel")
    found = outcome(gate.report(parts), "parity")
    assert found.status is Status.FAILED, found

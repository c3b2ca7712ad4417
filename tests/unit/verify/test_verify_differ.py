"""``compare``: what differs between two wheels, down to kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from verify_kit import Gate, Parts, cubin_entry

from pinwheel.console import Console
from pinwheel.errors import ArtifactError
from pinwheel.verify.differ import Comparison, comparable, differ

ANONYMOUS = "_ZN51_GLOBAL__N__{hash}_13_activation_cu_{hash}_4kernelEv"


def two(gate: Gate, first: Parts, second: Parts) -> Comparison:
    one = gate.make(first)
    mine = shutil.copy(one, gate.place / "kept.whl")
    kept = gate.place / "first" / one.name
    kept.parent.mkdir()
    shutil.move(mine, kept)
    gate.place = gate.place / "second"
    gate.place.mkdir()
    other = gate.make(second)
    return differ(kept, other, gate.place / "scratch", Console(quiet=True))


def test_the_same_bytes(gate: Gate) -> None:
    found = two(gate, Parts(), Parts())
    assert found.equal
    assert found.kernels == ()


def test_files_and_requirements(gate: Gate) -> None:
    changed = Parts()
    changed.files = {"tinypack/__init__.py": b"import os\n", "tinypack/new.py": b""}
    changed.requires[1] = "torchvision==0.19"
    found = two(gate, Parts(with_manifest=False), changed)
    assert not found.equal
    said = {(d.kind.value, d.change.value, d.path) for d in found.differences}
    assert ("python", "different", "tinypack/__init__.py") in said
    assert ("python", "added", "tinypack/new.py") in said
    assert ("metadata", "added", "*.dist-info/pinwheel.json") in said
    assert any(path.startswith("Requires-Dist: torchvision==0.19") for _, _, path in said)
    assert "differ" in found.summary()


def test_kernels_by_library_and_target(gate: Gate) -> None:
    changed = Parts(with_manifest=False)
    changed.c.entries = [cubin_entry(80, "k", "more"), cubin_entry(90), cubin_entry(90)]
    found = two(gate, Parts(with_manifest=False), changed)
    rows = {(k.library, k.target): k for k in found.kernels}
    assert {target for _, target in rows} == {"sm_80", "sm_90", "sm_90a"}
    more = rows["tinypack/_C.abi3.so", "sm_80"]
    assert (more.only_first, more.only_second) == ((), ("more",))
    assert rows["tinypack/_C.abi3.so", "sm_90"].images == (1, 2)
    assert rows["tinypack/_C.abi3.so", "sm_90a"].only_first == ("hopper",)
    assert ("extension", "different") in {(d.kind.value, d.change.value) for d in found.differences}
    assert found.as_dict()["equal"] is False


def test_anonymous_namespaces_are_the_same_whatever_path_they_were_compiled_at(
    gate: Gate,
) -> None:
    def built(digest: str) -> Parts:
        parts = Parts(with_manifest=False)
        parts.c.entries = [cubin_entry(80, ANONYMOUS.format(hash=digest))]
        return parts

    found = two(gate, built("0a1b2c3d"), built("4e5f6a7b"))
    assert found.kernels == ()
    assert [d.kind.value for d in found.differences] == ["extension"]


@pytest.mark.parametrize(
    ("one", "other"),
    [  # from two builds of vllm 0.6.3
        (
            "_Z1mIXadL_ZN45_INTERNAL_2400c3dc_14_gguf_kernel_cu_b18761c817vec_dotEPKvEEEvS_",
            "_Z1mIXadL_ZN45_INTERNAL_adf24fc9_14_gguf_kernel_cu_b18761c817vec_dotEPKvEEEvS_",
        ),
        (
            "_ZN3cub37CUB_200302_700_750_800_860_890_900_NS11EmptyKernelIvEEvv",
            "_ZN3cub17CUB_200302_800_NS11EmptyKernelIvEEvv",
        ),
    ],
)
def test_names_that_belong_to_one_build(one: str, other: str) -> None:
    assert comparable(one) == comparable(other)
    assert comparable("_Z8_cu_kernPKv") == "_Z8_cu_kernPKv"


def test_one_that_cannot_be_read(gate: Gate, tmp_path: Path) -> None:
    wheel = gate.make()
    with pytest.raises(ArtifactError):
        differ(wheel, tmp_path / "none-1-py3-none-any.whl", tmp_path / "s", Console(quiet=True))

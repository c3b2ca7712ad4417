"""Upstream's own wheels, which the tests of readers and gate share: fetched once into the store."""

from __future__ import annotations

from pathlib import Path

from pinwheel.console import Console
from pinwheel.inputs.fetch import fetch
from pinwheel.inputs.store import Store
from pinwheel.recipe.lock import Input, Role, SourceKind
from pinwheel.settings import load_settings

PROJECT = Path(__file__).resolve().parents[2]


def index_file(name: str, version: str, path: str, size: int, sha256: str) -> Input:
    """A file of the package index."""
    return Input(
        roles=(Role.REFERENCE,),
        source=SourceKind.INDEX,
        name=name,
        version=version,
        path=path,
        size=size,
        sha256=sha256,
    )


VLLM_0_6_3 = index_file(
    "vllm",
    "0.6.3",
    "vllm-0.6.3-cp38-abi3-manylinux1_x86_64.whl",
    193540602,
    "939ae90251a5676b83d0c2afb92405e4e53bfb4b79a3920c80e5b57fbe9c5ff7",
)
VLLM_0_22_1 = index_file(
    "vllm",
    "0.22.1",
    "vllm-0.22.1-cp38-abi3-manylinux_2_28_x86_64.whl",
    261042548,
    "cc50536c93827a577b2bc45f038b8b866c31ed220631008521a337c9b2558f4d",
)


def fetched(item: Input, where: Path) -> Path:
    """A file of the configured index under its own name, kept in the store between runs."""
    settings = load_settings(PROJECT)
    store = Store(settings.store)
    fetch((item,), store, settings, Console(quiet=True))
    path = where / item.path
    path.symlink_to(store.get(item))
    return path

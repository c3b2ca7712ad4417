"""The flagship wheel for one capability, from its lock to dist/: hours the first time.

``./nox -s e2e`` runs it. What was compiled before is taken from the compile cache of the ordinary
cache directory; the wheel goes to ``dist/`` as for a user.
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flagship import ARCHS, COMBO, PROJECT, pinwheel

from pinwheel.build.bench import Bench, set_up
from pinwheel.build.order import Order, Request, take_order
from pinwheel.buildroot.environment import install_environment
from pinwheel.buildroot.sandbox import Bind
from pinwheel.console import Console
from pinwheel.inputs.store import Store
from pinwheel.recipe.lock import Role
from pinwheel.settings import Settings, load_settings

HERE = Path(__file__).parent

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(6 * 3600)]


@pytest.fixture(scope="module")
def again(built: dict[str, Any]) -> dict[str, Any]:
    """Built anew although nothing changed, from the store alone and without any network."""
    command = ("build", "--combo", COMBO, "--archs", ARCHS, "--again", "--offline")
    return pinwheel(*command, prefix=("unshare", "--net") if os.geteuid() == 0 else ())


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(PROJECT)


@pytest.fixture(scope="module")
def order(settings: Settings) -> Order:
    return take_order(Request(combo=COMBO, archs=ARCHS), settings)


@pytest.fixture(scope="module")
def bench(order: Order, settings: Settings, built: dict[str, Any]) -> Bench:
    store = Store(settings.store)
    files = {i.sha256: store.get(i) for i in order.lock.inputs}
    return set_up(order.lock, files, settings, order.capabilities, Console(quiet=True))


def test_the_wheel_says_what_it_is(built: dict[str, Any]) -> None:
    wheel = Path(built["wheel"])
    assert built["version"] == "0.6.3+cu121.torch2.3.ctk124"
    assert wheel.name == f"vllm-{built['version']}-0sm80-cp38-abi3-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        info = f"vllm-{built['version']}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        inside = json.loads(archive.read(f"{info}/pinwheel.json"))
        version = archive.read("vllm/_version.py").decode()
    assert f"Version: {built['version']}\n" in metadata
    for line in ("torch==2.3.0", "torchvision==0.18.0"):
        assert f"Requires-Dist: {line}\n" in metadata
    assert "2.4.0" not in metadata
    assert built["version"] in version
    assert inside["lock-sha256"] == built["manifest"]["lock-sha256"]
    (exception,) = inside["code-exceptions"]
    assert (exception["capability"], exception["fault"]) == ("9.0", "kernels")


def test_only_the_capability_asked_for_is_inside(built: dict[str, Any]) -> None:
    libraries = built["manifest"]["libraries"]
    # 27 as in the official wheel (docs/wheel.md); Hopper's kernels are left out for 8.0 alone.
    assert libraries["vllm/_C.abi3.so"]["cubins"] == {"sm_80": 27}
    assert set(libraries["vllm/_moe_C.abi3.so"]["cubins"]) == {"sm_80"}
    assert libraries["vllm/_core_C.abi3.so"]["device-code"] is False


def test_sums_hold(built: dict[str, Any]) -> None:
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(command, cwd=Path(built["wheel"]).parent, check=False).returncode == 0


def test_parity_is_explained_and_in_the_manifest(built: dict[str, Any]) -> None:
    parity = built["manifest"]["parity"]
    assert parity["official"].startswith("vllm-0.6.3-cp38-abi3-")
    assert all(d["reason"] for d in parity["differences"]), parity["differences"]


def test_nothing_changed_takes_seconds(built: dict[str, Any]) -> None:
    report = pinwheel("build", "--combo", COMBO, "--archs", ARCHS)
    assert report["unchanged"] is True
    assert report["build"] is None
    assert report["sha256"] == built["sha256"]


def test_built_again_without_network_it_is_the_same(
    built: dict[str, Any], again: dict[str, Any]
) -> None:
    assert again["build"] is not None
    assert again["sha256"] == built["sha256"]
    assert again["verify"]["fits"] is True
    assert len([o for names in again["proof"]["operators"].values() for o in names]) == 63
    assert set(again["proof"]["libraries"]) >= {"libtorch", "libc10", "libcudart"}


@pytest.mark.parametrize("script", ["guards.py", "guided.py"])
def test_patches_do_what_their_headers_say(
    script: str, order: Order, bench: Bench, built: dict[str, Any], settings: Settings
) -> None:
    """Inside the root, in the environment of the run lock, on the wheel that was built."""
    wheel = Path(built["wheel"])
    environment = install_environment(
        order.lock.with_role(Role.RUN),
        bench.files,
        extra={wheel.name: wheel},
        sandbox=bench.sandbox,
        tools=bench.tools,
        cache=settings.cache / "envs",
        label=script,
        console=Console(quiet=True),
    )
    result = bench.sandbox.run(
        ["/opt/env/bin/python", f"/opt/e2e/{script}", f"/opt/env/{bench.site}"],
        binds=[
            Bind(environment, "/opt/env"),
            Bind(HERE, "/opt/e2e"),
            Bind(bench.toolkit.path / "lib64/stubs", "/opt/driver"),
        ],
        env={
            "LD_LIBRARY_PATH": "/opt/driver",
            "PATH": "/opt/env/bin:/usr/bin:/bin",
            "HF_HUB_OFFLINE": "1",
        },
    )
    assert result.returncode == 0, result.output

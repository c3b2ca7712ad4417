"""The gate on upstream's own wheels: what is known of them, and what it must say.

The wheels are fetched once into the store of the configured cache (460 MB).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from official_kit import PROJECT, VLLM_0_22_1, fetched

from pinwheel.console import Console
from pinwheel.recipe.lock import Input, Role
from pinwheel.recipe.lockfile import read_lock
from pinwheel.settings import load_settings
from pinwheel.verify.model import Outcome, Report, Status
from pinwheel.verify.run import Request, verify_wheel

COMBO = "cu121-torch2.3-vllm0.6.3"
C, FLASH = "vllm/_C.abi3.so", "vllm/vllm_flash_attn/vllm_flash_attn_c.abi3.so"

#: What `_C` of 0.6.3 needs and torch 2.3.0 lacks; measured with nm on both.
MISSING = {
    "_ZN3c1021throwNullDataPtrErrorEv",
    "_ZN3c1021warnDeprecatedDataPtrEv",
    "_ZN5torch3jit11parseSchemaERKSsb",
    "_ZN5torch3jit17parseSchemaOrNameERKSsb",
    "_ZNK3c105Error4whatEv",
}
pytestmark = [pytest.mark.network, pytest.mark.slow]
Verify = Callable[..., Report]


@cache
def reference() -> Input:
    """The official 0.6.3 wheel, as the flagship's lock names it."""
    lock = read_lock(next(PROJECT.glob(f"recipes/{COMBO}/lock.*.toml")))
    (item,) = lock.with_role(Role.REFERENCE)
    return item


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Verify:
    """Verifies vllm 0.6.3 with the given options, each once."""
    wheel = fetched(reference(), tmp_path_factory.mktemp("official"))

    @cache
    def verify(**options: str) -> Report:
        request = Request(**options)  # type: ignore[arg-type]
        return verify_wheel(wheel, request, load_settings(PROJECT), Console(quiet=True))

    return verify


def outcome(report: Report, rule: str) -> Outcome:
    (found,) = (o for o in report.outcomes if o.rule == rule)
    return found


def said(found: Outcome) -> str:
    return "\n".join("\n".join((p.what, *p.evidence, p.next_step)) for p in found.problems)


def test_it_fits_the_torch_it_was_built_for(old: Verify) -> None:
    report = old()
    assert report.claim["torch"]["value"] == "2.4.0+cu121"
    for rule in (
        *("names-agree", "record-true", "torch-pin", "abi3-true", "no-vendored", "no-rpath"),
        *("torch-known", "abi-flag", "abi-version", "abi-internal", "abi-link", "abi-resolved"),
        *("code-present", "code-native", "torch-code"),
    ):
        assert outcome(report, rule).status is Status.PASSED, said(outcome(report, rule))
    assert report.fits
    assert not report.broken(Status.FAILED, Status.UNKNOWN)


def test_its_false_tag_is_reported(old: Verify) -> None:
    tags = outcome(old(), "tags-agree")
    assert tags.status is Status.WARNING
    assert "file name: manylinux1_x86_64, WHEEL: linux_x86_64" in said(tags)
    platform = outcome(old(), "platform-tag")
    assert platform.status is Status.WARNING
    assert "GLIBC_2.14 of libc.so.6 (memcpy)" in said(platform)
    assert "The right tag is manylinux_2_17_x86_64" in said(platform)


def test_torch_2_3_lacks_five_symbols(old: Verify) -> None:
    report = old(torch="2.3.0+cu121")
    version = outcome(report, "abi-version")
    assert version.status is Status.FAILED
    (of_c,) = (p for p in version.problems if p.subject == C)
    symbols = {m["symbol"] for m in report.facts["abi"][C]["missing"]}
    assert symbols == MISSING
    assert all(any(symbol in line for line in of_c.evidence) for symbol in MISSING)
    assert "torch version drift" in said(version)
    for rule in ("abi-flag", "abi-internal", "abi-link", "abi-resolved"):
        assert outcome(report, rule).status is Status.PASSED
    assert not report.fits
    assert report.claim["overridden"]
    # METADATA asks for 2.4.0, so an installer would refuse it as well.
    assert outcome(report, "torch-pin").status is Status.FAILED


def test_a_torch_of_the_other_flag(old: Verify) -> None:
    report = old(torch="2.11.0+cu130")
    assert outcome(report, "abi-flag").status is Status.FAILED
    names = {m["symbol"] for m in report.facts["abi"][C]["missing"]}
    assert "_ZN3c104cuda9SetDeviceEa" in names
    assert "libcudart.so.12" in said(outcome(report, "abi-version"))


def test_its_cubins_are_counted_as_cuobjdump_does(old: Verify) -> None:
    libraries = old().facts["libraries"]
    assert libraries[C]["targets"] == {
        "ptx sm_52": 1, "sm_52": 1, "sm_70": 19, "sm_75": 20, "sm_80": 27, "sm_86": 27,
        "sm_89": 27, "sm_90": 27, "sm_90a": 25,
    }  # fmt: skip
    assert libraries[FLASH]["targets"] == {"sm_80": 64, "sm_90": 64}


def test_flash_attention_covers_8_6_and_8_9_by_same_major_code(old: Verify) -> None:
    report = old(archs="8.0;8.6;8.9;9.0")
    for rule in ("code-present", "code-libraries", "code-native"):
        assert outcome(report, rule).status is Status.PASSED
    gpus = {row["gpu"]: row for row in report.facts["gpus"]}
    assert gpus["8.0"]["verdict"] == gpus["9.0"]["verdict"] == "native"
    for gpu in ("8.6", "8.9"):
        assert (gpus[gpu]["verdict"], gpus[gpu]["limited-by"]) == ("runs", FLASH)
    assert gpus["12.0"]["verdict"] == gpus["8.7"]["verdict"] == "does not run"
    assert gpus["7.0"]["without"] == [FLASH]


def test_upstreams_own_list_promises_more_than_flash_attention_has(old: Verify) -> None:
    found = outcome(old(), "code-libraries")
    assert found.status is Status.WARNING
    assert f"{FLASH} has no code that runs on 7.0 7.5" in said(found)


def test_it_is_not_the_flagship(old: Verify) -> None:
    """A10, and parity with itself."""
    report = old(combo=COMBO)
    assert outcome(report, "torch-pin").status is Status.FAILED
    assert "which excludes 2.3.0" in said(outcome(report, "torch-pin"))
    companions = said(outcome(report, "companion-pins"))
    assert "torchvision 0.18.0" in companions
    assert "xformers 0.0.26.post1" in companions
    assert outcome(report, "parity").status is Status.PASSED


def test_a_newer_one_uses_the_stable_abi_and_fits_its_torch(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    wheel = fetched(VLLM_0_22_1, tmp_path_factory.mktemp("official"))
    settings = load_settings(PROJECT)
    report = verify_wheel(wheel, Request(), settings, Console(quiet=True))
    assert report.claim["torch"]["value"] == "2.11.0+cu130"
    stable = report.facts["libraries"]["vllm/_C_stable_libtorch.abi3.so"]
    assert stable["torch-abi"] == "stable"
    assert re.fullmatch(r"2\.\d+\.\d+", stable["torch-minimum"])
    for rule in ("abi-flag", "abi-version", "abi-internal", "abi-link", "abi-resolved"):
        assert outcome(report, rule).status is Status.PASSED, said(outcome(report, rule))
    assert outcome(report, "tags-agree").status is Status.WARNING
    assert outcome(report, "platform-tag").status is Status.PASSED
    # abi3audit says the same of spinloop, and names PyObject_CallNoArgs besides: test_peers.py.
    assert "PyBuffer_Release" in said(outcome(report, "abi3-true"))
    assert report.fits
    gpus = {row["gpu"]: row for row in report.facts["gpus"]}
    assert "vllm/_flashmla_C.abi3.so" in gpus["8.0"]["without"]
    assert gpus["8.0"]["verdict"] == "native"
    assert gpus["9.0"]["verdict"] == "JIT"  # FlashAttention 2 is 8.0+PTX


#: Runs a command and says how much memory its largest process took: this one's own children
#: count those of every test before.
MEASURE = (
    "import resource, subprocess, sys\n"
    "code = subprocess.run(sys.argv[1:]).returncode\n"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    "sys.exit(code)\n"
)


def test_it_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    wheel = fetched(reference(), tmp_path)
    verify = (sys.executable, "-m", "pinwheel.cli.main", "verify", str(wheel), "--quiet")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *verify],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary, peak = done.stdout.splitlines()
    assert summary.startswith(f"{wheel.name}: fits: ")
    assert int(peak) < 1_000_000  # kB

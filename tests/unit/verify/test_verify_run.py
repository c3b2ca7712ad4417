"""A whole small wheel against every rule, and damaged in one way for each of them."""

from __future__ import annotations

import pytest
from verify_kit import (
    ONLY_NEWER,
    VERSION,
    Gate,
    Parts,
    Sec,
    Sym,
    broken,
    cubin_entry,
    ptx_entry,
    told,
    torch_builds,
)

from pinwheel.verify.model import Profile, Status
from pinwheel.verify.rules import RULES, asked


def test_a_right_wheel_passes_every_rule(gate: Gate) -> None:
    report = gate.report(profile=Profile.RELEASE)
    assert broken(report) == {}, [o.as_dict() for o in report.broken()]
    assert {o.status for o in report.outcomes} == {Status.PASSED}
    assert [o.rule for o in report.outcomes] == list(RULES)
    assert report.fits
    assert report.summary() == f"{gate.wheel.name}: fits: {len(RULES)} rules passed"


def test_what_a_release_alone_must_be_is_not_asked_of_ours(gate: Gate) -> None:
    report = gate.report()
    passed = [o.rule for o in report.broken(Status.PASSED)]
    assert passed == list(asked(Profile.OURS))
    assert {o.reason for o in report.broken(Status.NOT_APPLICABLE)} == {
        "asked of a release alone (--profile release)"
    }


def _names(parts: Parts) -> None:
    parts.info = f"tinypack-{VERSION.replace('1.2', '1.3')}.dist-info"


def _record(parts: Parts) -> None:
    parts.record["tinypack/__init__.py"] = "tinypack/__init__.py,sha256=AAAA,19"


def _tags(parts: Parts) -> None:
    parts.wheel_tag = "linux_x86_64"


def _manifest(parts: Parts) -> None:
    parts.manifest["platform-tag"] = "manylinux_2_34_x86_64"


def _torch_pin(parts: Parts) -> None:
    parts.official = None
    parts.requires[0] = "torch==2.4.0"  # A10


def _companion(parts: Parts) -> None:
    parts.official = None
    parts.requires[1] = "torchvision==0.19"


def _platform(parts: Parts) -> None:
    parts.c.symbols.append(Sym("pow", version=("libc.so.6", "GLIBC_2.34")))  # E3


def _abi3(parts: Parts) -> None:
    parts.c.symbols.append(Sym("PyUnicode_AsUTF8AndSize"))  # limited since 3.10, tagged cp38


def _vendored(parts: Parts) -> None:
    parts.core.soname = "libcudart.so.12"  # E4


def _rpath(parts: Parts) -> None:
    parts.c.tags.append((29, "$ORIGIN/../torch/lib"))


def _build_path(parts: Parts) -> None:
    parts.core.sections.append(Sec(".rodata", b"\0/build/src/csrc/cache.cu\0"))


def _stack(parts: Parts) -> None:
    parts.c.stack = 7


def _stripped(parts: Parts) -> None:
    parts.c.sections.append(Sec(".debug_info", b"\0" * 16, flags=0))


def _flag(parts: Parts) -> None:
    text = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"  # A5
    parts.c.symbols.append(Sym(f"_ZN3c106detail14torchCheckFailEPKcS2_jRK{text}"))


def _version(parts: Parts) -> None:
    parts.c.symbols.append(Sym(ONLY_NEWER))


def _internal(parts: Parts) -> None:
    name = "_Z20cutlass_moe_mm_sm100RN2at6TensorERKS0_S3_S3_S3_S3_S3_S3_S3_S3_bb"  # A6
    parts.c.symbols.append(Sym(name))


def _link(parts: Parts) -> None:
    parts.c.symbols.append(Sym("cufftExecC2C"))


def _nobody(parts: Parts) -> None:
    parts.c.symbols.append(Sym("a_function_nobody_has"))


def _preload(parts: Parts) -> None:
    parts.c.symbols.append(Sym("cublasHgemm"))


def _present(parts: Parts) -> None:
    for library in (parts.c, parts.moe):
        library.entries = [cubin_entry(80)]


def _libraries(parts: Parts) -> None:
    parts.moe.entries = [cubin_entry(80)]


def _native(parts: Parts) -> None:
    parts.moe.entries = [cubin_entry(80), ptx_entry(90)]


def _kernels(parts: Parts) -> None:
    parts.c.entries[0] = cubin_entry(80, "k", "forgotten")


def _declared(parts: Parts) -> None:
    parts.c.entries.append(cubin_entry(75))


def _exception(parts: Parts) -> None:
    parts.recipe = (
        '\n[[code-exceptions]]\nlibrary = "tinypack/_C.abi3.so"\ncapability = "9.0"\n'
        'fault = "missing"\nreason = "once"\n'
    )


def _torch_code(parts: Parts) -> None:
    parts.builds = torch_builds("8.0")  # B7


def _parity(parts: Parts) -> None:
    parts.files["tinypack/__init__.py"] = b"import os\n"


def _two(parts: Parts) -> None:
    parts.loaded["libc10"].append("/opt/env/tinypack/libc10.so")


def _missing_pin(parts: Parts) -> None:
    parts.official = None
    parts.requires[0] = "torch>=2.3"


def _local_pin(parts: Parts) -> None:
    parts.official = None
    parts.requires[0] = "torch==2.3.0+cu121"


def _unlocked(parts: Parts) -> None:
    parts.official = None
    parts.requires.append("pandas")


def _unloaded(parts: Parts) -> None:
    parts.c.needed.append("libcufft.so.11")


def _other_cuda(parts: Parts) -> None:
    parts.moe.needed[-1] = "libcudart.so.13"
    parts.moe.symbols = [s for s in parts.moe.symbols if s.name != "cudaLaunchKernel"]


def _unrecorded(parts: Parts) -> None:
    parts.record["tinypack/__init__.py"] = "tinypack/gone.py,sha256=AAAA,1"


def _outside(parts: Parts) -> None:
    parts.core.symbols.append(Sym("_PyLong_AsByteArray"))


def _audit(parts: Parts) -> None:
    parts.c.tags.append((0x6FFFFEFC, "libspy.so"))


def _cubins(parts: Parts) -> None:
    parts.manifest["lock-sha256"] = "5" * 64


def _no_code(parts: Parts) -> None:
    parts.moe.entries = []


#: Rule that breaks, how the wheel is damaged, and what the report must say.
DAMAGES = {
    "names": ("names-agree", _names, "1.3+cu121"),
    "record": ("record-true", _record, "tinypack/__init__.py"),
    "unrecorded": ("record-true", _unrecorded, "tinypack/gone.py"),
    "tags": ("tags-agree", _tags, "linux_x86_64"),
    "manifest": ("manifest-agrees", _manifest, "manylinux_2_34"),
    "torch-pin": ("torch-pin", _torch_pin, "torch==2.4.0"),
    "no-pin": ("torch-pin", _missing_pin, "leaves the torch release open"),
    "local-pin": ("torch-pin", _local_pin, "cannot be met by an index"),
    "companion": ("companion-pins", _companion, "torchvision 0.18.0"),
    "unlocked": ("companion-pins", _unlocked, "pandas"),
    "platform": ("platform-tag", _platform, "manylinux_2_34_x86_64"),
    "abi3": ("abi3-true", _abi3, "needs Python 3.10"),
    "abi3-outside": ("abi3-true", _outside, "_PyLong_AsByteArray"),
    "vendored": ("no-vendored", _vendored, "libcudart.so.12"),
    "rpath": ("no-rpath", _rpath, "$ORIGIN/../torch/lib"),
    "build-path": ("no-build-path", _build_path, "/build/src/csrc/cache.cu"),
    "stack": ("no-exec-stack", _stack, "PT_GNU_STACK"),
    "stripped": ("stripped", _stripped, ".debug_info"),
    "flag": ("abi-flag", _flag, "_GLIBCXX_USE_CXX11_ABI=1"),
    "version": ("abi-version", _version, ONLY_NEWER),
    "other-cuda": ("abi-version", _other_cuda, "libcudart.so.12"),
    "internal": ("abi-internal", _internal, "cutlass_moe_mm_sm100"),
    "link": ("abi-link", _link, "libcufft.so.11"),
    "unloaded": ("abi-link", _unloaded, "does not load"),
    "nobody": ("abi-resolved", _nobody, "a_function_nobody_has"),
    "audit": ("abi-resolved", _audit, "libspy.so"),
    "preload": ("abi-preload", _preload, "libcublas.so.12"),
    "present": ("code-present", _present, "9.0"),
    "libraries": ("code-libraries", _libraries, "_moe_C.abi3.so"),
    "no-code": ("code-libraries", _no_code, "no device code at all"),
    "native": ("code-native", _native, "by PTX alone"),
    "kernels": ("code-kernels", _kernels, "forgotten"),
    "declared": ("code-declared", _declared, "7.5"),
    "exception": ("code-exceptions", _exception, "stale"),
    "torch-code": ("torch-code", _torch_code, "does not run on 9.0"),
    "parity": ("parity", _parity, "tinypack/__init__.py"),
    "two-libtorch": ("one-libtorch", _two, "/opt/env/tinypack/libc10.so"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_one_damage_breaks_its_rule_and_no_other(gate: Gate, name: str) -> None:
    rule, damage, says = DAMAGES[name]
    parts = Parts()
    damage(parts)
    report = gate.report(parts)
    status = Status.WARNING if rule == "abi-preload" else Status.FAILED
    assert broken(report) == {rule: status}, [o.as_dict() for o in report.broken()]
    assert says in told(report, rule)
    assert report.fits is (status is Status.WARNING)


def test_every_rule_has_a_damage_but_the_one_on_torch_itself() -> None:
    # What only a release must be stands in test_verify_release.
    damaged = {rule for rule, _, _ in DAMAGES.values()}
    assert damaged == {*asked(Profile.OURS)} - {"torch-known"}

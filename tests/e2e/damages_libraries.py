"""Damages inside the libraries: what they need, what they import, the code they hold."""

from __future__ import annotations

from collections.abc import Callable

import damages_fatbin as fatbin
from damages_elf import (
    AUDIT,
    NEEDED,
    PROGBITS,
    PT_GNU_STACK,
    PT_NULL,
    RPATH,
    RUNPATH,
    SONAME,
    STRINGS,
    SYMTAB,
    debugging_symbol,
)
from damages_kit import CORE, MOE, C, Damage
from damages_wheel import Wheel

from pinwheel.verify.model import Status

#: How an import from libtorch begins that any of its libraries has, and an import from Python.
TORCH, PYTHON = "_ZN3c10", "Py"


# --- the platform ---------------------------------------------------------------------------------


def _newer_glibc(wheel: Wheel) -> None:
    wheel.library(CORE).set_version("libc.so.6", "GLIBC_2.38")


def _imports(name: str, new: str, beginning: str = TORCH) -> Callable[[Wheel], None]:
    """A library imports ``new`` in the place of something it imported."""
    return lambda wheel: wheel.library(name).rename(beginning, new)


def _tagged(tag: int, text: str) -> Callable[[Wheel], None]:
    return lambda wheel: wheel.library(CORE).add_tag(tag, text)


def _copied(wheel: Wheel) -> None:
    wheel.files["vllm/libnvrtc.so.12"] = wheel.files[CORE]


def _build_path(wheel: Wheel) -> None:
    # What -frecord-gcc-switches leaves behind.
    switches = b"GNU C++17 12.2.0 -O2 -fPIC -I/build/src/csrc\0"
    wheel.library(CORE).add_section(".GCC.command.line", PROGBITS, switches)


def _executable(wheel: Wheel) -> None:
    wheel.library(C).set_segment(PT_GNU_STACK, flags=7)


def _no_stack(wheel: Wheel) -> None:
    wheel.library(MOE).set_segment(PT_GNU_STACK, to=PT_NULL)


def _symbols(wheel: Wheel) -> None:
    library = wheel.library(C)
    names = b"\0tmpxft_00000abc_00000000-6_cache_kernels.cudafe1.cpp\0"
    library.add_section(".strtab", STRINGS, names)
    library.add_section(".symtab", SYMTAB, debugging_symbol(), link=".strtab")


def _debug(wheel: Wheel) -> None:
    wheel.library(CORE).add_section(".debug_line", PROGBITS, bytes(64))


PLATFORM = {
    "glibc": Damage(rule="platform-tag", do=_newer_glibc, says="GLIBC_2.38"),
    "abi3-newer": Damage(
        rule="abi3-true",
        do=_imports(CORE, "PyUnicode_AsUTF8AndSize", PYTHON),
        says="needs Python 3.10",
    ),
    "abi3-outside": Damage(
        rule="abi3-true",
        do=_imports(MOE, "_PyLong_AsByteArray", PYTHON),
        says="_PyLong_AsByteArray",
    ),
    "vendored-soname": Damage(
        rule="no-vendored", do=_tagged(SONAME, "libnvrtc.so.12"), says="libnvrtc.so.12"
    ),
    "vendored-copy": Damage(
        rule="no-vendored",
        do=_copied,
        says="vllm/libnvrtc.so.12",
        also={
            "manifest-agrees": (Status.FAILED, "it names every library of the wheel"),
            "parity": (Status.FAILED, "the official wheel has no such file"),
        },
    ),
    "runpath": Damage(
        rule="no-rpath", do=_tagged(RUNPATH, "$ORIGIN/../torch/lib"), says="$ORIGIN/../torch/lib"
    ),
    "rpath": Damage(rule="no-rpath", do=_tagged(RPATH, "/usr/local/cuda/lib64"), says="RPATH"),
    "build-path": Damage(rule="no-build-path", do=_build_path, says="/build/src/csrc"),
    "stack-executable": Damage(rule="no-exec-stack", do=_executable, says=C),
    "stack-unsaid": Damage(rule="no-exec-stack", do=_no_stack, says=MOE),
    "symbol-table": Damage(rule="stripped", do=_symbols, says=".symtab"),
    "debug-lines": Damage(rule="stripped", do=_debug, says=".debug_line"),
}


# --- libtorch -------------------------------------------------------------------------------------


def _no_such_torch(wheel: Wheel) -> None:
    wheel.stated["torch"]["cuda"] = "11.8"


def _next_cuda(wheel: Wheel) -> None:
    library = wheel.library(MOE)
    library.set_needed("libcudart.so.12", "libcudart.so.13")
    library.set_version("libcudart.so.12", "libcudart.so.13", of="libcudart.so.13")


_NOBODY = "it cannot be answered for a torch build that is not known"
_OLD, _NEW = "Ss", "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_CHECK = "_ZN3c106detail14torchCheckFailEPKcS2_jRK"

LIBTORCH = {
    "torch-unknown": Damage(
        rule="torch-known",
        do=_no_such_torch,
        says="2.3.0+cu118",
        status=Status.UNKNOWN,
        also={
            "manifest-agrees": (Status.FAILED, "the matrix has no such build either"),
            "abi-flag": (Status.UNKNOWN, _NOBODY),
            "abi-version": (Status.UNKNOWN, _NOBODY),
            "abi-internal": (Status.UNKNOWN, _NOBODY),
            "abi-link": (Status.UNKNOWN, _NOBODY),
            "abi-resolved": (Status.UNKNOWN, _NOBODY),
            "abi-preload": (Status.WARNING, _NOBODY),
            "torch-code": (Status.UNKNOWN, _NOBODY),
        },
        # With --combo the matrix says which build is meant, whatever the wheel says.
        asked={"combo": None},
    ),
    "flag": Damage(
        rule="abi-flag",
        do=_imports(CORE, _CHECK + _NEW, _CHECK + _OLD),
        says="_GLIBCXX_USE_CXX11_ABI=1",
    ),
    "newer-torch": Damage(
        rule="abi-version",
        do=_imports(CORE, "_ZN3c1021throwNullDataPtrErrorEv"),
        says="built for torch 2.4",
    ),
    "next-cuda": Damage(rule="abi-version", do=_next_cuda, says="libcudart.so.13"),
    "source-left-out": Damage(
        rule="abi-internal",
        do=_imports(CORE, "_Z20cutlass_moe_mm_sm100RN2at6TensorERKS0_S3_S3_S3_S3_S3_S3_S3_S3_bb"),
        says="cutlass_moe_mm_sm100",
    ),
    "not-linked": Damage(
        rule="abi-link", do=_imports(CORE, "nvrtcAddNameExpression"), says="libnvrtc.so.12"
    ),
    "not-loaded": Damage(
        rule="abi-link", do=_tagged(NEEDED, "libnvrtc.so.12"), says="does not load"
    ),
    "nobody": Damage(
        rule="abi-resolved",
        do=_imports(CORE, "a_function_nobody_has"),
        says="a_function_nobody_has",
    ),
    "audit": Damage(rule="abi-resolved", do=_tagged(AUDIT, "libspy.so"), says="libspy.so"),
    "preloaded": Damage(
        rule="abi-preload",
        do=_imports(CORE, "cublasHgemm"),
        says=f"{CORE} uses libcublas.so.12",
        status=Status.WARNING,  # for anyone's wheel
    ),
}


# --- machine code ---------------------------------------------------------------------------------


def _compiled(arch: int, *libraries: str, declared: str) -> Callable[[Wheel], None]:
    """Libraries have their code for ``arch``, and the manifest declares these capabilities."""

    def do(wheel: Wheel) -> None:
        for name in libraries:
            fatbin.retarget(wheel.library(name), arch)
        wheel.stated["capabilities"] = declared.split()
        # Of the recipe's own, or the manifest would contradict itself.
        recipe = wheel.stated["capabilities-of-recipe"].split(";")
        more = [c for c in declared.split() if c not in recipe]
        wheel.stated["capabilities-of-recipe"] = ";".join([*recipe, *more])

    return do


def _for_hopper(wheel: Wheel) -> None:
    """Every kernel has code for 9.0, also the one that the recipe excuses."""
    _compiled(90, C, MOE, declared="9.0")(wheel)
    # In a wheel for 9.0 these have kernels: recipe.toml, [[kernels-for]].
    names = (b"machete_gemm", b"machete_prepack_B", b"machete_supported_schedules")
    text = b"\0".join([b"", *names, b""])
    wheel.library(C).add_section(".rodata.machete", PROGBITS, text)


def _erased(wheel: Wheel) -> None:
    fatbin.erase(wheel.library(MOE))


def _ptx(wheel: Wheel) -> None:
    fatbin.to_ptx(wheel.library(MOE))


def _one_as_ptx(wheel: Wheel) -> None:
    library = wheel.library(MOE)
    fatbin.to_ptx(library, fatbin.with_kernels(library))


def _one_newer(wheel: Wheel) -> None:
    library = wheel.library(C)
    fatbin.retarget(library, 86, fatbin.with_kernels(library))


CODE = {
    "present": Damage(
        rule="code-present",
        do=_compiled(86, C, MOE, declared="8.0 8.6"),
        says="no library has code for 8.0",
    ),
    "library-without": Damage(
        rule="code-libraries", do=_compiled(86, MOE, declared="8.0 8.6"), says=MOE
    ),
    "library-erased": Damage(rule="code-libraries", do=_erased, says="no device code at all"),
    "native": Damage(rule="code-native", do=_ptx, says="by PTX alone"),
    "kernels": Damage(rule="code-kernels", do=_one_as_ptx, says="have no machine code for 8.0"),
    "declared": Damage(rule="code-declared", do=_one_newer, says="holds code for 8.6"),
    "exception": Damage(rule="code-exceptions", do=_for_hopper, says="is stale"),
    "torch-code": Damage(
        rule="torch-code",
        do=_compiled(120, C, MOE, declared="12.0"),
        says="does not run on 12.0",
    ),
}

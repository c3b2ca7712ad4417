"""A stub of libcuda.so.1, made from the names that cuda.h declares.

The driver library belongs to the machine that runs a wheel, never to the one that builds it;
linking needs its names and SONAME only. Every function of the stub returns
CUDA_ERROR_STUB_LIBRARY, which cuda.h documents for exactly this case.
"""

from __future__ import annotations

import re

from pinwheel.errors import ToolkitError

SONAME = "libcuda.so.1"

# No unwind tables, no identity: the same names give the same bytes.
COMPILE_ARGS = (
    "-shared",
    "-fPIC",
    "-O1",
    "-w",
    "-nostdlib",
    "-fno-asynchronous-unwind-tables",
    "-fno-ident",
    f"-Wl,-soname,{SONAME}",
    "-Wl,--build-id=none",
    "-Wl,--hash-style=gnu",
)

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DECLARED = re.compile(r"\bCUresult\s+CUDAAPI\s+(?:__CUDA_API_PT[DS][SZ]\(\s*)?(cu[A-Z]\w*)")
_ALIAS = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(cu[A-Z]\w*)[ \t]+"
    r"(?:__CUDA_API_(PTDS|PTSZ)\((cu[A-Z]\w*)\)|(cu[A-Z]\w*))",
    re.MULTILINE,
)
_STUB_ERROR = re.compile(r"\bCUDA_ERROR_STUB_LIBRARY\s*=\s*(\d+)")


def driver_functions(cuda_h: str) -> tuple[str, ...]:
    """Names of the driver API's functions, sorted.

    cuda.h renames many of them with macros (``cuMemAlloc`` to ``cuMemAlloc_v2``, and to the
    ``_ptds`` and ``_ptsz`` forms under per-thread default streams); both names are exported by
    the real library, so both are listed.
    """
    text = _COMMENT.sub(" ", cuda_h)
    names = set(_DECLARED.findall(text))
    for plain, variant, inner, renamed in _ALIAS.findall(text):
        if plain not in names and (inner or renamed) not in names:
            continue  # an alias of a type or a constant
        names.add(plain)
        names.add(inner or renamed)
        if variant:
            names.add(f"{inner}_{variant.lower()}")
    return tuple(sorted(names))


def stub_source(cuda_h: str) -> str:
    """C source of the stub for the text of a cuda.h; the same text gives the same source.

    Raises:
        ToolkitError: the text declares no driver function, or no code for stubs to return.
    """
    names = driver_functions(cuda_h)
    code = _STUB_ERROR.search(_COMMENT.sub(" ", cuda_h))
    if not names or code is None:
        raise ToolkitError(
            "cuda.h declares no driver API to make a stub of.",
            evidence=[f"functions found: {len(names)}", f"stub error code found: {bool(code)}"],
            next_step="The toolkit's cuda.h is not what was expected: look at the parts it has.",
        )
    lines = [
        f"/* Stub of {SONAME}: {len(names)} names from cuda.h; link against it, never run it. */",
        *(f"int {name}(void) {{ return {code.group(1)}; }}" for name in names),
    ]
    return "\n".join(lines) + "\n"

"""Refuses a toolchain before anything compiles: gcc too new for nvcc, or not the recipe's nvcc."""

from __future__ import annotations

import re
from pathlib import Path

from pinwheel.errors import ContradictionError, ToolchainError, ToolkitError
from pinwheel.toolkit.runner import Runner

_LIMIT = re.compile(r"^\s*#\s*if\s+__GNUC__\s*>\s*(\d+)\s*$", re.MULTILINE)
_NVCC_VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)\b")


def header_gcc_limit(host_config: str) -> int | None:
    """The newest gcc major that ``crt/host_config.h`` lets through; None when it sets no limit."""
    found = _LIMIT.search(host_config)
    return int(found[1]) if found else None


def check_gcc(gcc: str, *, line: str, newest: int, cuda_home: Path | None = None) -> None:
    """Refuse a gcc that the CUDA line does not take.

    Args:
        gcc: the compiler's version, ``12.2.0`` or ``12``.
        line: CUDA line, ``12.4``.
        newest: newest gcc major of that line, from the matrix.
        cuda_home: an assembled toolkit, whose own limit must then equal ``newest``.

    Raises:
        ToolchainError: the compiler is too new, or its version cannot be read.
        ContradictionError: matrix and toolkit disagree about the limit.
    """
    found = re.match(r"\d+", gcc)
    if found is None:
        raise ToolchainError(
            f"The compiler's version {gcc!r} cannot be read.",
            evidence=[f"CUDA {line} takes gcc up to {newest}"],
            next_step="Use the compiler of the locked build root.",
        )
    if cuda_home is not None:
        header = cuda_home / "include" / "crt" / "host_config.h"
        limit = header_gcc_limit(header.read_text("utf-8", "replace"))
        if limit is not None and limit != newest:
            raise ContradictionError(
                f"Matrix and toolkit disagree about the newest gcc for CUDA {line}.",
                evidence=[f"arch_matrix.toml: {newest}", f"{header}: {limit}"],
                next_step="Correct the line's newest gcc in arch_matrix.toml.",
            )
    if int(found[0]) > newest:
        raise ToolchainError(
            f"gcc {gcc} is too new for CUDA {line}, whose nvcc takes gcc up to {newest}.",
            evidence=[f"compiler: gcc {gcc}", f"rule: CUDA {line} takes gcc {newest} or older"],
            next_step=f"Compile with gcc {newest} (g++-{newest}) or older; the locked build root "
            "brings one that fits.",
        )


def check_nvcc(cuda_home: str, *, version: str, run: Runner, cwd: str = "/") -> str:
    """Ask the toolkit's own nvcc, by its full path, for its version; PATH has no say.

    Args:
        cuda_home: CUDA_HOME where ``run`` runs things.
        version: what the toolkit's spec names.
        run: runs programs there.
        cwd: a directory that exists there.

    Raises:
        ToolkitError: it does not run, or is another version.
    """
    argv = [f"{cuda_home}/bin/nvcc", "--version"]
    result = run(argv, cwd=cwd)
    found = _NVCC_VERSION.search(result.output)
    if result.returncode != 0 or found is None or found[1] != version:
        raise ToolkitError(
            f"{argv[0]} is not nvcc {version}.",
            evidence=[f"exit status {result.returncode}", *result.output.splitlines()[-10:]],
            next_step="Remove the assembled toolkit from the cache; the next build makes it anew "
            "from the lock.",
        )
    return found[1]

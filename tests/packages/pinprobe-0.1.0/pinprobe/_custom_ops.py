"""Python faces of the compiled operators."""

from __future__ import annotations

import warnings

import torch

try:
    import pinprobe._C
    import pinprobe._C_stable_libtorch  # noqa: F401
except ImportError as reason:  # no libcuda.so.1 here, say
    warnings.warn(f"pinprobe's extensions are not usable: {reason}", stacklevel=2)


def driver_version() -> int:
    """The newest CUDA version the driver serves, 13000 for 13.0."""
    return torch.ops._C.driver_version()


def silu_and_mul(input: torch.Tensor) -> torch.Tensor:
    """silu of the first half of the last dimension, times the second half."""
    out = input.new_empty((*input.shape[:-1], input.shape[-1] // 2))
    torch.ops._C.silu_and_mul(out, input)
    return out


def rms_norm(input: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """Root-mean-square normalization over the last dimension."""
    out = torch.empty_like(input)
    torch.ops._C.rms_norm(out, input, weight, epsilon)
    return out


def rotate_half(data: torch.Tensor, positions: torch.Tensor, base: float = 10000.0) -> None:
    """Rotary embedding of ``data`` (rows x width, float16), in place."""
    torch.ops._C.rotate_half(data, positions, base)


def scale(input: torch.Tensor, factor: float) -> torch.Tensor:
    """``input * factor``, from the library that uses only libtorch's stable ABI."""
    return torch.ops._C_stable_libtorch.scale(input, factor)

"""The console script ``pinprobe``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """List the operators, or run each one on the GPU and compare it with torch."""
    parser = argparse.ArgumentParser(
        prog="pinprobe", description="A few CUDA operators, built to see a build system work."
    )
    parser.add_argument("--version", action="version", version=f"pinprobe {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("ops", help="list the operators that are registered")
    commands.add_parser("check", help="run every operator on the GPU and compare it with torch")
    given = parser.parse_args(argv)
    if given.command == "ops":
        return _list()
    if given.command == "check":
        return _check()
    parser.print_help()
    return 0


def _list() -> int:
    import torch

    from . import _custom_ops  # noqa: F401

    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith(("_C::", "_C_stable_libtorch::")):
            print(name)
    return 0


def _check() -> int:
    import torch

    from . import _custom_ops as ops

    torch.manual_seed(0)
    x = torch.randn(5, 256, device="cuda")
    weight = torch.randn(256, device="cuda")
    gate, up = x.chunk(2, dim=-1)
    close = torch.testing.assert_close
    close(ops.silu_and_mul(x), torch.nn.functional.silu(gate) * up)
    close(ops.rms_norm(x, weight), torch.nn.functional.rms_norm(x, (256,), weight, 1e-6))
    close(ops.scale(x, 1.5), x * 1.5)

    data = torch.randn(5, 64, device="cuda").half()
    positions = torch.arange(5, device="cuda")
    angles = positions[:, None] * 10000.0 ** (-torch.arange(32, device="cuda") / 32)
    a, b = data.float().chunk(2, dim=-1)
    expected = torch.cat(
        (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1
    )
    ops.rotate_half(data, positions)
    close(data.float(), expected, atol=2e-3, rtol=2e-3)
    assert ops.driver_version() >= 13000
    print("4 operators agree with torch")
    return 0

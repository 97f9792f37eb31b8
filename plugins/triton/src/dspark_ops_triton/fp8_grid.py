"""Portable ``fp8_grid_quantize`` and ``fp8_grid_round``: each 32 columns on the fp8 grid, as codes or as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.codes import e4m3_code, e4m3_round, power_of_two, ue8m0_fp8_grid

#: Groups of a program: one warp, so that six rows of 5120 are 30 programs, and their largest values are shuffles.
GROUPS = 32


@triton.jit(do_not_specialize=["count"])
def grid_codes_kernel(x, codes, scales, count, GROUPS: tl.constexpr):
    """Write the codes and the scale bytes of GROUPS of `count` groups of 32 values."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    live = group < count
    place = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    values = tl.load(x + place, mask=live[:, None], other=0.0).to(tl.float32)
    byte = ue8m0_fp8_grid(tl.max(tl.abs(values), axis=1))
    tl.store(codes + place, e4m3_code(values * power_of_two(254 - byte)[:, None]), mask=live[:, None])
    tl.store(scales + group, byte.to(tl.uint8), mask=live)


@triton.jit(do_not_specialize=["count"])
def grid_values_kernel(x, out, count, GROUPS: tl.constexpr):
    """Write the values on the grid of GROUPS of `count` groups of 32 values."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    live = group < count
    place = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    values = tl.load(x + place, mask=live[:, None], other=0.0).to(tl.float32)
    byte = ue8m0_fp8_grid(tl.max(tl.abs(values), axis=1))[:, None]
    on_grid = e4m3_round(values * power_of_two(254 - byte)) * power_of_two(byte)
    tl.store(out + place, on_grid.to(tl.bfloat16), mask=live[:, None])


def fp8_grid_quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fp8 grid codes of each 32 columns and their scale bytes, row after row.

    Args:
        x: [M, K] bfloat16, contiguous, K divisible by 32; finite.

    Returns:
        codes [M, K] float8_e4m3fn, and scales [M, K / 32] uint8, 85 or more.

    Bytes moved: 3 per value and 1/32 for its scale. Launches: 1, none for no rows.

    Source: A0.2.
    """
    rows, columns = x.shape
    codes = torch.empty(rows, columns, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, columns // 32, dtype=torch.uint8, device=x.device)
    if rows:
        grid_codes_kernel[(triton.cdiv(scales.numel(), GROUPS),)](
            x, codes, scales, scales.numel(), GROUPS=GROUPS, **launch_options()
        )
    return codes.view(torch.float8_e4m3fn), scales


def fp8_grid_round(x: Tensor) -> Tensor:
    """Return the values that `fp8_grid_quantize` means, [M, K] bfloat16, which holds them exactly.

    Args:
        x: [M, K] bfloat16, contiguous, K divisible by 32; finite.

    Bytes moved: 4 per value. Launches: 1, none for no rows.

    Source: A0.2.
    """
    out = torch.empty_like(x)
    if count := x.numel() // 32:
        grid_values_kernel[(triton.cdiv(count, GROUPS),)](x, out, count, GROUPS=GROUPS, **launch_options())
    return out


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": 1, "enable_fp_fusion": False}


def prepare_fp8_grid_quantize(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `fp8_grid_quantize`, compiled for rows at 16-byte boundaries and not."""
    if device.arch.vendor != "cpu":
        for x in _rows():
            fp8_grid_quantize(x)
    return fp8_grid_quantize


def prepare_fp8_grid_round(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `fp8_grid_round`, compiled for rows at 16-byte boundaries and not."""
    if device.arch.vendor != "cpu":
        for x in _rows():
            fp8_grid_round(x)
    return fp8_grid_round


def _rows() -> tuple[Tensor, Tensor]:
    """Return rows of one group that need every build."""
    buffer = torch.zeros(33, dtype=torch.bfloat16, device="cuda")
    return buffer[None, :32], buffer[None, 1:]


__all__ = [
    "GROUPS",
    "fp8_grid_quantize",
    "fp8_grid_round",
    "grid_codes_kernel",
    "grid_values_kernel",
    "launch_options",
    "prepare_fp8_grid_quantize",
    "prepare_fp8_grid_round",
]

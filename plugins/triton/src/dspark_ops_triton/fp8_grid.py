"""Portable ``fp8_grid_quantize`` and ``fp8_grid_round``: each 32 columns on the fp8 grid, as codes or as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from dspark_ops_triton.blocks.fp8_grid import GROUPS, grid_codes_kernel, grid_values_kernel, launch_options


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


__all__ = ["fp8_grid_quantize", "fp8_grid_round", "prepare_fp8_grid_quantize", "prepare_fp8_grid_round"]

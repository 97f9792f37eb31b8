"""Portable ``fp8_grid_quantize`` and ``fp8_grid_round``: each 32 columns on the fp8 grid, as codes or as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import grid_rows
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: Four warps, eight values per thread: their largest values are shuffles.
CUT, AMD_CUT = Cut(items=32, warps=4), Cut(items=32, warps=1)


def fp8_grid_quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fp8 grid codes of each 32 columns and their scale bytes, row after row.

    Args:
        x: [M, K] bfloat16, contiguous, K divisible by 32; finite.

    Returns:
        codes [M, K] float8_e4m3fn, and scales [M, K / 32] uint8, 85 or more.

    Bytes moved: 3 per value and 1/32 for its scale. Launches: 1, none for no rows.

    Source: A0.2.
    """
    return grid_rows.fp8_grid_quantize(AMD_CUT if torch.version.hip else CUT, x)


def fp8_grid_round(x: Tensor) -> Tensor:
    """Return the values that `fp8_grid_quantize` means, [M, K] bfloat16, which holds them exactly.

    Args:
        x: [M, K] bfloat16, contiguous, K divisible by 32; finite.

    Bytes moved: 4 per value. Launches: 1, none for no rows.

    Source: A0.2.
    """
    return grid_rows.fp8_grid_round(AMD_CUT if torch.version.hip else CUT, x)


def prepare_fp8_grid_quantize(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `fp8_grid_quantize`, compiled for rows at 16-byte boundaries and not."""
    compiled = grid_rows.compile_fp8_grid
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    return prepare_cut(grid_rows.fp8_grid_quantize, cut, fp8_grid_quantize, compiled, device, site, rows)


def prepare_fp8_grid_round(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `fp8_grid_round`, compiled for rows at 16-byte boundaries and not."""
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    return prepare_cut(grid_rows.fp8_grid_round, cut, fp8_grid_round, grid_rows.compile_fp8_grid, device, site, rows)


__all__ = ["fp8_grid_quantize", "fp8_grid_round", "prepare_fp8_grid_quantize", "prepare_fp8_grid_round"]

"""Portable ``silu_mul_clamp_mxfp8`` and ``silu_mul_clamp_fp8_grid``: the activation and the fp8 grid in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, prepare_cut
from dspark_ops_triton.blocks.swiglu import compile_swiglu_grid, swiglu_grid

#: Columns of a program and its warps, or waves: 4 columns per thread, 8 on AMD, 16 bytes.
CUT, AMD_CUT = Cut(items=256, warps=2), Cut(items=512, warps=1)


def silu_mul_clamp_fp8_grid(gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor]:
    """Return the clamped SwiGLU of each row, and that rounded to the fp8 grid of each 32 columns.

    Args:
        gate_up: [M, 2 * I] bfloat16, last stride 1, I divisible by 32: the gate, then the up projection; finite.
        limit: the clamp, or None for no clamp.

    Returns:
        y, to the bit what `silu_mul_clamp` of this plugin returns, and grid, [M, I] bfloat16 each.

    Raises:
        ValueError: I is no multiple of 32.

    Bytes moved: 8 per result. Launches: 1, none for no rows.

    Source: A9 (mode fp8_grid), A0.2.
    """
    return _fp8_grid(AMD_CUT if torch.version.hip else CUT, gate_up, limit)


def _fp8_grid(cut: Cut, gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor]:
    y, grid, _ = swiglu_grid(cut, False, gate_up, limit)
    return y, grid


def silu_mul_clamp_mxfp8(gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the clamped SwiGLU of each row, and its fp8 grid codes and scale bytes, row after row.

    Args:
        gate_up: [M, 2 * I] bfloat16, last stride 1, I divisible by 32: the gate, then the up projection; finite.
        limit: the clamp, or None for no clamp.

    Returns:
        y [M, I] bfloat16, to the bit what `silu_mul_clamp` of this plugin returns; codes [M, I] float8_e4m3fn; scales
        [M, I / 32] uint8.

    Raises:
        ValueError: I is no multiple of 32.

    Bytes moved: 7 per result and 1/32 for its scale. Launches: 1, none for no rows.

    Source: A9 (mode mxfp8), A0.2.
    """
    return _mxfp8(AMD_CUT if torch.version.hip else CUT, gate_up, limit)


def _mxfp8(cut: Cut, gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor, Tensor]:
    y, codes, scales = swiglu_grid(cut, True, gate_up, limit)
    return y, codes.view(torch.float8_e4m3fn), scales


def prepare_silu_mul_clamp_fp8_grid(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `silu_mul_clamp_fp8_grid`, compiled for the site's width and for rows that begin on 16 bytes, or not."""
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    return prepare_cut(_fp8_grid, cut, silu_mul_clamp_fp8_grid, compile_swiglu_grid, device, site, rows)


def prepare_silu_mul_clamp_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `silu_mul_clamp_mxfp8`, compiled for the site's width and for rows that begin on 16 bytes, or not."""
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    return prepare_cut(_mxfp8, cut, silu_mul_clamp_mxfp8, compile_swiglu_grid, device, site, rows)


__all__ = [
    "prepare_silu_mul_clamp_fp8_grid",
    "prepare_silu_mul_clamp_mxfp8",
    "silu_mul_clamp_fp8_grid",
    "silu_mul_clamp_mxfp8",
]

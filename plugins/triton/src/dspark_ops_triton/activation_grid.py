"""Portable ``silu_mul_clamp_mxfp8`` and ``silu_mul_clamp_fp8_grid``: the activation and the fp8 grid in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.swiglu import launch_constants, launch_options, swiglu_grid_kernel

#: Columns of a program, one warp or wave each: 8 per thread, 16 bytes.
BLOCK = 256
AMD_BLOCK = 512


def silu_mul_clamp_fp8_grid(gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor]:
    """Return the clamped SwiGLU of each row, and that rounded to the fp8 grid of each 32 columns.

    Args:
        gate_up: [M, 2 * I] bfloat16, last stride 1, I divisible by 32: the gate, then the up projection; finite.
        limit: the clamp, or None for no clamp.

    Returns:
        y and grid, [M, I] bfloat16 each. The exponential is one to base 2, so a value of `y` may be the one next to
        that of `silu_mul_clamp`.

    Raises:
        ValueError: I is no multiple of 32.

    Bytes moved: 8 per result. Launches: 1, none for no rows.

    Source: A9 (mode fp8_grid), A0.2.
    """
    y, grid, _ = _launch("silu_mul_clamp_fp8_grid", gate_up, limit, codes=False)
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
    y, codes, scales = _launch("silu_mul_clamp_mxfp8", gate_up, limit, codes=True)
    return y, codes.view(torch.float8_e4m3fn), scales


def _launch(name: str, gate_up: Tensor, limit: float | None, codes: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = gate_up.shape
    columns = width // 2
    if width % 64:
        raise ValueError(f"{name}: wanted two halves of whole groups of 32 columns, got {width} columns in all")
    y = torch.empty(rows, columns, dtype=torch.bfloat16, device=gate_up.device)
    grid = torch.empty(rows, columns, dtype=torch.uint8 if codes else torch.bfloat16, device=gate_up.device)
    scales = torch.empty(rows, columns // 32, dtype=torch.uint8, device=gate_up.device) if codes else grid
    if rows and columns:
        unit = stride_unit(gate_up)
        block = AMD_BLOCK if torch.version.hip else BLOCK
        swiglu_grid_kernel[(rows, triton.cdiv(columns, block))](
            gate_up, y, grid, scales, gate_up.stride(0) // unit, 0.0 if limit is None else float(limit),
            **launch_constants(columns, limit is not None, unit, codes, not codes, block), **launch_options(),
        )  # fmt: skip
    return y, grid, scales


def prepare_silu_mul_clamp_fp8_grid(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `silu_mul_clamp_fp8_grid`, compiled for the site's width and for rows that begin on 16 bytes, or not."""
    return _prepare(silu_mul_clamp_fp8_grid, device, site)


def prepare_silu_mul_clamp_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `silu_mul_clamp_mxfp8`, compiled for the site's width and for rows that begin on 16 bytes, or not."""
    return _prepare(silu_mul_clamp_mxfp8, device, site)


def _prepare(function: Callable[..., tuple[Tensor, ...]], device: Any, site: Any) -> Callable[..., tuple[Tensor, ...]]:
    if device.arch.vendor != "cpu":
        width, limit = 2 * site.axes["I"], site.options.get("limit", 10.0)
        buffer = torch.zeros(2 * width + 2, dtype=torch.bfloat16, device="cuda")
        spaced = buffer.view(2, width + 1)
        # Rows that begin on 16 bytes, rows of which only the first does, and a first one that does not.
        for gate_up in (buffer[: 2 * width].view(2, width), spaced[:, :width], spaced[:, 1:]):
            function(gate_up, limit)
    return function


__all__ = [
    "prepare_silu_mul_clamp_fp8_grid",
    "prepare_silu_mul_clamp_mxfp8",
    "silu_mul_clamp_fp8_grid",
    "silu_mul_clamp_mxfp8",
]

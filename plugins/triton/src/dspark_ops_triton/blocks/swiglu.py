"""A launch for the clamped SwiGLU of each row with the fp8 grid folded in, cut as data by columns (A9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.bf16_pairs import rounded, widened
from dspark_ops_triton.blocks.clamped_silu import clamped_swiglu
from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.fp8_grid import grid_codes, grid_values
from dspark_ops_triton.blocks.group_codes import store_group_bytes
from dspark_ops_triton.blocks.ptx import takes_ptx


@triton.jit(do_not_specialize=["row_stride"])
def swiglu_grid_kernel(
    gate_up, y, grid, scales, row_stride, limit,
    COLUMNS: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr, CODES: tl.constexpr,
    PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write BLOCK of the COLUMNS results of one row, plain and on the grid; `row_stride` counts STRIDE_UNIT elements.

    On the grid they are bfloat16 values or, with CODES, e4m3 codes and a scale byte per 32 columns; without, `scales`
    is not touched. No group of 32 lies in two programs. What is put on the grid is the result as rounded to bfloat16.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < COLUMNS
    start = gate_up + row * row_stride * STRIDE_UNIT
    begin(PDL)
    gate = tl.load(start + lanes, mask=mask, other=0.0)
    up = tl.load(start + COLUMNS + lanes, mask=mask, other=0.0)
    value = rounded(clamped_swiglu(widened(gate, PTX), widened(up, PTX), limit, LIMITED, False), PTX)
    tl.store(y + row * COLUMNS + lanes, value, mask=mask)
    groups = tl.reshape(widened(value, PTX), (BLOCK // 32, 32))
    if CODES:
        code, byte = grid_codes(groups)
        tl.store(grid + row * COLUMNS + lanes, tl.reshape(code, (BLOCK,)), mask=mask)
        group = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
        store_group_bytes(scales + row * (COLUMNS // 32) + group, byte, group < COLUMNS // 32, PTX)
    else:
        tl.store(grid + row * COLUMNS + lanes, rounded(tl.reshape(grid_values(groups), (BLOCK,)), PTX), mask=mask)


def swiglu_grid(cut: Cut, codes: bool, gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the clamped SwiGLU of each row, that on the fp8 grid as values or as codes, and scales of the codes.

    Args:
        cut: columns of a program, whole groups of 32, and its warps.
        codes: codes, uint8, and scale bytes [M, I / 32] instead of values; else the scales are the values once more.
        gate_up: [M, 2 * I] bfloat16, last stride 1, I divisible by 32.
        limit: the clamp, or None for no clamp.

    Raises:
        ValueError: I is no multiple of 32.
    """
    rows, width = gate_up.shape
    columns = width // 2
    if width % 64:
        name = "silu_mul_clamp_mxfp8" if codes else "silu_mul_clamp_fp8_grid"
        raise ValueError(f"{name}: wanted two halves of whole groups of 32 columns, got {width} columns in all")
    y = torch.empty(rows, columns, dtype=torch.bfloat16, device=gate_up.device)
    grid = torch.empty(rows, columns, dtype=torch.uint8 if codes else torch.bfloat16, device=gate_up.device)
    scales = torch.empty(rows, columns // 32, dtype=torch.uint8, device=gate_up.device) if codes else grid
    if rows and columns:
        unit = stride_unit(gate_up)
        swiglu_grid_kernel[(rows, triton.cdiv(columns, cut.items))](
            gate_up, y, grid, scales, gate_up.stride(0) // unit, 0.0 if limit is None else float(limit),
            **launch_constants(cut, columns, limit is not None, unit, codes, takes_ptx(swiglu_grid_kernel)),
            **cut_options(cut),
        )  # fmt: skip
    return y, grid, scales


def compile_swiglu_grid(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call either operator, cut somehow, once per build that a site needs."""
    width, limit = 2 * site.axes["I"], site.options.get("limit", 10.0)
    buffer = torch.zeros(2 * width + 2, dtype=torch.bfloat16, device="cuda")
    spaced = buffer.view(2, width + 1)
    # Rows that begin on 16 bytes, rows of which only the first does, and a first one that does not.
    for gate_up in (buffer[: 2 * width].view(2, width), spaced[:, :width], spaced[:, 1:]):
        call(gate_up, limit)


def launch_constants(cut: Cut, columns: int, limited: bool, unit: int, codes: bool, ptx: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "COLUMNS": columns, "LIMITED": limited, "BLOCK": cut.items, "STRIDE_UNIT": unit, "CODES": codes,
        "PTX": ptx, "PDL": cut.pdl,
    }  # fmt: skip


__all__ = ["compile_swiglu_grid", "launch_constants", "swiglu_grid", "swiglu_grid_kernel"]

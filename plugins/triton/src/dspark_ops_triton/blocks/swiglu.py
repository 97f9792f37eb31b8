"""A launch for the clamped SwiGLU of each row with the fp8 grid folded in, and its arithmetic (A9)."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from dspark_ops_triton.blocks.elementary import exp_rounded
from dspark_ops_triton.blocks.fp8_grid import grid_codes, grid_values

LOG2_E = tl.constexpr(1.44269504088896340736)


@triton.jit
def clamped_swiglu(gate, up, limit, LIMITED: tl.constexpr, BASE_TWO: tl.constexpr):
    """Return ``g / (1 + exp(-g)) * u`` of float32 blocks, g = min(gate, limit) and u = clamp(up, -limit, limit).

    A NaN stays. With BASE_TWO the exponential is ``exp2(-g * log2(e))`` as the device has it, else the rounded one of
    `exp_rounded`; both are the same to bfloat16 but for a rare last bit.
    """
    if LIMITED:
        # comparisons and not minima: a NaN stays
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    power = tl.exp2(gate * -LOG2_E) if BASE_TWO else exp_rounded(-gate)
    return tl.div_rn(gate, 1.0 + power) * up


@triton.jit(do_not_specialize=["row_stride"])
def swiglu_grid_kernel(
    gate_up, y, grid, scales, row_stride, limit,
    COLUMNS: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr, CODES: tl.constexpr,
    BASE_TWO: tl.constexpr,
):  # fmt: skip
    """Write BLOCK of the COLUMNS results of one row, plain and on the grid; `row_stride` counts STRIDE_UNIT elements.

    On the grid they are bfloat16 values or, with CODES, e4m3 codes and a scale byte per 32 columns; without, `scales`
    is not touched. No group of 32 lies in two programs. What is put on the grid is the result as rounded to bfloat16.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < COLUMNS
    start = gate_up + row * row_stride * STRIDE_UNIT
    gate = tl.load(start + lanes, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(start + COLUMNS + lanes, mask=mask, other=0.0).to(tl.float32)
    rounded = clamped_swiglu(gate, up, limit, LIMITED, BASE_TWO).to(tl.bfloat16)
    tl.store(y + row * COLUMNS + lanes, rounded, mask=mask)
    groups = tl.reshape(rounded.to(tl.float32), (BLOCK // 32, 32))
    if CODES:
        code, byte = grid_codes(groups)
        tl.store(grid + row * COLUMNS + lanes, tl.reshape(code, (BLOCK,)), mask=mask)
        group = tl.program_id(1) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
        tl.store(scales + row * (COLUMNS // 32) + group, byte.to(tl.uint8), mask=group < COLUMNS // 32)
    else:
        values = tl.reshape(grid_values(groups), (BLOCK,))
        tl.store(grid + row * COLUMNS + lanes, values.to(tl.bfloat16), mask=mask)


def launch_constants(columns: int, limited: bool, unit: int, codes: bool, base_two: bool, block: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "COLUMNS": columns, "LIMITED": limited, "BLOCK": block, "STRIDE_UNIT": unit, "CODES": codes,
        "BASE_TWO": base_two,
    }  # fmt: skip


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": 1, "enable_fp_fusion": False}


__all__ = ["clamped_swiglu", "launch_constants", "launch_options", "swiglu_grid_kernel"]

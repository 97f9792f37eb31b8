"""Launches that put each 32 values of a contiguous tensor on the fp8 grid: codes and scale bytes, or values (A0.2)."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from dspark_ops_triton.blocks.bf16_pairs import rounded, widened
from dspark_ops_triton.blocks.codes import e4m3_round, power_of_two, ue8m0_fp8_grid
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.group_codes import code_within_448, store_group_bytes

#: Groups of a program: one warp, so that six rows of 5120 are 30 programs, and their largest values are shuffles.
GROUPS = 32


@triton.jit
def grid_values(groups):
    """Return float32 groups [n, 32] on the fp8 grid, as float32; every value has few enough bits for bfloat16."""
    byte = ue8m0_fp8_grid(tl.max(tl.abs(groups), axis=1))[:, None]
    return e4m3_round(groups * power_of_two(254 - byte)) * power_of_two(byte)


@triton.jit
def grid_codes(groups):
    """Return the e4m3 codes, uint8 [n, 32], and the scale bytes, int32 [n], of float32 groups [n, 32]."""
    byte = ue8m0_fp8_grid(tl.max(tl.abs(groups), axis=1))
    return code_within_448(groups * power_of_two(254 - byte)[:, None]), byte


@triton.jit(do_not_specialize=["count"])
def grid_codes_kernel(
    x, codes, scales, count, GROUPS: tl.constexpr, PTX: tl.constexpr = False, PDL: tl.constexpr = False
):
    """Write the codes and the scale bytes of GROUPS of `count` groups of 32 values."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    live = group < count
    place = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    begin(PDL)
    loaded = tl.load(x + place, mask=live[:, None], other=0.0)
    code, byte = grid_codes(loaded.to(tl.float32))
    tl.store(codes + place, code, mask=live[:, None])
    store_group_bytes(scales + group, byte, live, PTX)


@triton.jit(do_not_specialize=["count"])
def grid_values_kernel(x, out, count, GROUPS: tl.constexpr, PTX: tl.constexpr = False, PDL: tl.constexpr = False):
    """Write the values on the grid of GROUPS of `count` groups of 32 values."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    live = group < count
    place = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    begin(PDL)
    loaded = tl.load(x + place, mask=live[:, None], other=0.0)
    tl.store(out + place, rounded(grid_values(widened(loaded, PTX)), PTX), mask=live[:, None])


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": 1, "enable_fp_fusion": False}


__all__ = ["GROUPS", "grid_codes", "grid_codes_kernel", "grid_values", "grid_values_kernel", "launch_options"]

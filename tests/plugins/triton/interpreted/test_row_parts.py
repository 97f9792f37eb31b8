"""Device functions of kernels whose threads share a row, each alone: its lanes, its sum, its codes and scale bytes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from dspark_ops.contracts import numerics
from dspark_ops_triton.blocks.bf16_pairs import rounded, widened
from dspark_ops_triton.blocks.fp8_grid import grid_codes
from dspark_ops_triton.blocks.mxfp8 import mxfp8_codes, mxfp8_groups
from dspark_ops_triton.blocks.row_blocks import block_lanes, load_lanes, row_blocks, store_lanes
from dspark_ops_triton.blocks.row_sums import row_sum


@triton.jit
def _copy_kernel(
    x, out, total, ROW: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    MORE: tl.constexpr,
):  # fmt: skip
    squares = tl.zeros((PROGRAMS * BLOCK,), tl.float32)
    for part in tl.static_range(BLOCKS):
        lane = block_lanes(part, ROW, PROGRAMS, BLOCK, BLOCKS, MORE)
        value = load_lanes(x, lane, part, ROW, BLOCK, BLOCKS, MORE)
        store_lanes(out, lane, value, part, ROW, BLOCK, BLOCKS, MORE)
        squares += value * value
    if MORE:
        lane = block_lanes(BLOCKS, ROW, PROGRAMS, BLOCK, BLOCKS, MORE)
        value = load_lanes(x, lane, BLOCKS, ROW, BLOCK, BLOCKS, MORE)
        store_lanes(out, lane, value, BLOCKS, ROW, BLOCK, BLOCKS, MORE)
        tl.store(total, row_sum(squares, value * value, 0, PROGRAMS, 1, -1))
    else:
        tl.store(total, row_sum(squares, None, 0, PROGRAMS, 1, -1))


@pytest.mark.parametrize(
    ("row", "threads", "programs"), [(5120, 256, 1), (5120, 128, 4), (5119, 512, 1), (96, 32, 1), (640, 64, 1)]
)
def test_blocks_hold_each_lane_of_a_row_once_and_nothing_else(row: int, threads: int, programs: int) -> None:
    x = torch.randn(row, generator=torch.Generator().manual_seed(row))
    memory, total = torch.full((row + 128,), 7.0), torch.zeros(1)
    _copy_kernel[(1,)](x, memory, total, ROW=row, PROGRAMS=programs, **row_blocks(row, threads, programs))
    assert torch.equal(memory[:row], x)
    assert torch.equal(memory[row:], torch.full((128,), 7.0))
    exact = x.double().square().sum()
    assert abs(total.double().item() / exact.item() - 1) < 3e-7


@triton.jit
def _round_kernel(x, out, LANES: tl.constexpr, PTX: tl.constexpr):
    lanes = tl.arange(0, LANES)
    tl.store(out + lanes, widened(rounded(tl.load(x + lanes), PTX), PTX))


def test_values_are_rounded_to_the_nearest_bfloat16_and_widened_exactly() -> None:
    x = torch.randn(128, generator=torch.Generator().manual_seed(1))
    x[:3] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -0.0])
    out = torch.empty(128)
    _round_kernel[(1,)](x, out, LANES=128, PTX=False)
    assert torch.equal(out.view(torch.int32), x.bfloat16().float().view(torch.int32))


@triton.jit
def _codes_kernel(x, codes, scales, GROUPS: tl.constexpr, GRID: tl.constexpr, KEPT: tl.constexpr):
    group, lane = tl.arange(0, GROUPS)[:, None], tl.arange(0, 32)[None, :]
    values = tl.load(x + group * 32 + lane).to(tl.float32)
    if GRID:
        code, byte = grid_codes(values)
    elif KEPT:
        code, byte = mxfp8_codes(values)
        byte = tl.reshape(byte, (GROUPS,))
    else:
        code, byte = mxfp8_groups(values)
    tl.store(codes + group * 32 + lane, code)
    tl.store(scales + tl.arange(0, GROUPS), byte.to(tl.uint8))


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("grid", torch.bfloat16), ("kept", torch.bfloat16), ("plain", torch.bfloat16), ("plain", torch.float16)],
)
def test_no_finite_value_of_16_bits_is_scaled_beyond_448_so_that_no_clamp_is_needed(
    dtype: torch.dtype, form: str
) -> None:
    magnitudes = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    magnitudes = magnitudes.where(magnitudes.isfinite(), torch.zeros((), dtype=dtype))
    # The largest value of a group, its negative, and smaller ones.
    factors = torch.tensor([1.0, -1.0, 0.75, -0.5] + [2.0**-k for k in range(2, 30)])
    groups = (magnitudes.float()[:, None] * factors).to(dtype)
    codes, scales = torch.empty(2**15, 32, dtype=torch.uint8), torch.empty(2**15, dtype=torch.uint8)
    _codes_kernel[(1,)](groups, codes, scales, GROUPS=2**15, GRID=form == "grid", KEPT=form == "kept")
    amax = groups.float().abs().amax(-1)
    wanted = numerics.ue8m0_fp8_grid(amax) if form == "grid" else numerics.ue8m0_mx(amax)
    assert torch.equal(scales, wanted)
    scale = numerics.ue8m0_decode(wanted)[:, None]
    scaled = torch.where(wanted[:, None] == 0, 0.0 * groups.float(), groups.float() / scale)
    assert scaled.abs().max() == 448
    assert torch.equal(codes, numerics.e4m3_encode(scaled))

"""The weighted sum of a token's copies, its RMS norm and, if wanted, the MXFP8 of that, in one launch (N3.3, N3.4)."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from dspark_ops_triton.blocks.bf16_pairs import rounded, widened
from dspark_ops_triton.blocks.copy_tiles import Tiles
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.mxfp8 import clear_padding, mxfp8_codes, sf_128x4_place, store_row_bytes
from dspark_ops_triton.blocks.row_blocks import (
    block_lanes,
    load_lanes,
    loads_stay_before,
    programs_of,
    row_blocks,
    store_lanes,
)
from dspark_ops_triton.blocks.row_sums import open_row, row_sum, slot_index


@triton.jit(do_not_specialize=["tokens", "x_stride", "pre_stride"], do_not_specialize_on_alignment=["pre"])
def combine_norm_kernel(
    x, pre, weight, y, q, scales, tokens, x_stride, pre_stride, eps,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, MORE: tl.constexpr,
    PROGRAMS: tl.constexpr, WARPS: tl.constexpr, SLOT: tl.constexpr, STRIDE_UNIT: tl.constexpr, PTX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Serve one token; with `q` and `scales`, which may be None, write also its codes and scale bytes.

    With those, each program, even one that has no token, clears its share of the scale bytes of rows that are none.
    The PROGRAMS of a cluster share a token. `x_stride` counts groups of STRIDE_UNIT elements. The norm's weight,
    which no kernel of a step writes, is read before the wait for the kernels before this one.
    """
    parts: tl.constexpr = BLOCKS + (1 if MORE else 0)
    room = open_row(PROGRAMS, SLOT)
    gains = ()
    for part in tl.static_range(parts):
        lane = block_lanes(part, HIDDEN, PROGRAMS, BLOCK, BLOCKS, MORE)
        gains = gains + (load_lanes(weight, lane, part, HIDDEN, BLOCK, BLOCKS, MORE),)  # noqa: RUF005
    row = tl.program_id(0)
    token = row.to(tl.int64)
    begin(PDL)
    if q is None or row < tokens:
        x += token * x_stride * STRIDE_UNIT
        pre += token * pre_stride
        factors = ()
        for copy in tl.static_range(COPIES):
            factors = factors + (tl.load(pre + copy).to(tl.float32),)  # noqa: RUF005
        values = ()
        for part in tl.static_range(parts):
            lane = block_lanes(part, HIDDEN, PROGRAMS, BLOCK, BLOCKS, MORE)
            for copy in tl.static_range(COPIES):
                value = load_lanes(x + copy * HIDDEN, lane, part, HIDDEN, BLOCK, BLOCKS, MORE)
                values = values + (value,)  # noqa: RUF005
        loads_stay_before(PDL)
        if q is not None:
            clear_padding(scales, row, tl.num_programs(0), tokens, HIDDEN // 32, 32 * WARPS * PROGRAMS)
        sums = ()
        for part in tl.static_range(parts):
            total = tl.zeros(values[part * COPIES].shape, tl.float32)
            for copy in tl.static_range(COPIES):
                value = widened(values[part * COPIES + copy], PTX)
                total = tl.fma(value, factors[copy].broadcast_to(total.shape), total)
            sums = sums + (widened(rounded(total, PTX), PTX),)  # noqa: RUF005
        squares = tl.zeros((PROGRAMS * BLOCK,), tl.float32)
        for part in tl.static_range(BLOCKS):
            squares = tl.fma(sums[part], sums[part], squares)
        more = sums[BLOCKS] * sums[BLOCKS] if MORE else None
        whole = row_sum(squares, more, room, PROGRAMS, WARPS, SLOT)
        inverse = tl.rsqrt(whole * (1.0 / HIDDEN) + eps)
        y += token * HIDDEN
        if q is not None:
            q += token * HIDDEN
            bytes_of_row = scales + sf_128x4_place(row, 0, HIDDEN // 32)
        for part in tl.static_range(parts):
            lane = block_lanes(part, HIDDEN, PROGRAMS, BLOCK, BLOCKS, MORE)
            normed = rounded(sums[part] * inverse * widened(gains[part], PTX), PTX)
            store_lanes(y, lane, normed, part, HIDDEN, BLOCK, BLOCKS, MORE)
            if q is not None:
                groups = tl.reshape(widened(normed, PTX), (normed.shape[0] // 32, 32))
                codes, byte = mxfp8_codes(groups)
                store_lanes(q, lane, tl.reshape(codes, normed.shape), part, HIDDEN, BLOCK, BLOCKS, MORE)
                store_row_bytes(bytes_of_row, byte, part, HIDDEN, PROGRAMS, BLOCK, BLOCKS, MORE, PTX)
    else:
        clear_padding(scales, row, tl.num_programs(0), tokens, HIDDEN // 32, 32 * WARPS * PROGRAMS)


def launch_constants(tiles: Tiles, copies: int, hidden: int, unit: int, ptx: bool, aligned: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch; `aligned` says whether the weight, too, begins on 16 bytes."""
    programs = programs_of(tiles.programs, hidden, tiles.threads, ptx and aligned and unit > 1)
    warps = tiles.threads // 32
    return {
        "COPIES": copies, "HIDDEN": hidden, **row_blocks(hidden, tiles.threads, programs), "PROGRAMS": programs,
        "WARPS": warps, "SLOT": slot_index(warps, programs, ptx), "STRIDE_UNIT": unit, "PTX": ptx, "PDL": tiles.pdl,
    }  # fmt: skip

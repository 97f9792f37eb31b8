"""The indexer's queries rotated, rounded to fp4 and packed, with their head weights, cut as data; items are heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.codes import (
    e2m1_code_without_minus_zero,
    e2m1_round,
    fp4_grid_ue8m0_scale,
    power_of_two,
    ue8m0_index,
)
from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.rotary import join_pairs, load_turns, split_pairs, turn_plain

#: Scale bytes of heads h, h + 16, h + 32 and h + 48 lie side by side.
LANES_OF_HEADS, HEAD_GROUPS = 16, 4
#: Partial sums of the head weights that are on their way at a time.
PARTS_AT_ONCE = tl.constexpr(4)


@triton.jit
def packed_fp4_rows(groups):
    """Return e2m1 codes, int32 [n, 32], and scale bytes, int32 [n], of float32 groups [n, 32], rounded to fp4 twice.

    First to the grid of one scale rule, as bfloat16, then packed by another one: at once they would give other codes
    where a group's largest scaled value lies between 3 and 3.5 (A2).
    """
    grid = fp4_grid_ue8m0_scale(groups).to(tl.bfloat16).to(tl.float32)
    byte = ue8m0_index(tl.max(tl.abs(grid), axis=1))
    return e2m1_code_without_minus_zero(e2m1_round(grid * power_of_two(254 - byte)[:, None])), byte


@triton.jit
def head_weights(partials, step, parts, head, weight_scale):
    """Return the sums of `parts` float32 numbers per head, added in order, as bfloat16 after the factor (A2).

    `partials` points to the first part of a token; the next parts are `step` elements apart.
    """
    total = tl.zeros(head.shape, tl.float32)
    for first in range(0, parts, PARTS_AT_ONCE):
        values = ()
        for further in tl.static_range(PARTS_AT_ONCE):
            part = tl.full(head.shape, first + further, tl.int32)
            values = values + (tl.load(partials + part * step + head, mask=part < parts, other=0.0),)  # noqa: RUF005
        for further in tl.static_range(PARTS_AT_ONCE):
            total += values[further]  # zeros of parts that are not there change nothing, for no sum is -0.0
    return (total.to(tl.bfloat16).to(tl.float32) * weight_scale).to(tl.bfloat16)


@triton.jit(
    do_not_specialize=["q_row", "q_head", "table", "parts", "tokens"],
    do_not_specialize_on_alignment=["positions", "partials"],
)
def index_query_kernel(
    q, q_fp4, q_scale, freqs, positions, partials, weights, q_row, q_head, table, parts, tokens, weight_scale,
    ALL_HEADS: tl.constexpr, LANES: tl.constexpr, ROPE: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotate and pack HEADS of a token's ALL_HEADS heads; strides of `q` count groups of UNIT elements.

    BLOCK lanes hold the LANES of a head. `partials` and `weights` may both be None.
    """
    row = tl.program_id(0).to(tl.int64)
    q += row * q_row * UNIT
    begin_at((q, q_fp4, q_scale, freqs, positions, q_head, table), PDL)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    lane = tl.arange(0, BLOCK)[None, :]
    mask = tl.broadcast_to(lane < LANES, (HEADS, BLOCK))
    source = q + head.to(tl.int64)[:, None] * q_head * UNIT + lane
    value = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    place = tl.load(positions + row).to(tl.int64)
    place = tl.where((place >= 0) & (place < table), place, 0)
    pair = tl.arange(0, BLOCK // 2)[None, :]
    turned = (pair >= (LANES - ROPE) // 2) & (pair < LANES // 2)
    turns = freqs + place * ROPE + lane - (LANES - ROPE) + 0 * head[:, None]
    cosine, sine = load_turns(turns, mask & (lane >= LANES - ROPE), HEADS, BLOCK)
    if partials is not None:
        # Here they are on their way together with the turns.
        own = head_weights(partials + row * ALL_HEADS, tokens.to(tl.int64) * ALL_HEADS, parts, head, weight_scale)
        tl.store(weights + row * ALL_HEADS + head, own)
    even, odd = split_pairs(value, HEADS, BLOCK)
    new_even, new_odd = turn_plain(even, odd, cosine, sine)
    value = join_pairs(tl.where(turned, new_even, even), tl.where(turned, new_odd, odd), HEADS, BLOCK)
    groups = tl.reshape(value.to(tl.bfloat16).to(tl.float32), (HEADS * BLOCK // 32, 32))
    code, byte = packed_fp4_rows(groups)
    low, high = split_pairs(tl.reshape(code, (HEADS, BLOCK)), HEADS, BLOCK)
    half = tl.arange(0, BLOCK // 2)[None, :]
    target = q_fp4 + (row * ALL_HEADS + head[:, None]) * (LANES // 2) + half
    tl.store(target, (low | (high << 4)).to(tl.uint8), mask=tl.broadcast_to(half < LANES // 2, low.shape))
    chunk = tl.arange(0, BLOCK // 32)[None, :]
    bytes_of_heads = tl.reshape(byte, (HEADS, BLOCK // 32)).to(tl.uint8)
    stored = tl.broadcast_to(chunk < LANES // 32, bytes_of_heads.shape)
    scales = q_scale + row * (LANES // 32 * 64) + chunk * 64 + head[:, None] % 16 * 4
    tl.store(scales + head[:, None] // 16, bytes_of_heads, mask=stored)
    if tl.program_id(1) < 16 // HEADS:
        for group in tl.static_range(ALL_HEADS // 16, 4):
            tl.store(scales + group, tl.zeros(bytes_of_heads.shape, tl.uint8), mask=stored)


def index_q_rope_fp4_pack(
    cut: Cut, q: Tensor, freqs: Tensor, positions: Tensor, partials: Tensor | None = None, weight_scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return packed queries, scale bytes and weights: ``index_q_rope_fp4_pack`` (A2), arguments as in its contract.

    A cut has 16 heads or fewer.
    """
    tokens, heads, lanes = q.shape
    rope = freqs.shape[1]
    if heads not in (16, 32, 48, 64) or lanes not in (32, 64, 96, 128) or rope > lanes:
        wanted = "16, 32, 48 or 64 heads of 32, 64, 96 or 128 lanes, of which some are rotated"
        raise ValueError(f"index_q_rope_fp4_pack: wanted {wanted}, got {heads} of {lanes} lanes, {rope} rotated")
    q_fp4 = torch.empty(tokens, heads, lanes // 2, dtype=torch.uint8, device=q.device)
    q_scale = torch.empty(tokens, 1, lanes // 32, LANES_OF_HEADS, HEAD_GROUPS, dtype=torch.uint8, device=q.device)
    weights, parts = None, 0
    if partials is not None:
        weights, parts = torch.empty(tokens, heads, dtype=torch.bfloat16, device=q.device), partials.shape[0]
    if tokens:
        unit = common_stride_unit(q)
        index_query_kernel[(tokens, heads // cut.items)](
            q, q_fp4, q_scale, freqs, positions, partials, weights, q.stride(0) // unit, q.stride(1) // unit,
            freqs.shape[0], parts, tokens, float(weight_scale),
            **launch_constants(cut, heads, lanes, rope, unit), **cut_options(cut),
        )  # fmt: skip
    return q_fp4, q_scale, weights


def launch_constants(cut: Cut, heads: int, lanes: int, rope: int, unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "ALL_HEADS": heads, "LANES": lanes, "ROPE": rope, "BLOCK": triton.next_power_of_2(lanes), "HEADS": cut.items,
        "UNIT": unit, "PDL": cut.pdl,
    }  # fmt: skip


def compile_index_q_rope_fp4_pack(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `index_q_rope_fp4_pack`, cut somehow, once per build that a site needs.

    They are for positions of both dtypes, with weights and without. Rows or a table that do not begin at 16-byte
    boundaries are compiled at their first call.
    """
    heads, lanes, rope = site.axes["A"], site.axes["D"], site.axes["P"]
    q = torch.zeros(1, heads, lanes, dtype=torch.bfloat16, device="cuda")
    freqs, position = torch.zeros(1, rope, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    for positions in (position, position.int()):
        for partials in (None, torch.zeros(1, 1, heads, device="cuda")):
            call(q, freqs, positions, partials)


__all__ = [
    "compile_index_q_rope_fp4_pack",
    "head_weights",
    "index_q_rope_fp4_pack",
    "index_query_kernel",
    "launch_constants",
    "packed_fp4_rows",
]

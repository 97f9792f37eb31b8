"""``index_q_rope_fp4_pack`` for gfx950: rotate, round to fp4, pack and weigh the indexer's heads in one launch."""

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
from dspark_ops_triton.blocks.rotary import join_pairs, split_pairs, turn_plain

#: Heads of a program, one wave: 16 bytes a lane at 128 lanes of head. 24 rows of 32 heads are 192 programs on 256
#: units. Reasoned, not measured.
HEADS = 4
#: Heads h, h + 16, h + 32 and h + 48 have their scale bytes side by side.
LANES_OF_HEADS, GROUPS_OF_HEADS = 16, 4


@triton.jit(
    do_not_specialize=["q_row", "q_head", "heads", "table", "parts", "tokens", "weight_scale"],
    do_not_specialize_on_alignment=["freqs", "positions", "partials", "weights"],
)
def pack_kernel(
    q, q_fp4, q_scale, freqs, positions, partials, weights, q_row, q_head, heads, table, parts, tokens, weight_scale,
    LANES: tl.constexpr, ROPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, UNIT: tl.constexpr,
    WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Pack HEADS heads of one token, WIDTH of them 16 apart; strides of `q` count groups of UNIT elements."""
    row = tl.program_id(0).to(tl.int64)
    member = tl.arange(0, HEADS)
    group, column = member % WIDTH, tl.program_id(1) * (HEADS // WIDTH) + member // WIDTH
    head = group * 16 + column
    here = head < heads
    lane = tl.arange(0, LANES)
    value = tl.load(
        q + (row * q_row + head[:, None].to(tl.int64) * q_head) * UNIT + lane[None, :], mask=here[:, None], other=0.0
    ).to(tl.float32)
    pair = tl.arange(0, LANES // 2)[None, :]
    turned = pair >= (LANES - ROPE) // 2
    place = tl.load(positions + row).to(tl.int64)
    place = tl.where((place >= 0) & (place < table), place, 0)
    turns = freqs + place * ROPE + 2 * pair - (LANES - ROPE)
    cosine = tl.broadcast_to(tl.load(turns, mask=turned, other=1.0), (HEADS, LANES // 2))
    sine = tl.broadcast_to(tl.load(turns + 1, mask=turned, other=0.0), (HEADS, LANES // 2))
    even, odd = split_pairs(value, HEADS, LANES)
    new_even, new_odd = turn_plain(even, odd, cosine, sine)
    value = join_pairs(tl.where(turned, new_even, even), tl.where(turned, new_odd, odd), HEADS, LANES)

    # Two quantisations, each with its own scale: at once they would give other bytes (A2).
    groups = tl.reshape(value.to(tl.bfloat16).to(tl.float32), (HEADS * LANES // 32, 32))
    grid = fp4_grid_ue8m0_scale(groups).to(tl.bfloat16).to(tl.float32)
    byte = ue8m0_index(tl.max(tl.abs(grid), axis=1))
    code = e2m1_code_without_minus_zero(e2m1_round(grid * power_of_two(254 - byte)[:, None]))
    low, high = split_pairs(tl.reshape(code, (HEADS, LANES)), HEADS, LANES)
    half = tl.arange(0, LANES // 2)[None, :]
    target = q_fp4 + (row * heads + head[:, None]) * (LANES // 2) + half
    tl.store(target, (low | (high << 4)).to(tl.uint8), mask=here[:, None])

    chunk = tl.arange(0, LANES // 32)[None, :]
    bytes_of_heads = tl.where(here[:, None], tl.reshape(byte, (HEADS, LANES // 32)), 0).to(tl.uint8)
    scale = q_scale + row * (LANES // 32 * 64) + chunk * 64 + column[:, None] * 4 + group[:, None]
    tl.store(scale, bytes_of_heads)
    for further in tl.static_range(1, 4 // WIDTH):
        tl.store(scale + further * WIDTH, tl.zeros((HEADS, LANES // 32), tl.uint8))
    if WEIGHTED:
        total = tl.zeros((HEADS,), tl.float32)
        part = partials + row * heads + head
        for _ in range(parts):
            total += tl.load(part, mask=here, other=0.0)
            part += tokens.to(tl.int64) * heads
        total = total.to(tl.bfloat16).to(tl.float32) * weight_scale
        tl.store(weights + row * heads + head, total.to(tl.bfloat16), mask=here)


def index_q_rope_fp4_pack(
    q: Tensor, freqs: Tensor, positions: Tensor, partials: Tensor | None = None, weight_scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the indexer's queries, rotated, rounded to fp4 and packed; their scale bytes; and its head weights.

    Args:
        q: [T, A, D] bfloat16, last stride 1; A is 16, 32, 48 or 64, D is 32, 64 or 128; finite.
        freqs: [S, P] float32 interleaved, contiguous.
        positions: [T] int32 or int64, contiguous. One that is negative or not below S counts as 0.
        partials: [Z, T, A] float32, contiguous, partial sums of the head weights; None for no weights.
        weight_scale: factor of the head weights.

    Returns:
        q_fp4 [T, A, D / 2] uint8, q_scale [T, 1, D / 32, 16, 4] uint8, weights [T, A] bfloat16 or None.

    Raises:
        ValueError: another number of heads or lanes, or more rotated lanes than lanes.

    Bytes moved: ``T * (2.5*A*D + 2*D + 4*P)``, and ``T * A * (4*Z + 2)`` for the weights. Launches: 1, none for no
    tokens.

    Source: A2.
    """
    tokens, heads, lanes = q.shape
    rope = freqs.shape[1]
    if heads not in (16, 32, 48, 64) or lanes not in (32, 64, 128) or rope > lanes:
        wanted = "16, 32, 48 or 64 heads of 32, 64 or 128 lanes, some of which are rotated"
        raise ValueError(f"index_q_rope_fp4_pack: wanted {wanted}, got {heads} of {lanes} with {rope} rotated")
    packed = torch.empty(tokens, heads, lanes // 2, dtype=torch.uint8, device=q.device)
    scales = torch.empty(tokens, 1, lanes // 32, LANES_OF_HEADS, GROUPS_OF_HEADS, dtype=torch.uint8, device=q.device)
    weights = None if partials is None else torch.empty(tokens, heads, dtype=torch.bfloat16, device=q.device)
    if tokens:
        unit = common_stride_unit(q)
        constants = launch_constants(heads, lanes, rope, unit, partials is not None)
        pack_kernel[(tokens, LANES_OF_HEADS * constants["WIDTH"] // HEADS)](
            q, packed, scales, freqs, positions, freqs if partials is None else partials,
            packed if weights is None else weights, q.stride(0) // unit, q.stride(1) // unit, heads, freqs.shape[0],
            0 if partials is None else partials.shape[0], tokens, float(weight_scale), **constants, **launch_options(),
        )  # fmt: skip
    return packed, scales, weights


def launch_constants(heads: int, lanes: int, rope: int, unit: int, weighted: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    width = triton.next_power_of_2(heads // LANES_OF_HEADS)
    return {"LANES": lanes, "ROPE": rope, "HEADS": HEADS, "WIDTH": width, "UNIT": unit, "WEIGHTED": weighted}


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: the rotation rounds every product and sum."""
    return {"num_warps": 1, "enable_fp_fusion": False}


def prepare_index_q_rope_fp4_pack(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Any]:
    """Return `index_q_rope_fp4_pack`, compiled for the site's sizes, positions of both dtypes, with weights or not.

    Rows that do not begin at 16-byte boundaries are compiled at their first call.
    """
    if device.arch.vendor != "cpu":
        heads, lanes, rope = site.axes["A"], site.axes["D"], site.axes["P"]
        q = torch.zeros(1, heads, lanes, dtype=torch.bfloat16, device="cuda")
        freqs, position = torch.zeros(1, rope, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
        for positions in (position, position.int()):
            for partials in (None, torch.zeros(1, 1, heads, device="cuda")):
                index_q_rope_fp4_pack(q, freqs, positions, partials)
    return index_q_rope_fp4_pack

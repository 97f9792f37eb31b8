"""The output projection after the inverse rotation: a program per tile of columns, its warps side by side on K (N5).

Each warp sums a slice of K, and the sums of the slices are added up in the program: nothing waits for another program.
No order depends on the number of tokens, so a token's bits do not either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.head_slabs import COLUMNS, store_scales
from dspark_ops_triton.blocks.mxfp8 import mxfp8_groups
from dspark_ops_triton.blocks.rotary import turn_back

#: Lanes of a slice that are multiplied at a time, at most: of a head no more are rotated.
CHUNK = 64


@dataclass(frozen=True, slots=True)
class Slices:
    """How the product is cut for up to `most` tokens.

    `warps` and `slices` are the same in all lines of a table: a token's bits are then the same for every number of
    tokens.

    Attributes:
        most: tokens of a call.
        tokens: tokens of a program, a power of two from 8 to 128.
        stages: chunks that are under way at a time.
        warps: warps of a program.
        slices: slices of K, a power of two; fewer where K is short.
        pdl: the kernel is set up while the one before it runs, and reads some of the weight then: the kernel just
            before it must not be what writes that.
    """

    most: int
    tokens: int
    stages: int
    warps: int = 8
    slices: int = 8
    pdl: bool = False


@triton.jit
def turned_chunks(
    value, turns, ends, SLICES: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr, ROPE: tl.constexpr
):
    """Return chunks [SLICES, TOKENS, CHUNK], the last ROPE lanes of those that end a head rotated backward, bfloat16.

    `turns` holds a cosine and a sine for each pair of lanes.
    """
    even, odd = tl.split(tl.reshape(value, (SLICES, TOKENS, CHUNK // 2, 2)))
    cosine, sine = tl.split(tl.reshape(turns, (SLICES, TOKENS, CHUNK // 2, 2)))
    new_even, new_odd = turn_back(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
    turned = ends[:, None, None] & (tl.arange(0, CHUNK // 2) >= (CHUNK - ROPE) // 2)[None, None, :]
    even = tl.where(turned, new_even.to(tl.bfloat16), even)
    odd = tl.where(turned, new_odd.to(tl.bfloat16), odd)
    return tl.reshape(tl.join(even, odd), (SLICES, TOKENS, CHUNK))


@triton.jit
def load_factor(places, wanted, MASKED: tl.constexpr):
    """Return chunks of rows of the weight, 0 where there is no row."""
    return tl.load(places, mask=wanted[None, :, None], other=0.0) if MASKED else tl.load(places)


@triton.jit
def slice_products(
    factors, factor, source, turns, turned, here, wanted,
    SLICE: tl.constexpr, SLICES: tl.constexpr, SPAN: tl.constexpr, CHUNK: tl.constexpr, HEAD: tl.constexpr,
    ROPE: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Return the sums [TOKENS, COLUMNS] of products of tokens and columns: by the lanes of a slice, then by slices.

    Of SPAN lanes, those that may end a head come last and are turned; the others go through shared memory. EARLY: what
    is to be turned is loaded before the others, into registers. `factor` is that of the weight for the first span.
    """
    if EARLY:
        turn = tl.load(turns, mask=turned, other=0.0)
    product = tl.zeros((SLICES, COLUMNS, TOKENS), tl.float32)
    for span in tl.range(0, SLICE // SPAN, num_stages=1):
        end = (span + 1) * SPAN - CHUNK
        if EARLY:
            value = tl.load(source + end, mask=here[None, :, None], other=0.0)
            if span > 0:
                factor = load_factor(factors + end, wanted, MASKED)
        for lanes in tl.range(span * SPAN, end, CHUNK, num_stages=STAGES):
            plain_factor = load_factor(factors + lanes, wanted, MASKED)
            plain = tl.load(source + lanes, mask=here[None, :, None], other=0.0)
            product = tl.dot(plain_factor, tl.permute(plain, (0, 2, 1)), product)
        if not EARLY:
            value = tl.load(source + end, mask=here[None, :, None], other=0.0)
            factor = load_factor(factors + end, wanted, MASKED)
            turn = tl.load(turns, mask=turned, other=0.0)
        ends = (tl.arange(0, SLICES) * SLICE + (span + 1) * SPAN) % HEAD == 0
        value = turned_chunks(value, turn, ends, SLICES, TOKENS, CHUNK, ROPE)
        product = tl.dot(factor, tl.permute(value, (0, 2, 1)), product)
    return added_slices(product, SLICES, TOKENS, COLUMNS)


@triton.jit
def added_slices(product, SLICES: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the sums [TOKENS, COLUMNS] of the slices of products [SLICES, COLUMNS, TOKENS].

    Slices are taken apart in pairs, which a thread has to hold: so the warps, each of which has a slice, exchange their
    products once. Summed as they lie, they would be exchanged once for the sum and twice for its result.
    """
    if SLICES == 1:
        return tl.trans(tl.reshape(product, (COLUMNS, TOKENS)))
    else:
        pairs = tl.reshape(tl.permute(product, (2, 1, 0)), (TOKENS, COLUMNS, SLICES // 2, 2))
        even, odd = tl.split(pairs)
        return tl.sum(even + odd, axis=2)


@triton.jit(
    do_not_specialize=["tokens", "o_row", "o_group"],
    do_not_specialize_on_alignment=["freqs", "positions"],
)
def head_slice_kernel(
    o, weight, y, q, scales, freqs, positions, tokens, o_row, o_group,
    LANES: tl.constexpr, SLICES: tl.constexpr, CHUNK: tl.constexpr, HEAD: tl.constexpr, ROPE: tl.constexpr,
    UNIT: tl.constexpr, RANK: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    MX: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply TOKENS tokens by COLUMNS rows of the weight; store that as bfloat16 and, if MX, as MXFP8.

    A group of the weight has RANK columns, all groups WIDTH. Strides of `o` count groups of UNIT elements.
    """
    tile, block = tl.program_id(0), tl.program_id(2)
    SLICE: tl.constexpr = LANES // SLICES
    # The largest power of two that divides a slice and a head: where heads may end.
    SPAN: tl.constexpr = SLICE & -SLICE if SLICE & -SLICE < HEAD else HEAD
    MASKED: tl.constexpr = WIDTH % COLUMNS != 0
    EARLY: tl.constexpr = TOKENS <= 16
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    wanted = column < WIDTH
    lane = tl.arange(0, SLICES)[:, None, None] * SLICE + tl.arange(0, CHUNK)[None, None, :]
    factors = weight + column.to(tl.int64)[None, :, None] * LANES + lane
    # No kernel of a step writes weights: they may be read while the one before is still running.
    factor = load_factor(factors + (SPAN - CHUNK), wanted, MASKED)
    begin(PDL)
    token = block * TOKENS + tl.arange(0, TOKENS)
    here = token < tokens
    place = tl.load(positions + token, mask=here, other=0).to(tl.int64)
    # A copy for each slice: a thread loads what its own lanes need, and none waits for another's.
    turning = tl.arange(0, CHUNK)[None, None, :] - (CHUNK - ROPE) + tl.zeros((SLICES, 1, 1), tl.int32)
    turns = freqs + place[None, :, None] * ROPE + turning
    turned = (turning >= 0) & here[None, :, None]
    source = o + token.to(tl.int64)[None, :, None] * o_row * UNIT + lane
    group = tile * COLUMNS // RANK
    if RANK % COLUMNS == 0:
        product = slice_products(
            factors, factor, source + group.to(tl.int64) * o_group * UNIT, turns, turned, here, wanted,
            SLICE, SLICES, SPAN, CHUNK, HEAD, ROPE, TOKENS, COLUMNS, MASKED, STAGES, EARLY,
        )  # fmt: skip
    else:
        # The columns belong to several groups of the weight, each with lanes of its own.
        product = tl.zeros((TOKENS, COLUMNS), tl.float32)
        last = tl.minimum(tile * COLUMNS + COLUMNS - 1, WIDTH - 1) // RANK
        for other in range(group, last + 1):
            own = slice_products(
                factors, factor, source + tl.cast(other, tl.int64) * o_group * UNIT, turns, turned, here, wanted,
                SLICE, SLICES, SPAN, CHUNK, HEAD, ROPE, TOKENS, COLUMNS, MASKED, STAGES, EARLY,
            )  # fmt: skip
            product = tl.where((column // RANK == other)[None, :], own, product)
    rounded = product.to(tl.bfloat16)
    target = token.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(y + target, rounded, mask=here[:, None] & wanted[None, :])
    if MX:
        codes, byte = mxfp8_groups(rounded.to(tl.float32))
        tl.store(q + target, codes, mask=here[:, None])
        store_scales(scales, tl.where(here, byte, 0), token, tile, tokens, block, TOKENS, WIDTH // COLUMNS)


def launch_constants(
    cut: Slices, lanes: int, head_dim: int, rope: int, unit: int, rank: int, width: int, mx: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch; slices are whole chunks, as many as asked for or fewer."""
    chunk = min(CHUNK, head_dim)
    return {
        "LANES": lanes, "SLICES": math.gcd(lanes // chunk, cut.slices), "CHUNK": chunk, "HEAD": head_dim, "ROPE": rope,
        "UNIT": unit, "RANK": rank, "WIDTH": width, "TOKENS": cut.tokens, "COLUMNS": COLUMNS, "MX": mx,
        "STAGES": cut.stages, "PDL": cut.pdl,
    }  # fmt: skip


def launch_options(cut: Slices) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": cut.warps, "enable_fp_fusion": False, **pdl_option(cut.pdl)}


__all__ = ["Slices", "head_slice_kernel", "launch_constants", "launch_options"]

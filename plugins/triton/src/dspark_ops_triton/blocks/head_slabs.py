"""The output projection after the inverse rotation: a program per slab of heads and tile of columns, one launch (N5).

Programs of a tile leave their sums in scratch memory, and the last one adds them up in one order, rounds, and quantises
to MXFP8 where that is asked for. The order does not depend on the number of tokens, so a token's bits do not either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from dspark_ops_triton.blocks.arrival import WORDS
from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.meeting import is_last_to_arrive
from dspark_ops_triton.blocks.mxfp8 import mxfp8_groups, sf_128x4_place
from dspark_ops_triton.blocks.rotary import join_pairs, split_pairs, turn_back

STATE_WORDS = tl.constexpr(WORDS)
#: Columns of a program: the 32 values that share a scale of MXFP8.
COLUMNS = 32
#: Lanes of the longest head.
MOST_LANES = 512
#: Up to so many slabs, the sums of all are under way at once.
UNROLLED = tl.constexpr(16)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the product is cut for up to `tokens` tokens.

    A program has 32 columns of 16 tokens or more, for which matrix units of both vendors take the same instruction at
    every size here.

    Attributes:
        tokens: tokens of a program, 16 or a multiple that divides 128.
        warps: warps of a program.
        lanes: lanes of K of a program, as far as they divide K: a power of two, 64 or more. The same in all lines of a
            table: a token's bits are then the same for every number of tokens.
        instruction: rows of AMD's matrix instruction; 0 elsewhere.
        pdl: the kernel is set up while the one before it runs, and reads the weight then: the kernel just before it
            must not be what writes that.
    """

    tokens: int
    warps: int
    lanes: int = 512
    instruction: int = 0
    pdl: bool = False

    @property
    def most(self) -> int:
        """Tokens of a call that is cut so: a program takes all."""
        return self.tokens


@triton.jit
def turned_back(
    value, positions, freqs, here, slab,
    TOKENS: tl.constexpr, SLAB: tl.constexpr, HEAD: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Return lanes [TOKENS, SLAB] of tokens, the last ROPE lanes of each HEAD rotated backward, rounded to bfloat16."""
    if SLAB < HEAD:
        if (slab + 1) % (HEAD // SLAB) == 0:
            value = turned_heads(value, positions, freqs, here, TOKENS, SLAB, SLAB, ROPE)
    else:
        value = turned_heads(value, positions, freqs, here, TOKENS, SLAB, HEAD, ROPE)
    return value


@triton.jit
def turned_heads(
    value, positions, freqs, here, TOKENS: tl.constexpr, SLAB: tl.constexpr, HEAD: tl.constexpr, ROPE: tl.constexpr
):
    """Return whole heads, or the ends of such, as `turned_back` does."""
    pair = tl.arange(0, SLAB // 2)[None, :]
    lane = 2 * pair % HEAD - (HEAD - ROPE)
    turned = (lane >= 0) & here[:, None]
    turns = freqs + positions[:, None] * ROPE + lane
    cosine = tl.load(turns, mask=turned, other=1.0)
    sine = tl.load(turns + 1, mask=turned, other=0.0)
    even, odd = split_pairs(value, TOKENS, SLAB)
    new_even, new_odd = turn_back(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
    even = tl.where(turned, new_even.to(tl.bfloat16), even)
    return join_pairs(even, tl.where(turned, new_odd.to(tl.bfloat16), odd), TOKENS, SLAB)


@triton.jit(
    do_not_specialize=["tokens", "o_row", "o_group"],
    do_not_specialize_on_alignment=["freqs", "positions"],
)
def head_slab_kernel(
    o, weight, y, q, scales, freqs, positions, parts, state, tokens, o_row, o_group,
    LANES: tl.constexpr, SLAB: tl.constexpr, HEAD: tl.constexpr, ROPE: tl.constexpr, UNIT: tl.constexpr,
    RANK: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, MX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Multiply SLAB lanes of TOKENS tokens by COLUMNS rows of the weight; the last program of a tile adds up the slabs.

    A group of the weight has RANK columns, all groups WIDTH. Strides of `o` count groups of UNIT elements. `parts`
    holds a float32 tile per slab, tile of columns and block of tokens, `state` the words at which programs meet.
    """
    tile, slab, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SLABS: tl.constexpr = LANES // SLAB
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    lane = slab * SLAB + tl.arange(0, SLAB)[None, :]
    # No kernel of a step writes weights: they may be read while the one before is still running.
    places = weight + column.to(tl.int64)[:, None] * LANES + lane
    wanted = column < WIDTH
    factor = tl.load(places) if WIDTH % COLUMNS == 0 else tl.load(places, mask=wanted[:, None], other=0.0)
    begin(PDL)
    token = block * TOKENS + tl.arange(0, TOKENS)
    here = token < tokens
    place = tl.load(positions + token, mask=here, other=0).to(tl.int64)
    source = o + token.to(tl.int64)[:, None] * o_row * UNIT + lane
    group = tile * COLUMNS // RANK
    if RANK % COLUMNS == 0:
        value = tl.load(source + group.to(tl.int64) * o_group * UNIT, mask=here[:, None], other=0.0)
        value = turned_back(value, place, freqs, here, slab, TOKENS, SLAB, HEAD, ROPE)
        product = tl.dot(factor, tl.trans(value))
    else:
        # The columns belong to several groups of the weight, each with lanes of its own.
        product = tl.zeros((COLUMNS, TOKENS), tl.float32)
        last = tl.minimum(tile * COLUMNS + COLUMNS - 1, WIDTH - 1) // RANK
        for other in range(group, last + 1):
            value = tl.load(source + tl.cast(other, tl.int64) * o_group * UNIT, mask=here[:, None], other=0.0)
            value = turned_back(value, place, freqs, here, slab, TOKENS, SLAB, HEAD, ROPE)
            product = tl.where((column // RANK == other)[:, None], tl.dot(factor, tl.trans(value)), product)
    meeting = block * tl.num_programs(0) + tile
    first = parts + meeting.to(tl.int64) * (SLABS * TOKENS * COLUMNS)
    cell = tl.arange(0, COLUMNS)[:, None] + tl.arange(0, TOKENS)[None, :] * COLUMNS
    tl.store(first + slab * (TOKENS * COLUMNS) + cell, product, mask=here[None, :])
    if is_last_to_arrive(state + meeting * STATE_WORDS, SLABS):
        sum_cell = tl.arange(0, TOKENS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        known = here[:, None]
        total = tl.load(first + sum_cell, mask=known, other=0.0)
        if SLABS <= UNROLLED:
            for further in tl.static_range(1, SLABS):
                total += tl.load(first + further * (TOKENS * COLUMNS) + sum_cell, mask=known, other=0.0)
        else:
            for more in range(1, SLABS):
                total += tl.load(first + more * (TOKENS * COLUMNS) + sum_cell, mask=known, other=0.0)
        rounded = total.to(tl.bfloat16)
        target = token.to(tl.int64)[:, None] * WIDTH + column[None, :]
        tl.store(y + target, rounded, mask=here[:, None] & wanted[None, :])
        if MX:
            codes, byte = mxfp8_groups(rounded.to(tl.float32))
            tl.store(q + target, codes, mask=here[:, None])
            store_scales(scales, tl.where(here, byte, 0), token, tile, tokens, block, TOKENS, WIDTH // COLUMNS)


@triton.jit
def store_scales(scales, byte, token, tile, tokens, block, TOKENS: tl.constexpr, GROUPS: tl.constexpr):
    """Store the scale bytes of a tile of 32 columns for a block of tokens in the layout sf_128x4, with its padding.

    Rows of padding belong to the last block of tokens, groups of padding to the last tile.
    """
    tl.store(scales + sf_128x4_place(token, tile, GROUPS), byte.to(tl.uint8))
    row, after = block * TOKENS + tl.arange(0, 128), (block + 1) * TOKENS
    end = tl.where(block == tl.num_programs(2) - 1, (tokens + 127) // 128 * 128, after)
    nothing = tl.zeros((128,), tl.uint8)
    tl.store(scales + sf_128x4_place(row, tile, GROUPS), nothing, mask=(row >= after) & (row < end))
    behind = tl.where(tile == GROUPS - 1, end, 0)
    for further in tl.static_range(GROUPS, (GROUPS + 3) // 4 * 4):
        tl.store(scales + sf_128x4_place(row, further, GROUPS), nothing, mask=row < behind)


def slab_of(tiles: Tiles, lanes: int) -> int:
    """Return the lanes of K that a program takes: whole heads, or equal parts of one."""
    return math.gcd(lanes, tiles.lanes)


def tiles_of(table: Sequence[Any], tokens: int) -> Any:
    """Return how the product is cut for a number of tokens: the first line for at least as many, or the last one."""
    return next((tiles for tiles in table if tokens <= tiles.most), table[-1])


def launch_constants(
    tiles: Tiles, lanes: int, head_dim: int, rope: int, unit: int, rank: int, width: int, mx: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "LANES": lanes, "SLAB": slab_of(tiles, lanes), "HEAD": head_dim, "ROPE": rope, "UNIT": unit, "RANK": rank,
        "WIDTH": width, "TOKENS": tiles.tokens, "COLUMNS": COLUMNS, "MX": mx, "PDL": tiles.pdl,
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    options = {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}
    return {**options, "matrix_instr_nonkdim": tiles.instruction} if tiles.instruction else options


__all__ = [
    "COLUMNS", "MOST_LANES", "Tiles", "head_slab_kernel", "launch_constants", "launch_options", "slab_of", "tiles_of",
]  # fmt: skip

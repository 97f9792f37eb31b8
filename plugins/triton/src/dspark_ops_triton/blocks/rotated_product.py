"""The output projection after the inverse rotation, quantised to MXFP8 in the same launch; its tiles are data (N5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.mxfp8 import TILE_GROUPS, mxfp8_groups, scale_rows, sf_128x4_place
from dspark_ops_triton.blocks.rotary import join_pairs, split_pairs, turn_back

#: Columns of a program: the 32 values that share a scale, so that it knows their largest magnitude.
COLUMNS = 32


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the product is cut for up to `tokens` tokens.

    A program has 32 columns of 16 tokens or more, for which matrix units of both vendors take the same instruction at
    every size here, and it sums over K in one order: a token's bits are the same for every number of tokens.

    Attributes:
        tokens: tokens of a program, a divisor of 128.
        depth: lanes of K that are read at a time; at most a head.
        warps: warps of a program.
        stages: tiles that are under way at a time.
        instruction: rows of AMD's matrix instruction; 0 elsewhere.
    """

    tokens: int
    depth: int
    warps: int
    stages: int
    instruction: int = 0


@triton.jit
def unrotated_product(
    source, factor, cosine, sine, turned, here, wanted,
    LANES: tl.constexpr, HEAD: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Return rows of a weight times tokens whose heads are rotated back first, float32 [rows, TOKENS].

    `source` points to the first DEPTH lanes of each token, `factor` to those of each row, both of LANES lanes. The last
    lanes of a head are rotated where `turned` says so, and rounded to bfloat16. Tokens that are not `here` and rows
    that are not `wanted` count as zeros.
    """
    total = tl.zeros((factor.shape[0], TOKENS), tl.float32)
    for tile in range(LANES // DEPTH):
        value = tl.load(source + tile * DEPTH, mask=here[:, None], other=0.0)
        if tile % (HEAD // DEPTH) == HEAD // DEPTH - 1:
            even, odd = split_pairs(value, TOKENS, DEPTH)
            new_even, new_odd = turn_back(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
            even = tl.where(turned, new_even.to(tl.bfloat16), even)
            value = join_pairs(even, tl.where(turned, new_odd.to(tl.bfloat16), odd), TOKENS, DEPTH)
        total = tl.dot(tl.load(factor + tile * DEPTH, mask=wanted[:, None], other=0.0), tl.trans(value), total)
    return total


@triton.jit(
    do_not_specialize=["tokens", "o_row", "o_group"],
    do_not_specialize_on_alignment=["freqs", "positions"],
)
def rotated_mxfp8_kernel(
    o, weight, y, q, scales, freqs, positions, tokens, o_row, o_group,
    RANK: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, HEAD: tl.constexpr, ROPE: tl.constexpr,
    UNIT: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write COLUMNS of the WIDTH results of TOKENS tokens, plain and as MXFP8, and the scale bytes of padding.

    A group of the weight has RANK columns. Strides of `o` count groups of UNIT elements.
    """
    tile, block = tl.program_id(0), tl.program_id(1)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    token = block * TOKENS + tl.arange(0, TOKENS)
    here = token < tokens
    lane = tl.arange(0, DEPTH)[None, :]
    place = tl.load(positions + token, mask=here, other=0).to(tl.int64)
    # The rotated lanes are the last ones of every HEAD // DEPTH th tile: their turns are the same for all heads.
    pair = tl.arange(0, DEPTH // 2)[None, :]
    turned = (pair >= (DEPTH - ROPE) // 2) & here[:, None]
    turns = freqs + place[:, None] * ROPE + 2 * pair - (DEPTH - ROPE)
    cosine = tl.load(turns, mask=turned, other=1.0)
    sine = tl.load(turns + 1, mask=turned, other=0.0)
    source = o + token.to(tl.int64)[:, None] * o_row * UNIT + lane
    factor = weight + column.to(tl.int64)[:, None] * LANES + lane
    first = tile * COLUMNS // RANK
    if RANK % COLUMNS == 0:
        source += first.to(tl.int64) * o_group * UNIT
        wanted = tl.full((COLUMNS,), True, tl.int1)
        total = unrotated_product(source, factor, cosine, sine, turned, here, wanted, LANES, HEAD, TOKENS, DEPTH)
    else:
        # Columns that share a scale belong to several groups of the weight, each with lanes of its own.
        total = tl.zeros((COLUMNS, TOKENS), tl.float32)
        for group in range(first, (tile * COLUMNS + COLUMNS - 1) // RANK + 1):
            wanted = column // RANK == group
            part = unrotated_product(
                source + tl.cast(group, tl.int64) * o_group * UNIT, factor, cosine, sine, turned, here, wanted,
                LANES, HEAD, TOKENS, DEPTH,
            )  # fmt: skip
            total = tl.where(wanted[:, None], part, total)
    rounded = tl.trans(total).to(tl.bfloat16)
    target = token.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(y + target, rounded, mask=here[:, None])
    codes, byte = mxfp8_groups(rounded.to(tl.float32))
    tl.store(q + target, codes, mask=here[:, None])
    groups: tl.constexpr = WIDTH // COLUMNS
    tl.store(scales + sf_128x4_place(token, tile, groups), tl.where(here, byte, 0).to(tl.uint8))
    # Rows of padding belong to the last block of tokens, groups of padding to the last tile.
    row, after = block * TOKENS + tl.arange(0, 128), (block + 1) * TOKENS
    end = tl.where(block == tl.num_programs(1) - 1, (tokens + 127) // 128 * 128, after)
    nothing = tl.zeros((128,), tl.uint8)
    tl.store(scales + sf_128x4_place(row, tile, groups), nothing, mask=(row >= after) & (row < end))
    behind = tl.where(tile == groups - 1, end, 0)
    for further in tl.static_range(groups, (groups + 3) // 4 * 4):
        tl.store(scales + sf_128x4_place(row, further, groups), nothing, mask=row < behind)


def rope_wo_a_mxfp8(
    table: Sequence[Tiles], o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the projection, its codes and scale bytes: ``rope_wo_a_mxfp8`` (N5), arguments as in its contract.

    The first of the table's tiles that holds all tokens is used; more tokens than the last one holds are several
    programs.
    """
    tokens, _, lanes = o.shape
    rank, rope = weight.shape[1], freqs.shape[1]
    width = weight.shape[0] * rank
    if head_dim < 16 or head_dim & (head_dim - 1) or lanes % head_dim or rope > min(64, head_dim) or width % COLUMNS:
        wanted = (
            "whole heads of a power of two of lanes, 16 or more, of which 64 at most are rotated, and 32s of columns"
        )
        got = f"{lanes} lanes in heads of {head_dim}, {rope} rotated, and {width} columns"
        raise ValueError(f"rope_wo_a_mxfp8: wanted {wanted}, got {got}")
    y = torch.empty(tokens, width, dtype=torch.bfloat16, device=o.device)
    q = torch.empty(tokens, width, dtype=torch.uint8, device=o.device)
    stored_groups = triton.cdiv(width // COLUMNS, TILE_GROUPS) * TILE_GROUPS
    scales = torch.empty(scale_rows(tokens) * stored_groups, dtype=torch.uint8, device=o.device)
    if tokens and width:
        tiles, unit = tiles_of(table, tokens), common_stride_unit(o)
        rotated_mxfp8_kernel[(width // COLUMNS, triton.cdiv(tokens, tiles.tokens))](
            o, weight, y, q, scales, freqs, positions, tokens, o.stride(0) // unit, o.stride(1) // unit,
            **launch_constants(tiles, rank, width, lanes, head_dim, rope, unit), **launch_options(tiles),
        )  # fmt: skip
    return y, q.view(torch.float8_e4m3fn), scales


def tiles_of(table: Sequence[Tiles], tokens: int) -> Tiles:
    """Return how the product is cut for a number of tokens."""
    return next((tiles for tiles in table if tokens <= tiles.tokens), table[-1])


def launch_constants(
    tiles: Tiles, rank: int, width: int, lanes: int, head_dim: int, rope: int, unit: int
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "RANK": rank, "WIDTH": width, "LANES": lanes, "HEAD": head_dim, "ROPE": rope, "UNIT": unit,
        "TOKENS": tiles.tokens, "COLUMNS": COLUMNS, "DEPTH": min(tiles.depth, head_dim),
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": False}
    return {**options, "matrix_instr_nonkdim": tiles.instruction} if tiles.instruction else options


def compile_rope_wo_a_mxfp8(call: Callable[..., Any], table: Sequence[Tiles], site: Any, rows: Sequence[int]) -> None:
    """Call `rope_wo_a_mxfp8`, cut as the table says, once per build that a site needs.

    They are for the tiles of the site's row counts and positions of both dtypes. Outputs of attention that do not begin
    at 16-byte boundaries are compiled at their first call.
    """
    axes = site.axes
    weight = torch.zeros(axes["G"], axes["R"], axes["K"], dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(1, axes["P"], device="cuda")
    for count in sorted({tiles_of(table, count).tokens for count in rows if count}):
        o = torch.zeros(count, axes["G"], axes["K"], dtype=torch.bfloat16, device="cuda")
        positions = torch.zeros(count, dtype=torch.int64, device="cuda")
        for typed in (positions, positions.int()):
            call(o, weight, freqs, typed, site.options["head_dim"])


__all__ = [
    "COLUMNS",
    "Tiles",
    "compile_rope_wo_a_mxfp8",
    "launch_constants",
    "launch_options",
    "rope_wo_a_mxfp8",
    "rotated_mxfp8_kernel",
    "tiles_of",
    "unrotated_product",
]

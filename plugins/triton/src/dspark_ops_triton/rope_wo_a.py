"""Portable ``rope_wo_a``: the low-rank output projection per group, with the inverse rotation on the way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.rotary import join_pairs, split_pairs, turn_back


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the product is cut for up to `tokens` tokens.

    The columns are always the 16 rows of the tensor cores' instruction, and sums run over K in one order, so a token's
    bits are the same for every number of tokens.

    Attributes:
        tokens: tokens of a program.
        columns: columns of the result of a program.
        depth: lanes of K that are read at a time; at most a head.
        warps: warps of a program.
        stages: tiles that are under way at a time.
    """

    tokens: int
    columns: int
    depth: int
    warps: int
    stages: int


#: The first that holds all tokens is used; more tokens than the last one holds are several programs.
TILES = (Tiles(16, 16, 256, 4, 4), Tiles(32, 16, 128, 4, 4), Tiles(64, 16, 128, 4, 3))
AMD_TILES = (Tiles(16, 16, 128, 2, 2), Tiles(32, 16, 128, 2, 2), Tiles(64, 16, 128, 4, 2))


@triton.jit(
    do_not_specialize=["tokens", "o_row", "o_group", "columns"],
    do_not_specialize_on_alignment=["freqs", "positions"],
)
def rope_wo_a_kernel(
    o, weight, out, freqs, positions, tokens, o_row, o_group, columns,
    LANES: tl.constexpr, HEAD: tl.constexpr, ROPE: tl.constexpr, UNIT: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Multiply TOKENS tokens by COLUMNS rows of one group's weight; strides of `o` count groups of UNIT elements."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    group = tl.program_id(1).to(tl.int64)
    token = (tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    here, wanted = token < tokens, column < columns
    lane = tl.arange(0, DEPTH)[None, :]
    place = tl.load(positions + token, mask=here, other=0).to(tl.int64)
    # The rotated lanes are the last ones of every HEAD // DEPTH th tile: their turns are the same for all heads.
    pair = tl.arange(0, DEPTH // 2)[None, :]
    turned = (pair >= (DEPTH - ROPE) // 2) & here[:, None]
    turns = freqs + place[:, None] * ROPE + 2 * pair - (DEPTH - ROPE)
    cosine = tl.load(turns, mask=turned, other=1.0)
    sine = tl.load(turns + 1, mask=turned, other=0.0)
    source = o + (token[:, None] * o_row + group * o_group) * UNIT + lane
    factor = weight + (group * columns + column[:, None]) * LANES + lane
    total = tl.zeros((COLUMNS, TOKENS), tl.float32)
    for tile in range(LANES // DEPTH):
        value = tl.load(source + tile * DEPTH, mask=here[:, None], other=0.0)
        if tile % (HEAD // DEPTH) == HEAD // DEPTH - 1:
            even, odd = split_pairs(value, TOKENS, DEPTH)
            new_even, new_odd = turn_back(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
            even = tl.where(turned, new_even.to(tl.bfloat16), even)
            value = join_pairs(even, tl.where(turned, new_odd.to(tl.bfloat16), odd), TOKENS, DEPTH)
        total = tl.dot(tl.load(factor + tile * DEPTH, mask=wanted[:, None], other=0.0), tl.trans(value), total)
    target = out + (token[:, None] * tl.num_programs(1) + group) * columns + column[None, :]
    tl.store(target, tl.trans(total).to(tl.bfloat16), mask=here[:, None] & wanted[None, :])


def rope_wo_a(o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512) -> Tensor:
    """Return the low-rank projection of the attention output, its rotation undone first: [T, G*R] bfloat16.

    Args:
        o: [T, G, K] bfloat16, last stride 1; K holds the heads of a group side by side. Not modified.
        weight: [G, R, K] bfloat16, contiguous.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64, of the queries.
        head_dim: lanes of a head, a power of two of 16 or more; the last P of each are rotated backward.

    Raises:
        ValueError: K is not a multiple of `head_dim`, which is no such power of two, or P is above 64 or above it.

    Bytes moved: ``2*G*R*K`` of weight once per 64 tokens, ``2*T*G*K`` per 16 columns, mostly from cache, and
    ``2*T*G*R`` out. Launches: 1, none for no tokens.

    Source: N5, bfloat16 form.
    """
    tokens, groups, lanes = o.shape
    columns, rope = weight.shape[1], freqs.shape[1]
    if head_dim < 16 or head_dim & (head_dim - 1) or lanes % head_dim or rope > min(64, head_dim):
        wanted = "whole heads of a power of two of lanes, 16 or more, of which 64 at most are rotated"
        raise ValueError(f"rope_wo_a: wanted {wanted}, got {lanes} lanes in heads of {head_dim}, {rope} rotated")
    out = torch.empty(tokens, groups * columns, dtype=torch.bfloat16, device=o.device)
    if tokens == 0:
        return out
    amd = torch.version.hip is not None
    tiles = tiles_for(tokens, amd)
    unit = common_stride_unit(o)
    grid = (triton.cdiv(columns, tiles.columns), groups, triton.cdiv(tokens, tiles.tokens))
    rope_wo_a_kernel[grid](
        o, weight, out, freqs, positions, tokens, o.stride(0) // unit, o.stride(1) // unit, columns,
        **launch_constants(tiles, lanes, head_dim, rope, unit), **launch_options(tiles),
    )  # fmt: skip
    return out


def tiles_for(tokens: int, amd: bool) -> Tiles:
    """Return how the product is cut for a number of tokens."""
    table = AMD_TILES if amd else TILES
    return next((tiles for tiles in table if tokens <= tiles.tokens), table[-1])


def launch_constants(tiles: Tiles, lanes: int, head_dim: int, rope: int, unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "LANES": lanes, "HEAD": head_dim, "ROPE": rope, "UNIT": unit,
        "TOKENS": tiles.tokens, "COLUMNS": tiles.columns, "DEPTH": min(tiles.depth, head_dim),
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": False}


def prepare_rope_wo_a(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `rope_wo_a`, compiled for the site's sizes, the tiles of its row counts and both dtypes of positions.

    Outputs of attention that do not begin at 16-byte boundaries are compiled at their first call.
    """
    if device.arch.vendor != "cpu":
        axes = site.axes
        counts = {tiles_for(count, device.arch.vendor == "amd").tokens for count in rows if count}
        weight = torch.zeros(axes["G"], axes["R"], axes["K"], dtype=torch.bfloat16, device="cuda")
        freqs = torch.zeros(1, axes["P"], device="cuda")
        for count in counts:
            o = torch.zeros(count, axes["G"], axes["K"], dtype=torch.bfloat16, device="cuda")
            positions = torch.zeros(count, dtype=torch.int64, device="cuda")
            rope_wo_a(o, weight, freqs, positions, site.options["head_dim"])
            rope_wo_a(o, weight, freqs, positions.int(), site.options["head_dim"])
    return rope_wo_a


__all__ = [
    "AMD_TILES",
    "TILES",
    "Tiles",
    "launch_constants",
    "launch_options",
    "prepare_rope_wo_a",
    "rope_wo_a",
    "rope_wo_a_kernel",
    "tiles_for",
]

"""``rope_wo_a`` and ``rope_wo_a_mxfp8`` for SM100 and SM103: a program per head and tile of columns, one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.arrival import WORDS, ArrivalState
from dspark_ops_triton.blocks.dependent import begin, has_pdl, pdl_option
from dspark_ops_triton.blocks.meeting import is_last_to_arrive
from dspark_ops_triton.blocks.mxfp8 import TILE_ROWS, mxfp8_groups, sf_128x4_place
from dspark_ops_triton.blocks.rotary import join_pairs, split_pairs, turn_back
from dspark_ops_triton.blocks.scratch import ScratchMemory

STATE_WORDS = tl.constexpr(WORDS)
#: Columns of a program: one group of MXFP8. 64 tiles by 8 heads of V4.1 are 512 programs; registers let each of 148 or
#: 152 multiprocessors hold three, so that nearly all of the weight, 16 MB, is under way at once.
COLUMNS = 32


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the product is cut for up to `tokens` tokens.

    The tile of the weight, 32 KB at heads of 512, is held in 64 registers of each of 128 threads: it is read before
    the wait for the attention that comes before. Reasoned, not measured.

    Attributes:
        tokens: tokens of a program, all there are.
        warps: warps of a program.
    """

    tokens: int
    warps: int


#: The first that holds all tokens is used.
TILES = (Tiles(16, 4), Tiles(32, 4))
MOST_TOKENS = TILES[-1].tokens


@triton.jit(
    do_not_specialize=["tokens", "o_row", "o_group"],
    do_not_specialize_on_alignment=["freqs", "positions"],
)
def head_slab_kernel(
    o, weight, y, q, scales, freqs, positions, parts, state, tokens, o_row, o_group,
    LANES: tl.constexpr, HEAD: tl.constexpr, ROPE: tl.constexpr, UNIT: tl.constexpr, RANK: tl.constexpr,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, MX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply one head of all tokens by COLUMNS rows of the weight; the last program of a tile adds up the heads.

    Strides of `o` count groups of UNIT elements. `parts` holds a float32 tile per head and tile of columns, `state` the
    words at which the programs of a tile meet.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    heads = tl.num_programs(1)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    lane = tl.arange(0, HEAD)[None, :]
    # No kernel of a step writes weights: they may be read while the one before is still running.
    factor = tl.load(weight + column.to(tl.int64)[:, None] * LANES + head * HEAD + lane)
    begin(PDL)
    token = tl.arange(0, TOKENS)
    here = token < tokens
    place = tl.load(positions + token, mask=here, other=0).to(tl.int64)
    group = (tile * COLUMNS // RANK).to(tl.int64)
    source = o + (token.to(tl.int64)[:, None] * o_row + group * o_group) * UNIT + head * HEAD + lane
    value = tl.load(source, mask=here[:, None], other=0.0)
    pair = tl.arange(0, HEAD // 2)[None, :]
    turned = (pair >= (HEAD - ROPE) // 2) & here[:, None]
    turns = freqs + place[:, None] * ROPE + 2 * pair - (HEAD - ROPE)
    cosine = tl.load(turns, mask=turned, other=1.0)
    sine = tl.load(turns + 1, mask=turned, other=0.0)
    even, odd = split_pairs(value, TOKENS, HEAD)
    new_even, new_odd = turn_back(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
    even = tl.where(turned, new_even.to(tl.bfloat16), even)
    value = join_pairs(even, tl.where(turned, new_odd.to(tl.bfloat16), odd), TOKENS, HEAD)
    product = tl.dot(factor, tl.trans(value))
    cell = tl.arange(0, COLUMNS)[:, None] + tl.arange(0, TOKENS)[None, :] * COLUMNS
    first = parts + tile * heads * (TOKENS * COLUMNS)
    tl.store(first + head * (TOKENS * COLUMNS) + cell, product)
    if is_last_to_arrive(state + tile * STATE_WORDS, heads):
        sum_cell = token[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        total = tl.load(first + sum_cell)
        for other in tl.static_range(1, LANES // HEAD):
            total += tl.load(first + other * (TOKENS * COLUMNS) + sum_cell)
        rounded = total.to(tl.bfloat16)
        target = token.to(tl.int64)[:, None] * WIDTH + column[None, :]
        tl.store(y + target, rounded, mask=here[:, None])
        if MX:
            codes, byte = mxfp8_groups(rounded.to(tl.float32))
            tl.store(q + target, codes, mask=here[:, None])
            # Rows of padding are zeros, and so are their bytes; the others of a tile of 128 rows hold nothing.
            tl.store(scales + sf_128x4_place(token, tile, WIDTH // 32), byte.to(tl.uint8))
            row = tl.arange(0, 128)
            nothing = tl.zeros((128,), tl.uint8)
            tl.store(scales + sf_128x4_place(row, tile, WIDTH // 32), nothing, mask=row >= TOKENS)


class RopeWoA:
    """The projection bound to one device: one launch per call, safe to capture, on any number of streams at once.

    The programs of a tile meet at memory that this object owns: keep it alive as long as graphs that captured it.

    Bytes moved: the weight once; ``2*T*G*K`` of attention output per 32 columns, mostly from cache; 8 per result and
    head through scratch memory, which stays in the cache. Launches: 1.
    """

    __slots__ = ("_arrivals", "_pdl", "_scratch")

    def __init__(self, arrivals: ArrivalState, pdl: bool = False) -> None:
        self._arrivals = arrivals
        self._scratch = ScratchMemory()
        self._pdl = pdl

    def plain(self, o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512) -> Tensor:
        """Return the low-rank projection of the attention output, its rotation undone first: [T, G*R] bfloat16.

        Args:
            o: [T, G, K] bfloat16, last stride 1; K holds the heads of a group side by side. Not modified. T is at most
                `MOST_TOKENS`.
            weight: [G, R, K] bfloat16, contiguous, R divisible by 128. Launched early, the kernel reads it before the
                one just before it has ended: that one must not be what writes it.
            freqs: [S, P] float32 interleaved.
            positions: [T] int32 or int64, of the queries.
            head_dim: lanes of a head, a power of two of 16 or more; the last P of each are rotated backward.

        Raises:
            ValueError: sizes other than these.

        Source: N5, bfloat16 form.
        """
        return self._launch(o, weight, freqs, positions, head_dim, False)[0]

    def mxfp8(
        self, o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `plain` returns, its e4m3 codes and its scale bytes in the layout sf_128x4, padding 0.

        Arguments are those of `plain`.

        Source: N5, MXFP8 form.
        """
        y, q, scales = self._launch(o, weight, freqs, positions, head_dim, True)
        return y, q.view(torch.float8_e4m3fn), scales

    def _launch(
        self, o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int, mx: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, groups, lanes = o.shape
        rank, rope = weight.shape[1], freqs.shape[1]
        power = head_dim >= 16 and head_dim & (head_dim - 1) == 0
        if not power or lanes % head_dim or rope > min(64, head_dim) or rank % 128 or tokens > MOST_TOKENS:
            wanted = f"heads of a power of two of lanes, 64 at most rotated, rank in whole 128s, {MOST_TOKENS} tokens"
            got = f"{lanes} lanes in heads of {head_dim}, {rope} rotated, rank {rank}, {tokens} tokens"
            raise ValueError(f"rope_wo_a: wanted {wanted} at most, got {got}")
        width = groups * rank
        y = torch.empty(tokens, width, dtype=torch.bfloat16, device=o.device)
        q = torch.empty(tokens, width, dtype=torch.uint8, device=o.device) if mx else y
        stored = TILE_ROWS * width // 32 if mx and tokens else 0
        scales = torch.empty(stored, dtype=torch.uint8, device=o.device)
        if tokens:
            tiles = tiles_for(tokens)
            heads, unit = lanes // head_dim, common_stride_unit(o)
            head_slab_kernel[(width // COLUMNS, heads)](
                o, weight, y, q, scales, freqs, positions,
                self._scratch.take(heads * width * tiles.tokens, o), self._arrivals.take(width // COLUMNS, o),
                tokens, o.stride(0) // unit, o.stride(1) // unit,
                **launch_constants(tiles, lanes, head_dim, rope, unit, rank, width, mx, self._pdl),
                **launch_options(tiles, self._pdl),
            )  # fmt: skip
        return y, q, scales


def tiles_for(tokens: int) -> Tiles:
    """Return how the product is cut for a number of tokens up to `MOST_TOKENS`."""
    return next(tiles for tiles in TILES if tokens <= tiles.tokens)


def launch_constants(
    tiles: Tiles, lanes: int, head_dim: int, rope: int, unit: int, rank: int, width: int, mx: bool, pdl: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "LANES": lanes, "HEAD": head_dim, "ROPE": rope, "UNIT": unit, "RANK": rank, "WIDTH": width,
        "TOKENS": tiles.tokens, "COLUMNS": COLUMNS, "MX": mx, "PDL": pdl,
    }  # fmt: skip


def launch_options(tiles: Tiles, pdl: bool) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(pdl)}


def rope_wo_a(o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512) -> Tensor:
    """Return what `RopeWoA.plain` returns; unprepared, a launch that zeroes 32 bytes per tile comes before the kernel.

    Source: N5.
    """
    return RopeWoA(ArrivalState(0, o.device)).plain(o, weight, freqs, positions, head_dim)


def rope_wo_a_mxfp8(
    o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `RopeWoA.mxfp8` returns; unprepared, a launch that zeroes 32 bytes per tile comes before the kernel.

    Source: N5.
    """
    return RopeWoA(ArrivalState(0, o.device)).mxfp8(o, weight, freqs, positions, head_dim)


def prepare_rope_wo_a(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `rope_wo_a` with memory for its meetings, compiled for the site's sizes and both dtypes of positions.

    Outputs of attention that do not begin at 16-byte boundaries are compiled at their first call.
    """
    return _prepare(device, site, rows).plain


def prepare_rope_wo_a_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `rope_wo_a_mxfp8`, prepared as `prepare_rope_wo_a` does."""
    return _prepare(device, site, rows, mx=True).mxfp8


def _prepare(device: Any, site: Any, rows: Sequence[int], mx: bool = False) -> RopeWoA:
    axes = site.axes
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    bound = RopeWoA(ArrivalState(axes["G"] * axes["R"] // COLUMNS, target), has_pdl(device))
    if target.type == "cuda":
        weight = torch.zeros(axes["G"], axes["R"], axes["K"], dtype=torch.bfloat16, device=target)
        freqs = torch.zeros(1, axes["P"], device=target)
        for count in sorted({tiles_for(count).tokens for count in rows if 0 < count <= MOST_TOKENS}):
            o = torch.zeros(count, axes["G"], axes["K"], dtype=torch.bfloat16, device=target)
            positions = torch.zeros(count, dtype=torch.int64, device=target)
            for typed in (positions, positions.int()):
                (bound.mxfp8 if mx else bound.plain)(o, weight, freqs, typed, site.options["head_dim"])
    return bound


__all__ = [
    "MOST_TOKENS", "TILES", "RopeWoA", "head_slab_kernel", "launch_constants", "launch_options", "prepare_rope_wo_a",
    "prepare_rope_wo_a_mxfp8", "rope_wo_a", "rope_wo_a_mxfp8", "tiles_for",
]  # fmt: skip

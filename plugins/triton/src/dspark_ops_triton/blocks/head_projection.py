"""The output projection bound to a device: its arguments, its launches and, by slabs, where programs meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from dspark_ops_triton.blocks import head_slices
from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.head_slabs import (
    COLUMNS,
    MOST_LANES,
    Tiles,
    head_slab_kernel,
    launch_constants,
    launch_options,
    slab_of,
    tiles_of,
)
from dspark_ops_triton.blocks.head_slices import Slices, head_slice_kernel
from dspark_ops_triton.blocks.mxfp8 import TILE_GROUPS, scale_rows
from dspark_ops_triton.blocks.scratch import ScratchMemory

#: Tokens of a launch: more tokens are several launches, so that scratch memory stays small.
MOST_TOKENS = 256


class HeadProjection:
    """The projection bound to one device: one launch per call of up to 256 tokens, safe to capture, on any streams.

    Where it is cut by slabs, the programs of a tile meet at memory that this object owns: keep it alive as long as
    graphs that captured it.

    Args:
        table: how the product is cut, by rising numbers of tokens; the last one serves all larger numbers, too.
        arrivals: words for the meetings of slabs.

    Bytes moved: the weight once per tile of tokens, from cache but for the first; ``2*T*G*K`` of attention output per
    32 columns, mostly from cache; by slabs, 8 per result and slab through scratch memory, which stays in the cache.
    """

    __slots__ = ("_arrivals", "_scratch", "_table")

    def __init__(self, table: Sequence[Tiles | Slices], arrivals: ArrivalState) -> None:
        self._table = tuple(table)
        self._arrivals = arrivals
        self._scratch = ScratchMemory()

    def plain(self, o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512) -> Tensor:
        """Return the low-rank projection of the attention output, its rotation undone first: [T, G*R] bfloat16.

        Args:
            o: [T, G, K] bfloat16, last stride 1; K holds the heads of a group side by side. Not modified.
            weight: [G, R, K] bfloat16, contiguous.
            freqs: [S, P] float32 interleaved.
            positions: [T] int32 or int64, of the queries.
            head_dim: lanes of a head, a power of two from 16 to 512; the last P of each are rotated backward.

        Raises:
            ValueError: K is not a multiple of `head_dim`, which is no such power of two, or P is above 64 or above it.

        Source: N5, bfloat16 form.
        """
        return self._launch("rope_wo_a", o, weight, freqs, positions, head_dim, False)[0]

    def mxfp8(
        self, o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `plain` returns, its e4m3 codes and its scale bytes in the layout ``sf_128x4``, padding 0.

        Arguments are those of `plain`.

        Raises:
            ValueError: what `plain` refuses, or G*R is no multiple of 32.

        Source: N5, MXFP8 form.
        """
        y, q, scales = self._launch("rope_wo_a_mxfp8", o, weight, freqs, positions, head_dim, True)
        return y, q.view(torch.float8_e4m3fn), scales

    def _launch(
        self, name: str, o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int, mx: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, groups, lanes = o.shape
        rank, rope = weight.shape[1], freqs.shape[1]
        width = groups * rank
        power = 16 <= head_dim <= MOST_LANES and head_dim & (head_dim - 1) == 0
        if not power or lanes % head_dim or rope > min(64, head_dim) or (mx and width % COLUMNS):
            wanted = "whole heads of a power of two of lanes, 16 to 512, of which 64 at most are rotated"
            wanted += ", and 32s of columns" if mx else ""
            got = f"{lanes} lanes in heads of {head_dim}, {rope} rotated, and {width} columns"
            raise ValueError(f"{name}: wanted {wanted}, got {got}")
        y = torch.empty(tokens, width, dtype=torch.bfloat16, device=o.device)
        q = torch.empty(tokens, width, dtype=torch.uint8, device=o.device) if mx else y
        stored = triton.cdiv(width // COLUMNS, TILE_GROUPS) * TILE_GROUPS if mx else 0
        scales = torch.empty(scale_rows(tokens) * stored, dtype=torch.uint8, device=o.device)
        if width:
            sizes = lanes, head_dim, rope, rank, width, mx
            for first in range(0, tokens, MOST_TOKENS):
                here = slice(first, first + MOST_TOKENS)
                whole = tokens <= MOST_TOKENS
                call = (o, y, q, positions) if whole else (o[here], y[here], q[here], positions[here])
                self._launch_some(*call, weight, scales[first * stored :], freqs, sizes)
        return y, q, scales

    def _launch_some(
        self, o: Tensor, y: Tensor, q: Tensor, positions: Tensor, weight: Tensor, scales: Tensor, freqs: Tensor,
        sizes: tuple[int, int, int, int, int, bool],
    ) -> None:  # fmt: skip
        lanes, head_dim, rope, rank, width, mx = sizes
        tokens, unit = o.shape[0], common_stride_unit(o)
        cut = tiles_of(self._table, tokens)
        blocks, tiles = triton.cdiv(tokens, cut.tokens), triton.cdiv(width, COLUMNS)
        given, strides = (o, weight, y, q, scales, freqs, positions), (o.stride(0) // unit, o.stride(1) // unit)
        shape = lanes, head_dim, rope, unit, rank, width, mx
        if isinstance(cut, Slices):
            head_slice_kernel[(tiles, 1, blocks)](
                *given, tokens, *strides, **head_slices.launch_constants(cut, *shape), **head_slices.launch_options(cut)
            )
            return
        slabs, met = lanes // slab_of(cut, lanes), blocks * tiles
        head_slab_kernel[(tiles, slabs, blocks)](
            *given, self._scratch.take(met * slabs * cut.tokens * COLUMNS, o), self._arrivals.take(met, o),
            tokens, *strides, **launch_constants(cut, *shape), **launch_options(cut),
        )  # fmt: skip


def meetings(table: Sequence[Tiles | Slices], width: int, rows: Sequence[int]) -> int:
    """Return how many meetings a call of one of `rows` tokens has at most, for `width` columns: 0 without slabs."""
    cuts = ((min(count, MOST_TOKENS), tiles_of(table, count)) for count in rows)
    blocks = (triton.cdiv(count, cut.tokens) for count, cut in cuts if isinstance(cut, Tiles))
    return triton.cdiv(width, COLUMNS) * max(blocks, default=0)


def compile_head_projection(
    call: Callable[..., Any], table: Sequence[Tiles | Slices], site: Any, rows: Sequence[int]
) -> None:
    """Call the operator, cut as the table says, once per build that a site needs.

    They are for the tiles of the site's row counts and positions of both dtypes. Outputs of attention that do not begin
    at 16-byte boundaries are compiled at their first call.
    """
    axes = site.axes
    weight = torch.zeros(axes["G"], axes["R"], axes["K"], dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(1, axes["P"], device="cuda")
    for count in {tiles_of(table, count): count for count in rows if count}.values():
        o = torch.zeros(count, axes["G"], axes["K"], dtype=torch.bfloat16, device="cuda")
        positions = torch.zeros(count, dtype=torch.int64, device="cuda")
        for typed in (positions, positions.int()):
            call(o, weight, freqs, typed, site.options["head_dim"])


__all__ = ["MOST_TOKENS", "HeadProjection", "compile_head_projection", "meetings"]

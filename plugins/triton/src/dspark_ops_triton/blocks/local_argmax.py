"""One rank's share of a row argmax over all ranks, in one launch, with the tile sizes as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.arrival import WORDS, ArrivalState
from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.ordering import last_to_arrive, packed_column
from dspark_ops_triton.blocks.row_argmax import COLUMN_LIMIT, Tiles, unit_count
from dspark_ops_triton.blocks.row_best import best_of_tiles

STATE_WORDS = tl.constexpr(WORDS)


@triton.jit
def packed_bits(pair):
    """Return the bits, as int64, of the float32 value of a pair made by `pack`: any NaN is 0x7FC00000, a zero is +0."""
    ordered = ((pair >> 31) - 0x80000000).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return tl.where(ordered == 0x7FFFFFFF, 0x7FC00000, bits).to(tl.int64) & 0xFFFFFFFF


@triton.jit
def store_pair(out, row, rows, pair, columns, offset):
    """Store a pair's value bits and its index in the vocabulary; without a column, -inf and the largest int64."""
    none = columns == 0
    index = packed_column(pair) + offset
    tl.store(out + row, tl.where(none, 0xFF800000, packed_bits(pair)))
    tl.store(out + rows.to(tl.int64) + row, tl.where(none, 0x7FFFFFFFFFFFFFFF, index))


@triton.jit(do_not_specialize=["rows", "row_stride", "columns", "offset"])
def local_kernel(
    logits, out, state, rows, row_stride, columns, offset,
    BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Reduce tiles ``split, split + splits, ...`` of one row; the row's last program to finish writes its pair."""
    begin(PDL)
    row = tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    start = logits + row.to(tl.int64) * row_stride * STRIDE_UNIT
    pair = best_of_tiles(start, columns, split, splits, BLOCK)
    if splits == 1:
        store_pair(out, row, rows, pair, columns, offset)
    else:
        last, pair = last_to_arrive(state + row * STATE_WORDS, pair, splits)
        if last:
            store_pair(out, row, rows, pair, columns, offset)


class LocalArgmax:
    """``argmax_vocab_parallel_local`` bound to one device: one launch per call, on any number of streams at once.

    The programs that share a row meet at two words of memory that this object owns (`ArrivalState`): keep it alive as
    long as graphs that captured it.

    Bytes moved: the valid logits once, 16 per row out, 16 per program and row through atomics. Launches: 1.
    """

    __slots__ = ("_arrivals", "_tiles", "_units")

    def __init__(self, tiles: Tiles, units: int, arrivals: ArrivalState) -> None:
        self._tiles = tiles
        self._units = units
        self._arrivals = arrivals

    def __call__(self, logits: Tensor, rank: int = 0, valid_cols: int = -1) -> Tensor:
        """Return the best value of each row of this rank's columns, and its index in the whole vocabulary.

        Args:
            logits: [R, C] float32, bfloat16 or float16, last stride 1.
            rank: this rank; its column i is token ``rank * C + i``.
            valid_cols: columns that are tokens; -1: all.

        Returns:
            [2, R] int64: the bits of the value as float32, then the index.

        Raises:
            ValueError: a negative rank, `valid_cols` not in -1 to C, columns apart, or more than 2**30 of them.

        Source: A11.
        """
        rows, columns = logits.shape
        fits = (logits.stride(1) == 1 or columns <= 1) and columns <= COLUMN_LIMIT
        if rank < 0 or not -1 <= valid_cols <= columns or not fits:
            wanted = f"a rank of 0 or more, valid_cols of -1 to {columns}, up to {COLUMN_LIMIT} columns of stride 1"
            got = f"rank {rank}, valid_cols {valid_cols}, strides {logits.stride()}"
            raise ValueError(f"argmax_vocab_parallel_local: wanted {wanted}, got {got}")
        out = torch.empty(2, rows, dtype=torch.int64, device=logits.device)
        if rows == 0:
            return out
        count = columns if valid_cols < 0 else valid_cols
        tiles, splits = self._tiles.cut(rows, max(count, 1), self._units)
        state = out if splits == 1 else self._arrivals.take(rows, logits)
        unit = stride_unit(logits)
        local_kernel[(rows, splits)](
            logits, out, state, rows, logits.stride(0) // unit, count, rank * columns,
            **launch_constants(tiles, unit), **launch_options(tiles),
        )  # fmt: skip
        return out


def launch_constants(tiles: Tiles, stride_unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"BLOCK": tiles.block, "STRIDE_UNIT": stride_unit, "PDL": tiles.pdl}


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def local_argmax_once(tiles: Tiles, logits: Tensor, rank: int = 0, valid_cols: int = -1) -> Tensor:
    """Return what `LocalArgmax` returns; a launch that zeroes 32 bytes per row comes before the kernel."""
    return LocalArgmax(tiles, unit_count(logits.device), ArrivalState(0, logits.device))(logits, rank, valid_cols)


def prepare_local_argmax(tiles: Tiles, device: Any, site: Any, rows: Sequence[int]) -> LocalArgmax:
    """Return the operator as one launch, compiled for the site's dtype, with its memory allocated."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    units = device.units or unit_count(target)
    most = min(max(rows, default=0), units * tiles.programs_per_unit)
    bound = LocalArgmax(tiles, units, ArrivalState(most, target))
    if target.type == "cuda":
        columns = site.axes["C"]
        width = triton.cdiv(columns, 16) * 16 + 16
        buffer = torch.zeros(2 * width + 2, dtype=getattr(torch, site.dtypes.get("logits", "float32")), device=target)
        for choice in {tiles, replace(tiles, pdl=False)}:
            once = LocalArgmax(choice, units, bound._arrivals)
            once(buffer[: 2 * width].view(2, width)[:, :columns])
            once(buffer.view(2, width + 1)[:, :columns])
            once(buffer.view(2, width + 1)[:, 1 : columns + 1])
    return bound

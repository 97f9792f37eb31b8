"""Portable ``topk_rows``: programs keep the best of their columns, and those of a further launch the best of these.

Rows of usual widths are served by `topk_guess` instead, which keeps fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.dependent import begin, has_pdl, pdl_option
from dspark_ops_triton.blocks.scratch import ScratchMemory
from dspark_ops_triton.blocks.selecting import HIDDEN, score_key, selected_places, threshold_of
from dspark_ops_triton.topk_guess import (
    COLUMNS_PER_CHOICE,
    LANES_PER_CHOICE,
    MOST_LANES,
    SAMPLE,
    choose_after_a_guess,
    guess_constants,
    others_of,
    slots_of,
)

#: Widest row: its programs are the grid's second dimension, which has 16 bits.
MOST_COLUMNS = 2**27
#: Most columns chosen: a program's columns must be at least twice as many, or nothing is gained by dividing a row.
MOST_CHOSEN = 2048


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a row is cut for one family of devices.

    Attributes:
        block: columns of a program, a power of two from twice `MOST_CHOSEN` on.
        merged: candidates that a program of a later launch holds, a power of two from twice `MOST_CHOSEN` on.
        warps: warps (waves on AMD) of a program.
        pdl: the kernel is set up while the one before it runs.
        sample: scores of a row that tell which are worth keeping, a power of two up to 1024.
    """

    block: int
    merged: int
    warps: int
    pdl: bool = False
    sample: int = SAMPLE

    def guesses(self, width: int, top_k: int) -> bool:
        """Return whether so many choices of rows so wide begin with a guess."""
        lanes = LANES_PER_CHOICE * slots_of(top_k)
        return self.sample <= lanes <= MOST_LANES and self.block < width <= COLUMNS_PER_CHOICE * top_k


#: Of 4 to 32 warps, and 2048 to 8192 columns, the fastest on an H200 for 1, 6 and 64 rows of 32768: what a program
#: keeps of more candidates leaves room for fewer programs.
TILES = Tiles(block=4096, merged=4096, warps=8)
#: More choices than this divide a row badly by these tiles: each launch would leave half of its candidates to the next.
MANY = 1024
MANY_TILES = Tiles(block=8192, merged=8192, warps=16)
#: A wave holds twice as many: what a lane keeps of more would not fit its scalar registers.
AMD_TILES = Tiles(block=4096, merged=4096, warps=16)


@triton.jit
def store_ids(ids, keys, columns, top_k, found, key, column, place, RANKED: tl.constexpr, SLOTS: tl.constexpr,
              OTHERS: tl.constexpr):  # fmt: skip
    """Write the selected columns of a row and -1 behind them; `keys` and `columns` hold SLOTS words of the row each."""
    slot = tl.arange(0, SLOTS)
    tl.store(ids + slot, tl.full((SLOTS,), -1, tl.int32), mask=(slot >= found) & (slot < top_k))
    if RANKED:
        tl.store(keys + place, key, mask=place >= 0)
        tl.store(columns + place, column, mask=place >= 0)
        tl.debug_barrier()  # other threads read them below
        mine = tl.load(keys + slot, mask=slot < found, other=HIDDEN)
        rank = tl.zeros((SLOTS,), tl.int32)
        for first in range(0, found, OTHERS):
            other = first + tl.arange(0, OTHERS)
            theirs = tl.load(keys + other, mask=other < found, other=HIDDEN)
            # the others along the first axis: their sum then stays within a thread
            tied = (theirs[:, None] == mine[None, :]) & (other[:, None] < slot[None, :])
            rank += tl.sum(((theirs[:, None] > mine[None, :]) | tied).to(tl.int32), axis=0)
        tl.store(ids + rank, tl.load(columns + slot, mask=slot < found, other=0), mask=slot < found)
    else:
        tl.store(ids + place, column, mask=place >= 0)


@triton.jit
def store_candidates(keys, columns, found, key, column, place, SLOTS: tl.constexpr):
    """Write the selected keys and columns of a program, in the order of columns, and HIDDEN behind them."""
    slot = tl.arange(0, SLOTS)
    tl.store(keys + place, key, mask=place >= 0)
    tl.store(columns + place, column, mask=place >= 0)
    tl.store(keys + slot, tl.full((SLOTS,), HIDDEN, tl.int32), mask=slot >= found)


@triton.jit
def select_candidates(keys, columns, first, count, top_k, LANES: tl.constexpr):
    """Return key, column and place of candidates `first` on of `count`, and how many are selected.

    LANES words may be read from `first` on: the memory goes on behind the last candidate.
    """
    lane = first + tl.arange(0, LANES)
    key = tl.where(lane < count, tl.load(keys + lane), HIDDEN)
    column = tl.load(columns + lane)
    held = tl.sum((key > HIDDEN).to(tl.int32), axis=0)
    threshold, room = threshold_of(key, held, top_k)
    return key, column, selected_places(key, threshold, room), tl.minimum(held, top_k)


@triton.jit(
    do_not_specialize=["width", "score_stride", "source_splits", "top_k"],
    do_not_specialize_on_alignment=["scores", "lengths", "source_keys", "source_columns", "keys", "columns", "ids"],
)
def select_kernel(
    scores, lengths, source_keys, source_columns, keys, columns, ids, width, score_stride, source_splits, top_k,
    BLOCK: tl.constexpr, SLOTS: tl.constexpr, OTHERS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    RANKED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Keep the best of BLOCK scores (FIRST) or candidates of one row; if LAST, they are the choice.

    Candidates of a row lie in the order of their columns, those of one program behind those of the one before, so that
    the first of equal keys is that of the lowest column. `keys` and `columns` hold SLOTS words per program.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    if FIRST:
        visible = tl.minimum(tl.load(lengths + row), width)
        column = split * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(scores + row * score_stride + column, mask=column < visible, other=0.0)
        key = tl.where(column < visible, score_key(score), HIDDEN)
        held = tl.minimum(tl.maximum(visible - split * BLOCK, 0), BLOCK)
        threshold, room = threshold_of(key, held, top_k)
        place = selected_places(key, threshold, room)
        found = tl.minimum(held, top_k)
    else:
        start = row * source_splits * SLOTS
        key, column, place, found = select_candidates(
            source_keys + start, source_columns + start, split * BLOCK, source_splits * SLOTS, top_k, BLOCK
        )
    here = (row * tl.num_programs(1) + split) * SLOTS
    if LAST:
        store_ids(ids + row * top_k, keys + here, columns + here, top_k, found, key, column, place, RANKED, SLOTS,
                  OTHERS)  # fmt: skip
    else:
        store_candidates(keys + here, columns + here, found, key, column, place, SLOTS)


class TopkRows:
    """``topk_rows`` with memory for candidates.

    Launches: 1 for up to ``block`` columns, 2 for up to `COLUMNS_PER_CHOICE` per choice if there are 256 to 512
    choices; else 2 for up to ``block * (merged // slots)`` columns, more behind.

    Bytes moved: the visible scores once, 4 per choice, 16 per candidate through scratch memory: some twice as many as
    choices after a guess, else as many as choices per program.
    """

    __slots__ = ("_many_tiles", "_scratch", "_tiles")

    def __init__(self, tiles: Tiles, many_tiles: Tiles) -> None:
        self._tiles = tiles
        self._many_tiles = many_tiles
        self._scratch = ScratchMemory()

    def tiles_for(self, top_k: int) -> Tiles:
        """Return how rows are cut for so many choices."""
        return self._tiles if top_k <= MANY else self._many_tiles

    def __call__(self, scores: Tensor, lengths: Tensor, top_k: int, order: str = "position") -> Tensor:
        """Return the columns of each row's best visible scores, a NaN before +inf, the lowest of equal ones first.

        Args:
            scores: [R, W] float32, last stride 1, W up to `MOST_COLUMNS`.
            lengths: [R] int32, visible columns.
            top_k: columns chosen, 1 to `MOST_CHOSEN`.
            order: ``position`` lists them in rising order, ``score`` from the best one down.

        Returns:
            [R, top_k] int32; -1 behind the visible columns.

        Raises:
            ValueError: another `top_k` or order, columns apart, or too many of them.

        Source: N10.6.
        """
        rows, width = scores.shape
        apart = scores.stride(1) != 1 and width > 1
        if not 1 <= top_k <= MOST_CHOSEN or order not in ("position", "score") or apart or width > MOST_COLUMNS:
            got = f"top_k {top_k}, order {order!r}, {width} columns of stride {scores.stride(1)}"
            raise ValueError(
                f"topk_rows: wanted top_k of 1 to {MOST_CHOSEN}, order position or score, and up to {MOST_COLUMNS} "
                f"columns of stride 1, got {got}"
            )
        ids = torch.empty(rows, top_k, dtype=torch.int32, device=scores.device)
        if not rows:
            return ids
        tiles = self.tiles_for(top_k)
        if tiles.guesses(width, top_k):
            constants = guess_constants(tiles, top_k, order == "score")
            choose_after_a_guess(constants, launch_options(tiles), self._scratch, scores, lengths, ids)
            return ids
        levels = split_counts(tiles, width, top_k)
        words = [2 * rows * splits * slots_of(top_k) for splits in levels]
        # a program reads whole tiles of candidates, and what lies behind them counts for nothing
        memory = self._scratch.take(sum(words) + tiles.merged, scores).view(torch.int32)
        source = memory
        sources = 0
        for level, (splits, size) in enumerate(zip(levels, words, strict=True)):
            out, memory = memory[:size], memory[size:]
            select_kernel[(rows, splits)](
                scores, lengths, source[: len(source) // 2], source[len(source) // 2 :], out[: size // 2],
                out[size // 2 :], ids, width, scores.stride(0), sources, top_k,
                **launch_constants(tiles, top_k, level == 0, splits == 1, order == "score"), **launch_options(tiles),
            )  # fmt: skip
            source, sources = out, splits
        return ids


def split_counts(tiles: Tiles, width: int, top_k: int) -> tuple[int, ...]:
    """Return over how many programs a row is spread in each launch: over one in the last."""
    splits = max(1, triton.cdiv(width, tiles.block))
    counts = [splits]
    while splits > 1:
        splits = triton.cdiv(splits * slots_of(top_k), tiles.merged)
        counts.append(splits)
    return tuple(counts)


def launch_constants(tiles: Tiles, top_k: int, first: bool, last: bool, ranked: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    slots = slots_of(top_k)
    return {
        "BLOCK": tiles.block if first else tiles.merged, "SLOTS": slots, "OTHERS": others_of(slots),
        "FIRST": first, "LAST": last, "RANKED": ranked and last, "PDL": tiles.pdl,
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def topk_rows(scores: Tensor, lengths: Tensor, top_k: int, order: str = "position") -> Tensor:
    """Return what `TopkRows` returns, with memory of its own for the candidates of this call.

    Source: N10.6.
    """
    return _bound(bool(torch.version.hip), False)(scores, lengths, top_k, order)


def _bound(amd: bool, pdl: bool) -> TopkRows:
    return TopkRows(*(replace(tiles, pdl=pdl) for tiles in ((AMD_TILES, AMD_TILES) if amd else (TILES, MANY_TILES))))


def prepare_topk_rows(device: Any, site: Any, rows: Sequence[int]) -> TopkRows:
    """Return `topk_rows`, compiled for the site's choices in both orders."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    bound = _bound(device.arch.vendor == "amd", has_pdl(device))
    if target.type == "cuda":
        top_k = site.options["top_k"]
        lengths = torch.ones(1, dtype=torch.int32, device=target)
        tiles = bound.tiles_for(top_k)
        # rows that one launch serves, that begin with a guess, and that need three: each has builds of its own
        apart = tiles.block * (tiles.merged // slots_of(top_k) + 1)
        for width in (64, tiles.block + 1, max(apart, COLUMNS_PER_CHOICE * top_k + 1)):
            scores = torch.zeros(1, width, device=target)
            for order in ("position", "score"):
                bound(scores, lengths, top_k, order)
    return bound


__all__ = [
    "AMD_TILES", "MOST_CHOSEN", "TILES", "Tiles", "TopkRows", "guess_constants", "launch_constants", "launch_options",
    "prepare_topk_rows", "select_kernel", "split_counts", "topk_rows",
]  # fmt: skip

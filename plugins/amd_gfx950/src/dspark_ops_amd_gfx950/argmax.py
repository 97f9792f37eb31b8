"""``argmax_rows`` and one rank's share of it for gfx950."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dspark_ops_triton.blocks.local_argmax import LocalArgmax, local_argmax_once, prepare_local_argmax
from dspark_ops_triton.blocks.row_argmax import RowArgmax, Tiles, prepare_row_argmax, row_argmax_once

#: Four waves of 64 lanes, one per SIMD of a compute unit, and four 16-byte loads per lane. A row of 129280 is 32 tiles,
#: so six rows are 192 programs: one per unit, on 256. Rows meet through the memory that eight L2 caches share, where an
#: atomic is dear; tiles half as large would double the atomics and leave some units with two programs, some with one.
TILES = Tiles(block=4096, warps=4, programs_per_unit=4)
#: The same for a shard: 32320 columns are 16 tiles of half the size, so that six rows still are 96 programs.
SHARD_TILES = Tiles(block=2048, warps=2, programs_per_unit=4)


def argmax_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the index of each row's first NaN, else of its maximum, the lowest of equal ones.

    Args:
        x: [R, V] float32, bfloat16 or float16, last stride 1.

    Returns:
        [R] int64. Without `prepare_argmax_rows`, a launch that zeroes 32 bytes per row comes before the kernel.

    Source: N1.
    """
    return row_argmax_once(TILES, x)


def prepare_argmax_rows(device: Any, site: Any, rows: Sequence[int]) -> RowArgmax:
    """Return `argmax_rows` as one launch, compiled for the site's vocabulary and dtype."""
    return prepare_row_argmax(TILES, device, site, rows)


def argmax_vocab_parallel_local(logits: torch.Tensor, rank: int = 0, valid_cols: int = -1) -> torch.Tensor:
    """Return the best value of each row of this rank's columns, and its index in the whole vocabulary: [2, R] int64.

    It is a call of `LocalArgmax`, which states the arguments; unprepared, a launch that zeroes 32 bytes per row comes
    before the kernel.

    Source: A11.
    """
    return local_argmax_once(SHARD_TILES, logits, rank, valid_cols)


def prepare_argmax_vocab_parallel_local(device: Any, site: Any, rows: Sequence[int]) -> LocalArgmax:
    """Return `argmax_vocab_parallel_local` as one launch, compiled for the site's dtype, with its memory allocated."""
    return prepare_local_argmax(SHARD_TILES, device, site, rows)

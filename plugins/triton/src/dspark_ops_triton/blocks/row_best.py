"""The best pair of value and column of one program's share of a row."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.ordering import keep_first, pack


@triton.jit
def best_of_tiles(start, columns, split, splits, BLOCK: tl.constexpr):
    """Return the packed best pair (see `pack`) of tiles ``split, split + splits, ...`` of a row of `columns` values.

    `start` points to the row. A lane beyond the row holds -inf and a column that is too high: it loses every tie
    against a lane inside.
    """
    lanes = tl.arange(0, BLOCK)
    column = split * BLOCK + lanes
    best = tl.load(start + column, mask=column < columns, other=float("-inf")).to(tl.float32)
    best_column = column
    for tile in range(split + splits, tl.cdiv(columns, BLOCK), splits):
        column = tile * BLOCK + lanes
        value = tl.load(start + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        best, best_column = keep_first(best, best_column, value, column)
    return tl.max(pack(best, best_column), axis=0)

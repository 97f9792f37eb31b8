"""Device functions that choose the best few of a row of keys, in the order of choices 1 and 2 of the index."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.ordering import ordered_bits

#: Below every key: what is taken already, or lies outside the row.
TAKEN = tl.constexpr(-(2**31))


@triton.jit
def rank_key(value):
    """Return int32 keys that order as float32 values do; both zeros are equal, and a NaN equals infinity."""
    value = tl.where(value == 0.0, 0.0, value)
    return ordered_bits(tl.where(value != value, float("inf"), value))


@triton.jit
def best_of_row(keys, scores, columns, TOP: tl.constexpr, SLOTS: tl.constexpr):
    """Return candidates of a row, TOP of each group: their places in the row's order, columns and scores.

    Each of the three is a tuple of TOP blocks [GROUPS, 1]. The largest key comes first, the lowest column of equal
    ones. The TOP best of the row are among the candidates: they are those in places below TOP. Each group chooses for
    itself, then its candidates are compared with those of all groups. With a group per warp and LANES as many as it
    has, warps exchange what orders their candidates, once, and nothing else.

    Args:
        keys: tuple of int32 [GROUPS, LANES] from `rank_key`, or TAKEN where there is no column.
        scores: tuple of int32, not negative: what goes with the keys.
        columns: tuple of int32, each key's own, not negative; higher in each block than in the one before.
        TOP: how many are chosen, at most the columns of the row and LANES.
        SLOTS: power of two, TOP or more.
    """
    groups: tl.constexpr = keys[0].shape[0]
    lanes: tl.constexpr = max(keys[0].shape[1], groups * SLOTS)
    lane = tl.arange(0, lanes)[None, :] - tl.arange(0, groups)[:, None] * SLOTS
    numbers = tl.zeros((groups, lanes), tl.int64)
    own, own_columns, own_scores = (), (), ()
    for taken in tl.static_range(TOP):
        best, column, score, keys = take_best(keys, scores, columns)
        # A larger number is the better one, none is below 0. Those of a group differ in their columns.
        number = ((best.to(tl.int64) - TAKEN) << 31) | (0x7FFFFFFF - column).to(tl.int64)
        numbers = tl.where(lane == taken, number, numbers)
        own, own_columns, own_scores = own + (number,), own_columns + (column,), own_scores + (score,)  # noqa: RUF005
    # Each lane gets the one number that a group has there: a sum stays in the layout of the groups, a reshape does not.
    every = tl.sum(numbers, axis=0, keep_dims=True)
    places = ()
    for taken in tl.static_range(TOP):
        better = (every > own[taken]).to(tl.int32)
        places = places + (tl.sum(better, axis=1, keep_dims=True),)  # noqa: RUF005
    return places, own_columns, own_scores


@triton.jit
def side_by_side(blocks, LANES: tl.constexpr):
    """Return a tuple of blocks [GROUPS, 1] as one block [GROUPS, LANES], whose further lanes repeat the first."""
    lane = tl.arange(0, LANES)[None, :]
    tile = blocks[0].broadcast_to(blocks[0].shape[0], LANES)
    for index in tl.static_range(1, len(blocks)):
        tile = tl.where(lane == index, blocks[index], tile)
    return tile


@triton.jit
def take_best(keys, scores, columns):
    """Return each group's best key, its column and score, each [GROUPS, 1], and the keys without it."""
    largest = keys[0]
    for block in tl.static_range(1, len(keys)):
        largest = tl.maximum(largest, keys[block])
    best = tl.max(largest, axis=1, keep_dims=True)
    # Where a lane has the best key in several blocks, the first one has the lowest column.
    lowest = tl.full(largest.shape, 0x7FFFFFFF, tl.int32)
    score = tl.zeros(largest.shape, tl.int32)
    for block in tl.static_range(len(keys) - 1, -1, -1):
        lowest = tl.where(keys[block] == best, columns[block], lowest)
        score = tl.where(keys[block] == best, scores[block], score)
    column = tl.min(lowest, axis=1, keep_dims=True)
    score = tl.max(tl.where(lowest == column, score, 0), axis=1, keep_dims=True)
    left = ()
    for block in tl.static_range(len(keys)):
        left = left + (tl.where(columns[block] == column, TAKEN, keys[block]),)  # noqa: RUF005
    return best, column, score, left

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
def best_of_row(key, score, column, TOP: tl.constexpr, SLOTS: tl.constexpr):
    """Return the columns and scores of the TOP best of a row, each [LANES] int32: lane i holds the one in place i.

    The largest key comes first, the lowest column of equal ones; lanes from TOP on hold nothing of use. Each group
    chooses for itself, then every warp chooses among what the groups chose. Blocks are [n, GROUPS, LANES]: with a group
    per warp and as many LANES as it has, warps exchange their choices and nothing else.

    Args:
        key: int32 from `rank_key`, or TAKEN where there is no column.
        score: int32, not negative: what goes with a key.
        column: int32, each key's own, not negative.
        TOP: how many are chosen, at most the columns of the row and LANES.
        SLOTS: power of two, TOP or more.
    """
    lanes: tl.constexpr = key.shape[2]
    keys, columns, scores = _best_of_groups(key, score, column, TOP, SLOTS)
    # each place is filled by one group, and nothing is smaller than what the others hold there
    keys = tl.max(keys, axis=1, keep_dims=True)
    columns, scores = tl.max(columns, axis=1, keep_dims=True), tl.max(scores, axis=1, keep_dims=True)
    _, columns, scores = _best_of_groups(keys, scores, columns, TOP, lanes)
    return tl.reshape(columns, (lanes,)), tl.reshape(scores, (lanes,))


@triton.jit
def _best_of_groups(key, score, column, TOP: tl.constexpr, SLOTS: tl.constexpr):
    """Return keys, columns and scores of the TOP best of each group, as blocks of SLOTS places for each group.

    Group g fills places ``g * SLOTS`` and following, counted along the first and the last dimension; the other places
    hold TAKEN and zeros. A group that has fewer than TOP columns fills places with TAKEN.
    """
    groups: tl.constexpr = key.shape[1]
    lanes: tl.constexpr = key.shape[2]
    parts: tl.constexpr = (groups * SLOTS + lanes - 1) // lanes
    place = tl.arange(0, parts)[:, None, None] * lanes + tl.arange(0, lanes)[None, None, :]
    place -= tl.arange(0, groups)[None, :, None] * SLOTS
    keys = tl.full((parts, groups, lanes), TAKEN, tl.int32)
    columns = tl.zeros((parts, groups, lanes), tl.int32)
    scores = tl.zeros((parts, groups, lanes), tl.int32)
    for taken in range(TOP):
        best = _group_max(key)
        first = tl.where(key == best, column, 0x7FFFFFFF)
        first = tl.min(tl.min(first, axis=0, keep_dims=True), axis=2, keep_dims=True)
        picked = column == first
        best_score = _group_max(tl.where(picked, score, 0))
        key = tl.where(picked, TAKEN, key)
        here = place == taken
        keys = tl.where(here, best, keys)
        columns = tl.where(here, first, columns)
        scores = tl.where(here, best_score, scores)
    return keys, columns, scores


@triton.jit
def _group_max(values):
    """Return the largest of each group of [n, GROUPS, LANES], as [1, GROUPS, 1]."""
    return tl.max(tl.max(values, axis=0, keep_dims=True), axis=2, keep_dims=True)

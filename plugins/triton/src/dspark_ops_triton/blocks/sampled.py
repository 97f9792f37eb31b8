"""Device functions of sampled acceptance: residual laws, drafts kept, and a draw by running sums.

Sums are float64, as a running sum of a hundred thousand float32 has to be (C2.3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.ordering import keep_first, pack, packed_column


@triton.jit
def residual(target, draft, reach):
    """Return max(reach * target - draft, 0) of float32 laws, as float64; `reach` is 1 or a float64."""
    return tl.maximum(target.to(tl.float64) * reach - draft.to(tl.float64), 0.0)


@triton.jit
def is_finite(value):
    """Return which values are neither infinite nor NaN."""
    return tl.abs(value) < float("inf")


@triton.jit
def first_above(weights, column, before, goal, none):
    """Return the first column whose running sum exceeds `goal`, else the last of positive weight, else `none`.

    Args:
        weights: float64, one per lane.
        column: int32, rising from lane to lane.
        before: float64, the sum of all weights before the first lane.
        goal: float64.
        none: int32, above every column.
    """
    running = tl.cumsum(weights, axis=0) + before
    hit = tl.min(tl.where(running > goal, column, none), axis=0)
    positive = tl.max(tl.where(weights > 0, column, -1), axis=0)
    return tl.where(hit < none, hit, tl.where(positive < 0, none, positive))


@triton.jit
def largest_finite(row, columns, BLOCK: tl.constexpr):
    """Return the lowest index, int64, of the largest finite value of a row; 0 if none is finite."""
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_column = lane
    for first in range(0, columns, BLOCK):
        column = first + lane
        value = tl.load(row + column, mask=column < columns, other=float("-inf"))
        value = tl.where(is_finite(value), value, float("-inf"))
        best, best_column = keep_first(best, best_column, value, column)
    return packed_column(tl.max(pack(best, best_column), axis=0))


@triton.jit
def reach_after(ratio, slot, count):
    """Return the weight w after `count` drafts, float64: w = 1, then min(1, w * ratio) for each draft in turn.

    `ratio` is float64, one per `slot`. A weight that has fallen to 0 stays there.
    """
    weight = tl.full((), 1.0, tl.float64)
    for step in range(count):
        here = tl.sum(tl.where(slot == step, ratio, 0.0), axis=0)
        weight = tl.minimum(weight * tl.where(weight > 0, here, 1.0), 1.0)
    return weight


@triton.jit
def ratios(target, draft):
    """Return target / draft of float32 probabilities, as float64; a draft of 0 gives infinity, or 0 over 0 gives 0."""
    x, y = target.to(tl.float64), draft.to(tl.float64)
    return tl.where(y > 0, x / tl.where(y > 0, y, 1.0), tl.where(x > 0, float("inf"), 0.0))


@triton.jit
def leading(flags, slot, DRAFTS: tl.constexpr):
    """Return how many of the first DRAFTS flags hold before the first one that does not."""
    return tl.min(tl.where(flags & (slot < DRAFTS), DRAFTS, tl.minimum(slot, DRAFTS)), axis=0)


@triton.jit
def of_slot(values, slot, place):
    """Return the value of one slot."""
    return tl.sum(tl.where(slot == place, values, tl.zeros(values.shape, values.dtype)), axis=0)


@triton.jit
def block_length(mass, ratio, uniform, tested, slot, DRAFTS: tl.constexpr):
    """Return the drafts that block verification keeps, and the weight of the target law behind them (C2.4).

    `mass` is the residual's sum of each row under the weight that the row is reached with.
    """
    weight = tl.full((), 1.0, tl.float64)
    reach = weight
    correct = tested * 0
    for length in range(1, DRAFTS + 1):
        here = of_slot(ratio, slot, length - 1)
        weight = tl.minimum(weight * tl.where(weight > 0, here, 1.0), 1.0)
        surplus = of_slot(mass, slot, length)
        rest = surplus + 1.0 - weight
        inner = tl.where(rest > 0, surplus / tl.where(rest > 0, rest, 1.0), 1.0)
        chance = tl.where((tested == length) | (length == DRAFTS), weight, inner)
        coin = of_slot(uniform, slot, length - 1).to(tl.float64)
        keep = (length <= tested) & (chance > 0) & (coin <= chance)
        correct = tl.where(keep, length, correct)
        reach = tl.where(keep, weight, reach)
    return correct, reach

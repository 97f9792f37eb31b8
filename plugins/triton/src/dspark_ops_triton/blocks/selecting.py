"""Device functions that select the best K of many int32 keys by their K-th largest, without sorting.

Keys order as `score_key` makes them; HIDDEN is below all of them and is never selected.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.ordering import ordered_bits

#: The key of a place that holds nothing.
HIDDEN = tl.constexpr(-(2**31))
#: The keys of -inf, of +inf and of any NaN.
LOWEST_KEY = tl.constexpr(-(2**31) + 0x7FFFFF)
INFINITE_KEY = tl.constexpr(0x7F800000)
NAN_KEY = tl.constexpr(0x7FFFFFFF)


@triton.jit
def score_key(score):
    """Return int32 keys that order as float32 scores do: both zeros are equal, and every NaN comes before +inf."""
    ordered = ordered_bits(tl.where(score == 0.0, 0.0, score))
    return tl.where(score != score, NAN_KEY, ordered)


#: More equal keys than there can be.
ALL_TIES = tl.constexpr(0x7FFFFFFF)


@triton.jit
def two_probes(low, high):
    """Return two keys that cut the keys above `low`, up to `high`, into three parts of about equal width."""
    third = ((high - low).to(tl.uint32, bitcast=True) - 1) // 3
    third = third.to(tl.int32, bitcast=True)
    return low + 1 + third, high - third


@triton.jit
def narrowed(low, high, above, count, lower, upper, from_lower, from_upper, wanted):
    """Return low, high, above and count of a search after the keys from two probes on have been counted.

    At least `wanted` keys, `count` of them, are `low` or more; fewer, `above` of them, are more than `high`.
    """
    over, under = from_upper >= wanted, from_lower < wanted
    next_low = tl.where(over, upper, tl.where(under, low, lower))
    next_high = tl.where(over, high, tl.where(under, lower, upper) - 1)
    next_above = tl.where(over, above, tl.where(under, from_lower, from_upper))
    return next_low, next_high, next_above, tl.where(over, from_upper, tl.where(under, count, from_lower))


@triton.jit
def threshold_of(keys, count, wanted):
    """Return a key and a number: the `wanted` largest keys are those above it and the first so many of its equals.

    The key is HIDDEN where there are not more keys than `wanted`: then all above it are selected. `count` keys are
    above HIDDEN, at most 32767.
    """
    low = tl.full((), HIDDEN, tl.int32)
    room = tl.full((), ALL_TIES, tl.int32)
    if count > wanted:
        low = tl.min(tl.where(keys > HIDDEN, keys, NAN_KEY), axis=0)
        high = tl.max(keys, axis=0)
        above = tl.full((), 0, tl.int32)
        # An exact count ends the search: then no key that equals the threshold is one too many.
        while (count > wanted) & (low < high):
            lower, upper = two_probes(low, high)
            # one sum for both counts: neither passes 15 bits
            reached = tl.sum((keys >= lower).to(tl.int32) + ((keys >= upper).to(tl.int32) << 16), axis=0)
            low, high, above, count = narrowed(
                low, high, above, count, lower, upper, reached & 0xFFFF, reached >> 16, wanted
            )
        room = tl.where(count > wanted, wanted - above, room)
    return low, room


@triton.jit
def selected_places(keys, threshold, room):
    """Return the place of each selected key among them in the order of the block, -1 for others; at most 32767 keys.

    Selected are the keys above the threshold and the first `room` of those that equal it, never HIDDEN ones.
    """
    above = keys > threshold
    equal = (keys == threshold) & (keys > HIDDEN)
    # two counts in one scan: neither passes 15 bits
    counts = tl.cumsum((above.to(tl.int32) << 16) | equal.to(tl.int32), axis=0)
    ties = counts & 0xFFFF
    place = (counts >> 16) + tl.minimum(ties, room) - 1
    return tl.where(above | (equal & (ties <= room)), place, -1)

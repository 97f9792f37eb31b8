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


@triton.jit
def next_threshold(threshold, bit):
    """Return the threshold with one bit more, from HIDDEN and bit 31 on downwards."""
    return tl.where(bit == 31, 0, threshold | (1 << tl.minimum(bit, 30)))


@triton.jit
def threshold_of(keys, wanted):
    """Return a key such that the keys above it and the first of those equal to it are the `wanted` largest.

    It is HIDDEN where there are not more keys than `wanted`: then all above it are selected.
    """
    count = tl.sum((keys > HIDDEN).to(tl.int32), axis=0)
    threshold = tl.full((), HIDDEN, tl.int32)
    bit = 31
    # An exact count ends the search: then no key that equals the threshold is one too many.
    while (bit >= 0) & (count > wanted):
        higher = next_threshold(threshold, bit)
        reached = tl.sum((keys >= higher).to(tl.int32), axis=0)
        enough = reached >= wanted
        threshold = tl.where(enough, higher, threshold)
        count = tl.where(enough, reached, count)
        bit -= 1
    return threshold


@triton.jit
def selected_places(keys, threshold, wanted):
    """Return the place of each selected key among them in the order of the block, -1 for others; at most 32767 keys.

    Of the keys that equal the threshold the first ones are taken, until `wanted` are selected.
    """
    above = keys > threshold
    equal = (keys == threshold) & (keys > HIDDEN)
    # two counts in one scan: neither passes 15 bits
    counts = tl.cumsum((above.to(tl.int32) << 16) | equal.to(tl.int32), axis=0)
    room = tl.maximum(wanted - tl.sum(above.to(tl.int32), axis=0), 0)
    ties = counts & 0xFFFF
    place = (counts >> 16) + tl.minimum(ties, room) - 1
    return tl.where(above | (equal & (ties <= room)), place, -1)

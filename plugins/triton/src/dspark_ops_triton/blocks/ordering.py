"""Device functions for row argmax: one total order on (value, column), as a running pair and as one integer.

The order is that of the contract (N1): the first NaN, else the largest value, else the lowest column; -0.0 equals +0.0.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keep_first(best, best_column, value, column):
    """Return the better of two pairs of float32 value and column, lane by lane.

    `column` must be above `best_column`: an equal value then loses, which is the tie rule, without comparing columns.
    A NaN beats every number and nothing beats a NaN: `value <= best` is false when either is a NaN.
    """
    better = (best == best) & ~(value <= best)
    return tl.where(better, value, best), tl.where(better, column, best_column)


@triton.jit
def ordered_bits(value):
    """Return int32 that order as float32 values do; -0.0 comes before +0.0, and NaNs lie outside of the infinities."""
    bits = value.to(tl.int32, bitcast=True)
    # A negative float's magnitude orders backwards: flip its other bits.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def pack(value, column):
    """Return one int64 per pair of float32 value and column below 2**31 - 1: a larger integer is the better pair.

    Bits 62 to 31 hold the value's bits, remapped so that they order as unsigned integers; bits 30 to 0 hold the column,
    complemented so that the lowest wins. The result is positive, so 0 is below every pair.
    """
    ordered = ordered_bits(tl.where(value == 0.0, 0.0, value))
    ordered = tl.where(value != value, 0x7FFFFFFF, ordered)  # a NaN gets the largest key of all
    key = ordered.to(tl.int64) + 0x80000000
    return (key << 31) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def packed_column(pair):
    """Return the column, as int64, of a pair made by `pack`."""
    return 0x7FFFFFFF - (pair & 0x7FFFFFFF)


@triton.jit
def last_to_arrive(state, pair, parts):
    """Merge this program's `pair` into `state`, and return (whether it was the last of `parts`, the best pair of all).

    `state` points to two int64 words, the best pair so far and the number of arrivals, both 0 at rest; the last program
    to arrive puts them back to 0, so that the next launch on the stream finds them at rest. The best pair is defined
    for the last program only.

    The maximum is merged before the arrival is counted: the counting releases it and acquires those of all others.
    """
    tl.atomic_max(state, pair, sem="relaxed")
    arrived = tl.atomic_add(state + 1, 1, sem="acq_rel")
    last = arrived == parts - 1
    best = pair
    if last:
        best = tl.atomic_xchg(state, 0, sem="relaxed")
        tl.store(state + 1, 0)
    return last, best

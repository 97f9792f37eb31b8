"""Device functions for hyper-connection combines and RMS norms, with their roundings written out."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine_copies(x, pre, lanes, mask, COPIES: tl.constexpr, HIDDEN: tl.constexpr):
    """Return the weighted sum of one token's copies as float32 lanes: a chain of fused multiply-adds from 0 (N3.3).

    `x` points to the token's COPIES * HIDDEN values, `pre` to its COPIES weights.
    """
    total = tl.zeros(lanes.shape, tl.float32)
    for copy in tl.static_range(COPIES):
        value = tl.load(x + copy * HIDDEN + lanes, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(pre + copy).to(tl.float32)
        total = tl.fma(value, weight.broadcast_to(lanes.shape), total)
    return total


@triton.jit
def round_bf16(value):
    """Return float32 values rounded to bfloat16. Only a barrier where the launch sets enable_fp_fusion=False."""
    return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def inverse_rms(value, COUNT: tl.constexpr, eps):
    """Return 1 / sqrt(mean of squares + eps) over COUNT values; lanes beyond them must hold 0."""
    return inverse_root(tl.sum(value * value, axis=0), COUNT, eps)


@triton.jit
def inverse_rms_of_two(value, more, COUNT: tl.constexpr, eps):
    """Return `inverse_rms` of values that lie in two blocks, the second one not longer than the first."""
    short: tl.constexpr = more.shape[0]
    # Added up to as many sums as the second block has values, so that programs reduce, and meet, only once.
    squares = tl.sum(tl.reshape(value * value, (short, value.shape[0] // short)), axis=1)
    return inverse_root(tl.sum(squares + more * more, axis=0), COUNT, eps)


@triton.jit
def inverse_root(total, COUNT: tl.constexpr, eps):
    """Return 1 / sqrt(total / COUNT + eps)."""
    return 1.0 / tl.sqrt_rn(total / COUNT + eps)


def two_blocks(count: int, least: int = 1) -> tuple[int, int]:
    """Return the lengths, powers of two, of one or two blocks that hold `count` lanes; the second one may be 0.

    5120 lanes are 4096 and 1024: a single block would have 8192, of which three in eight do nothing. A block of another
    length than 0 has at least `least` lanes.
    """
    first = max(least, 1 << (count.bit_length() - 1))
    if count <= first:
        return first, 0
    second = max(least, 1 << (count - first - 1).bit_length())
    return (first, second) if second < first else (2 * first, 0)

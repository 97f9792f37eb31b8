"""A float32 matrix product on matrix units that take bfloat16, without losing a bit of its operands."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def three_parts(x):
    """Return three bfloat16 blocks, the lowest first, that add up to a float32 block: 8 of its 24 bits each.

    They are cut off, not rounded: on some devices rounding costs as much as eight of the other steps.
    """
    upper = upper_part(x)
    rest = x - upper
    centre = upper_part(rest)
    return (rest - centre).to(tl.bfloat16), centre.to(tl.bfloat16), upper.to(tl.bfloat16)


@triton.jit
def upper_part(x):
    """Return a float32 block without the bits that bfloat16 lacks."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def dot_three_parts(a, lower, centre, upper):
    """Return a @ b in float32 for bfloat16 `a` and the three parts of `b`; products are exact.

    The sums of the parts are three chains that do not wait for each other; added up at last, they lose no more than one
    chain would.
    """
    nothing = tl.zeros((a.shape[0], upper.shape[1]), tl.float32)
    one = tl.full(nothing.shape, 1.0, tl.float32)
    # Of a sum of two products the compiler makes one chain, not of a fused step.
    low = tl.fma(tl.dot(a, lower, nothing), one, tl.dot(a, centre, nothing))
    return tl.fma(low, one, tl.dot(a, upper, nothing))

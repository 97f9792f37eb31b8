"""A float32 matrix product on matrix units that take bfloat16, without losing a bit of its operands."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot_three_parts(a, b, total):
    """Return total + a @ b for bfloat16 `a` and float32 `b`, with float32 sums.

    `b` is cut into three bfloat16 of 8 bits each, which hold its 24 bits; products are exact, the smallest come first.
    """
    high = b.to(tl.bfloat16)
    rest = b - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    total = tl.dot(a, low, total)
    total = tl.dot(a, middle, total)
    return tl.dot(a, high, total)

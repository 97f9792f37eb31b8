"""A float32 matrix product on matrix units that take bfloat16, without losing a bit of its operands."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot_three_parts(a, b, low, middle, high):
    """Return three float32 sums that together grow by a @ b, for bfloat16 `a` and float32 `b`.

    `b` is cut into three bfloat16 of 8 bits each, which hold its 24 bits; products are exact. The sums of the parts are
    three chains that do not wait for each other; added up at last, they lose no more than one chain would.
    """
    upper = b.to(tl.bfloat16)
    rest = b - upper.to(tl.float32)
    centre = rest.to(tl.bfloat16)
    lower = (rest - centre.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(a, lower, low), tl.dot(a, centre, middle), tl.dot(a, upper, high)

"""Device functions for sums that must not lose bits: float32 pairs that hold twice the digits, without float64."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def two_sum(a, b):
    """Return (fl(a + b), what that rounding lost), exactly (Knuth). Needs enable_fp_fusion=False."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@triton.jit
def add_product(high, low, x, y):
    """Add the product of two float32 tiles to the sums held as ``high + low``; what rounding loses goes into `low`."""
    product = x * y
    lost = tl.fma(x, y, -product)
    high, rest = two_sum(high, product)
    return high, low + (rest + lost)

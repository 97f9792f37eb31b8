"""Device functions for exp and log1p that round as if from float64, in float32 arithmetic, which no device lacks.

A library's float32 functions differ between devices by a unit or two, and with them the order of nearly equal router
scores; float64 is slow where matrix units took its place. Here a value is carried as an unevaluated sum of two float32,
some 35 bits in all, and rounded once: the result is the correctly rounded one but for a few values in 10,000, and those
are the next one. Launches must set enable_fp_fusion=False.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_ordered(a, b):
    """Return a + b rounded, and what rounding dropped, exactly; a is 0 or its magnitude is not below that of b."""
    total = a + b
    return total, b - (total - a)


@triton.jit
def multiply_pair(a, high, low):
    """Return a * (high + low) as a pair; what the pair drops is below 2**-46 of it."""
    product = a * high
    return product, tl.fma(a, high, -product) + a * low


@triton.jit
def exp_rounded(x):
    """Return exp of a block of float32 values: infinity, zero and NaN where exp has them.

    Subnormal results may be the next one.
    """
    shape: tl.constexpr = x.shape
    inside = tl.minimum(tl.maximum(x, -150.0), 88.72283172607422)  # the last one whose exponential is finite
    power = tl.floor(inside * 1.4426950408889634 + 0.5)
    # ln 2 as two float32: the first step is exact, and what the second one drops is below 2**-45
    rest = tl.fma(-power, tl.full(shape, 0.69314718246459960938, tl.float32), inside)
    correction = power * 1.904654299957768e-9
    # 1 + r + r**2/2 + r**3/6 as pairs, what follows (below 2**-10) as single numbers
    tail = tl.fma(rest, tl.full(shape, 1 / 362880, tl.float32), tl.full(shape, 1 / 40320, tl.float32))
    tail = tl.fma(rest, tail, tl.full(shape, 1 / 5040, tl.float32))
    tail = tl.fma(rest, tail, tl.full(shape, 1 / 720, tl.float32))
    tail = tl.fma(rest, tail, tl.full(shape, 1 / 120, tl.float32))
    tail = tl.fma(rest, tail, tl.full(shape, 1 / 24, tl.float32))
    high, low = multiply_pair(rest, tail, 0.0)
    high, dropped = add_ordered(tl.full(shape, 0.16666667163372039795, tl.float32), high)
    low += dropped - 4.9670537e-9  # 1/6 less its float32
    for coefficient in tl.static_range(3):
        high, low = multiply_pair(rest, high, low)
        high, dropped = add_ordered(tl.full(shape, 0.5 if coefficient == 0 else 1.0, tl.float32), high)
        low += dropped
    value = high + (low + correction * high)
    first = tl.floor(power * 0.5)
    value = tl.where(x > inside, float("inf"), value * _two_to(first) * _two_to(power - first))
    return tl.where(x == x, value, x)


@triton.jit
def log1p_rounded(x):
    """Return log(1 + x) of a block of float32 values from 0 to 2**30, NaN where x is NaN."""
    shape: tl.constexpr = x.shape
    high = x + 1.0
    back = high - 1.0
    low = (1.0 - (high - back)) + (x - back)
    # 1 + x = 2**k * m with m between sqrt(1/2) and sqrt(2)
    k = (high.to(tl.int32, bitcast=True) - 0x3F3504F3) >> 23
    scale = ((127 - k) << 23).to(tl.float32, bitcast=True)
    f, f_low = add_ordered(high * scale - 1.0, low * scale)
    # log m = 2 artanh(s), s = f / (2 + f)
    d, d_low = add_ordered(tl.full(shape, 2.0, tl.float32), f)
    d_low += f_low
    s = f / d
    s_low = (tl.fma(-s, d, f) + (f_low - s * d_low)) / d
    w, w_low = multiply_pair(s, s, 2.0 * s_low)
    tail = tl.fma(w, tl.full(shape, 1 / 13, tl.float32), tl.full(shape, 1 / 11, tl.float32))
    tail = tl.fma(w, tail, tl.full(shape, 1 / 9, tl.float32))
    tail = tl.fma(w, tail, tl.full(shape, 1 / 7, tl.float32))
    tail = w * tl.fma(w, tail, tl.full(shape, 1 / 5, tl.float32))
    third, third_low = add_ordered(tl.full(shape, 0.33333334326744079590, tl.float32), tail)
    third_low -= 9.9341075e-9  # 1/3 less its float32
    series, series_low = multiply_pair(w, third, third_low)
    series_low += w_low * third
    part, part_low = multiply_pair(s, series, series_low)
    part_low += s_low * series
    total, total_low = add_ordered(s, part)
    total_low += part_low + s_low
    # ln 2 as 15 bits, so that k times it is exact, and the rest
    whole = k.to(tl.float32)
    result, dropped = add_ordered(whole * 0.69314575195312500000, 2.0 * total)
    result += dropped + (2.0 * total_low + whole * 1.42860682030941723212e-6)
    # log1p(x) rounds to x itself here, and below, halving x would lose bits
    return tl.where(x < 2.98e-8, x, tl.where(x == x, result, x))


@triton.jit
def sqrt_softplus(x, PTX: tl.constexpr = False):
    """Return the float32 score sqrt(softplus(x)) of a block of float32 values, each step rounded to float32 (N2).

    softplus(x) is x above 20 and log1p(exp(x)) else. A NaN stays NaN, and infinity stays infinity. With PTX, for a
    device that takes it, the root is that of `sqrt_rounded`.
    """
    small = tl.where(x > 20.0, 0.0, x)
    value = tl.where(x > 20.0, x, log1p_rounded(exp_rounded(small)))
    return sqrt_rounded(value) if PTX else tl.sqrt_rn(value)


@triton.jit
def sqrt_rounded(x):
    """Return the correctly rounded root of float32 values from 0 to infinity, or NaN, on a device that takes PTX.

    The compiler's own branches where a value is below 2**-101: of several roots, each then waits for the one before.
    """
    small = x < 7.888609052210118e-31
    scaled = tl.where(small, x * 18446744073709551616.0, x)
    inverse = tl.inline_asm_elementwise(
        "rsqrt.approx.ftz.f32 $0, $1;", "=f,f", [scaled], dtype=tl.float32, is_pure=True, pack=1
    )
    root = scaled * inverse
    root = tl.fma(tl.fma(-root, root, scaled), inverse * 0.5, root)
    root = tl.where(small, root * 2.3283064365386963e-10, root)
    return tl.where((x == 0.0) | (x == float("inf")), x, root)


@triton.jit
def _two_to(power):
    """Return 2**power of whole float32 numbers from -126 to 127."""
    return ((power.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)

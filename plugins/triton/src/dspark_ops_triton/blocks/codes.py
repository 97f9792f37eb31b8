"""Device functions for stored codes: power-of-two scales by their exponent byte, e4m3 bytes, values on the fp4 grid.

One function per rounding rule, as in the contracts. Values are finite: NaN and infinities are outside of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: The reciprocals of 448 and 6, rounded to float32. Rounded up to powers of two, products with them are the quotients
#: that contracts name, for every mantissa: a true division would stand in the chain of each kernel that stores codes.
RECIPROCAL_448 = tl.constexpr(0.00223214295692741870880126953125)
RECIPROCAL_6 = tl.constexpr(0.16666667163372039794921875)


@triton.jit
def pow2ceil_byte(value):
    """Return the biased exponent, int32, of the smallest power of two that is not below positive float32 values."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits >> 23) & 255) + ((bits & 0x7FFFFF) != 0).to(tl.int32)


@triton.jit
def ue8m0_v4page(amax):
    """Return the scale byte, int32, of a group of a V4 page: pow2ceil(max(amax, 1e-4) / 448) (N0.4, V4PAGE)."""
    return pow2ceil_byte(tl.maximum(amax, 1e-4) * RECIPROCAL_448)


@triton.jit
def ue8m0_v41page(amax):
    """Return the scale byte, int32, of a group of a V4.1 page: pow2ceil(max(amax / 448, 1e-4)) (N0.4, V41PAGE)."""
    return pow2ceil_byte(tl.maximum(amax * RECIPROCAL_448, 1e-4))


@triton.jit
def ue8m0_fp4_fake(amax):
    """Return the scale byte, int32, of a group that is only rounded to fp4: pow2ceil(max(amax, 6 * 2**-126) * fl(1/6)).

    It is 1 to 253 (A2, stage B).
    """
    return pow2ceil_byte(tl.maximum(amax, 6 * 2.0**-126) * RECIPROCAL_6)


@triton.jit
def ue8m0_index(amax):
    """Return the scale byte, int32, of a packed fp4 index group: pow2ceil(max(amax / 6, 1e-4)), divided truly (A1)."""
    return tl.minimum(pow2ceil_byte(tl.maximum(amax * RECIPROCAL_6, 1e-4)), 254)


@triton.jit
def ue8m0_fp8_grid(amax):
    """Return the scale byte, int32, of a group of the fp8 grid: pow2ceil(max(amax, 1e-10) * fl(1/448)) (A0.2).

    It is 85 to 247.
    """
    return pow2ceil_byte(tl.maximum(amax, 1e-10) * RECIPROCAL_448)


@triton.jit
def power_of_two(byte):
    """Return the float32 value 2**(byte - 127) of int32 bytes 1 to 254."""
    return (byte << 23).to(tl.float32, bitcast=True)


@triton.jit
def ue8m0_value(byte):
    """Return the float32 scale of any byte, int32: 2**(byte - 127), the subnormal 2**-127 for 0, NaN for 255."""
    bits = tl.where(byte == 0, 0x00400000, byte << 23)
    return tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_code(value):
    """Return the e4m3 codes, uint8, of float32 values: nearest, ties to even, saturating at 448, sign of zero kept."""
    clamped = tl.minimum(tl.maximum(value, -448.0), 448.0)
    return clamped.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def e4m3_value(code):
    """Return the float32 values of e4m3 codes, uint8."""
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def e4m3_value_by_fnuz(code):
    """Return what `e4m3_value` does, for a device that converts the format e4m3fnuz only; NaN codes are outside.

    There a code means half as much, and the one of minus zero is its NaN: the result is plus zero instead.
    """
    return tl.where(code == 0x80, 0, code).to(tl.uint8).to(tl.float8e4b8, bitcast=True).to(tl.float32) * 2.0


@triton.jit
def e4m3_round(value):
    """Return float32 values rounded to e4m3 as `e4m3_code` rounds them, still as float32, on any device.

    Adding 2**23 steps of the grid, and taking them away, leaves whole steps: 2**-9, or 1/8 of the value's power of two.
    """
    magnitude = tl.minimum(tl.abs(value), 448.0)
    exponent = tl.maximum(magnitude.to(tl.int32, bitcast=True) >> 23, 121)
    many = power_of_two(exponent + 20)
    rounded = (magnitude + many) - many
    sign = value.to(tl.int32, bitcast=True) & -2147483648
    return (rounded.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def e2m1_round(value):
    """Return float32 values rounded to the e2m1 grid: nearest, ties to the even code, saturating at 6, sign kept.

    Negative values that round to zero give -0.0, and so does -0.0 (N7.3).
    """
    magnitude = tl.abs(value)
    rounded = tl.where(magnitude > 0.25, 0.5, 0.0)
    rounded = tl.where(magnitude >= 0.75, 1.0, rounded)
    rounded = tl.where(magnitude > 1.25, 1.5, rounded)
    rounded = tl.where(magnitude >= 1.75, 2.0, rounded)
    rounded = tl.where(magnitude > 2.5, 3.0, rounded)
    rounded = tl.where(magnitude >= 3.5, 4.0, rounded)
    rounded = tl.where(magnitude > 5.0, 6.0, rounded)
    sign = value.to(tl.int32, bitcast=True) & -2147483648
    return (rounded.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def e2m1_round_ties_to_smaller(value):
    """Return float32 values rounded to the e2m1 grid: nearest, ties to the smaller magnitude, saturating, sign kept.

    It is the mode half_down of A0.2.
    """
    magnitude = tl.abs(value)
    rounded = tl.where(magnitude > 0.25, 0.5, 0.0)
    rounded = tl.where(magnitude > 0.75, 1.0, rounded)
    rounded = tl.where(magnitude > 1.25, 1.5, rounded)
    rounded = tl.where(magnitude > 1.75, 2.0, rounded)
    rounded = tl.where(magnitude > 2.5, 3.0, rounded)
    rounded = tl.where(magnitude > 3.5, 4.0, rounded)
    rounded = tl.where(magnitude > 5.0, 6.0, rounded)
    sign = value.to(tl.int32, bitcast=True) & -2147483648
    return (rounded.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def _e2m1_magnitude(value):
    """Return the codes 0 to 7, int32, of the magnitudes of values on the grid."""
    magnitude = tl.abs(value)
    # 0, 0.5 and 1 are the codes 0, 1 and 2; from 1 on, a code is the exponent and one bit of the fraction.
    above = (magnitude.to(tl.int32, bitcast=True) >> 22) - (127 * 2 - 2)
    return tl.where(magnitude >= 1.0, above, (magnitude > 0.0).to(tl.int32))


@triton.jit
def e2m1_code(value):
    """Return e2m1 codes 0 to 15, int32, of float32 values that are on the grid; minus zero gives 8 (N7.3)."""
    return _e2m1_magnitude(value) | ((value.to(tl.int32, bitcast=True) >> 28) & 8)


@triton.jit
def e2m1_code_without_minus_zero(value):
    """Return e2m1 codes 0 to 15, int32, of float32 values that are on the grid; minus zero gives 0 (A0.2)."""
    code = _e2m1_magnitude(value)
    return tl.where(value < 0.0, code | 8, code)


@triton.jit
def e2m1_value(code):
    """Return the float32 values of e2m1 codes 0 to 15, int32; code 8 is -0.0.

    As the upper bits of a float32, a code is its value times 2**-126, subnormal ones included.
    """
    return (((code & 7) << 22) | ((code & 8) << 28)).to(tl.float32, bitcast=True) * 2.0**126


@triton.jit
def fp4_grid_ue8m0_scale(groups):
    """Return float32 groups [n, lanes] rounded to the fp4 grid, with a power-of-two scale per group (N8.4, stage 1).

    Negative values that round to zero become -0.0; -0.0, and what scaling makes -0.0, becomes +0.0.
    """
    byte = ue8m0_fp4_fake(tl.max(tl.abs(groups), axis=1))[:, None]
    scaled = groups * power_of_two(254 - byte)
    return e2m1_round(tl.where(scaled == 0.0, 0.0, scaled)) * power_of_two(byte)


@triton.jit
def fp4_grid_e4m3_scale(groups, GROUPS: tl.constexpr, LANES: tl.constexpr):
    """Return float32 groups [GROUPS, LANES] rounded to the fp4 grid, with an e4m3 scale per group (N8.1).

    Negative values that round to zero become -0.0; -0.0, and what scaling makes -0.0, becomes +0.0.
    """
    amax = tl.max(tl.abs(groups), axis=1)
    sixth = tl.div_rn(amax, tl.full(amax.shape, 6.0, tl.float32))
    scale = e4m3_value(e4m3_code(tl.minimum(tl.maximum(sixth, 0.001953125), 448.0)))
    scale = tl.broadcast_to(scale[:, None], (GROUPS, LANES))
    scaled = tl.div_rn(groups, scale)
    return e2m1_round(tl.where(scaled == 0.0, 0.0, scaled)) * scale

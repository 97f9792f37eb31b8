"""Rounding rules, bit by bit: one function per rule, and no function that serves two rules.

Everything takes and returns tensors of any shape on any device. Inputs are finite unless a docstring says otherwise:
NaN and infinities are outside the contracts of the quantising operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

# 1/448 and 1/6 as float32: the rules that multiply name these very bits (0x3B124925 and 0x3E2AAAAB).
_RECIPROCAL_448 = 9586981 * 2.0**-32
_RECIPROCAL_6 = 11184811 * 2.0**-26
# Below this the scale of an E4M3-scaled fp4 group would round to zero: it is the smallest positive e4m3 value.
_E4M3_SMALLEST = 2.0**-9


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a*b + c rounded once to float32, as a fused multiply-add instruction gives it.

    The product of two float32 values is exact in float64. The sum is rounded to odd there, because rounding it to
    nearest twice (first to float64, then to float32) moves results that lie next to the middle of two float32 values.

    Args:
        a: float32 (or narrower float), broadcast with the others.
        b: as `a`.
        c: as `a`.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    product, addend = product.expand_as(total), addend.expand_as(total)
    # Products with bfloat16 values leave room: mostly float64 holds every sum, and one rounding is left. It takes both
    # differences to tell, for only the one with the larger operand is exact. Other devices would wait for the answer.
    kind = total.device.type
    held = kind == "cpu" and torch.equal(total - product, addend) and torch.equal(total - addend, product)
    # Without storage there is nothing to round.
    return (total if held or kind == "meta" else _rounded_to_odd(product, addend, total)).float()


def _rounded_to_odd(product: Tensor, addend: Tensor, total: Tensor) -> Tensor:
    """Return the sum of two float64 tensors rounded to odd, given it rounded to nearest."""
    # Knuth's two-sum: `lost` is what rounding the sum to float64 dropped, exactly.
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    bits = total.view(torch.int64)
    # An even last bit with something lost: the odd neighbour on the side of what was lost. Infinities lose NaN: kept.
    toward_larger_magnitude = (lost > 0) == (total > 0)
    step = torch.where(toward_larger_magnitude, 1, -1)
    inexact = (lost != 0) & lost.isfinite() & ((bits & 1) == 0)
    return torch.where(inexact, bits + step, bits).view(torch.float64)


def round_bf16(x: Tensor) -> Tensor:
    """Return float32 values rounded to the nearest bfloat16 (ties to even), still as float32."""
    return x.float().bfloat16().float()


def pow2ceil_byte(t: Tensor) -> Tensor:
    """Return the biased exponent (int32, 0 to 255) of the smallest power of two that is not below `t`, from its bits.

    A byte b means 2**(b - 127). No logarithm is taken, so powers of two map to themselves without rounding luck.

    Args:
        t: float32, positive. A subnormal gives byte 1 (2**-126), zero gives byte 0.

    Source: N0.3.
    """
    bits = t.float().view(torch.int32)
    return ((bits >> 23) & 255) + ((bits & 0x7FFFFF) != 0).int()


def ue8m0_v4page(amax: Tensor) -> Tensor:
    """Return the scale byte (uint8) of a group of a V4 page: pow2ceil(max(amax, 1e-4) / 448), a true division.

    Args:
        amax: float32, largest magnitude of the group, not negative. A zero group gives byte 105.

    Source: N0.4, rule V4PAGE.
    """
    return pow2ceil_byte(amax.float().clamp(min=1e-4) / E4M3_MAX).to(torch.uint8)


def ue8m0_mx(amax: Tensor) -> Tensor:
    """Return the scale byte (uint8) of a group of an MXFP8 tensor: pow2ceil(amax * fl(1/448)), without a floor.

    Args:
        amax: float32, largest magnitude of the group, not negative. Up to 448 * 2**-127 (2.6e-36) it gives byte 0.

    Source: N0.4, rule MX; N12. The product is rounded up to a power of two among the subnormals too, down to 2**-127.
    """
    product = amax.float() * _RECIPROCAL_448
    tiny = product <= 2.0**-127
    return torch.where(tiny, 0, pow2ceil_byte(product).clamp(max=254)).to(torch.uint8)


def ue8m0_act(amax: Tensor) -> Tensor:
    """Return the scale byte (uint8) of a group as DeepSeek's act_quant has it: pow2ceil(max(amax, 1e-4) * fl(1/448)).

    Args:
        amax: float32, largest magnitude of the group, not negative. A zero group gives byte 105.

    Source: N0.4, rule ACT.
    """
    return pow2ceil_byte(amax.float().clamp(min=1e-4) * _RECIPROCAL_448).to(torch.uint8)


def ue8m0_v41page(amax: Tensor) -> Tensor:
    """Return the scale byte (uint8) of a group of a V41 page: pow2ceil(max(amax / 448, 1e-4)), 114 or more.

    Args:
        amax: float32, largest magnitude of the group, not negative. The floor is on the scale, not on `amax`.

    Source: N0.4, rule V41PAGE; N7.3.
    """
    return pow2ceil_byte((amax.float() / E4M3_MAX).clamp(min=1e-4)).to(torch.uint8)


def ue8m0_fp8_grid(amax: Tensor) -> Tensor:
    """Return the scale byte (uint8) of a group of the fp8 grid: pow2ceil(max(amax, 1e-10) * fl(1/448)), in 1 to 254.

    Args:
        amax: float32, largest magnitude of the group, not negative. A zero group gives byte 85.

    Source: A0.2.
    """
    return pow2ceil_byte(amax.float().clamp(min=1e-10) * _RECIPROCAL_448).clamp(1, 254).to(torch.uint8)


def ue8m0_index(amax: Tensor) -> Tensor:
    """Return the scale byte (uint8) of a packed fp4 index group: pow2ceil(max(amax / 6, 1e-4)), in 114 to 254.

    Args:
        amax: float32, largest magnitude of the group, not negative. The division is a true one.

    Source: A1, N8.4 (second stage).
    """
    return pow2ceil_byte((amax.float() / E2M1_MAX).clamp(min=1e-4)).clamp(max=254).to(torch.uint8)


def ue8m0_fp4_fake(amax: Tensor) -> Tensor:
    """Return the scale byte (uint8) of a group that is only rounded to fp4: pow2ceil(max(amax, 6 * 2**-126) * fl(1/6)).

    Args:
        amax: float32, largest magnitude of the group, not negative. A zero group gives byte 1.

    Source: A2 (stage B), N8.4 (first stage).
    """
    return pow2ceil_byte(amax.float().clamp(min=E2M1_MAX * 2.0**-126) * _RECIPROCAL_6).to(torch.uint8)


def ue8m0_decode(byte: Tensor) -> Tensor:
    """Return the float32 scale 2**(byte - 127) of UE8M0 bytes; byte 0 is the subnormal 2**-127, byte 255 is NaN."""
    exponent = byte.int()
    bits = torch.where(exponent == 0, 1 << 22, exponent << 23)
    return torch.where(exponent == 255, 0x7FC00000, bits).int().view(torch.float32)


def ue8m0_reciprocal(byte: Tensor) -> Tensor:
    """Return the exact reciprocal 2**(127 - byte) of the scale of UE8M0 bytes 0 to 254, float32."""
    return ue8m0_decode(254 - byte.int())


def e4m3_encode(x: Tensor) -> Tensor:
    """Return the e4m3 codes (uint8) of float32 values: nearest, ties to even, saturating at +-448, sign of zero kept.

    Source: N0.3.
    """
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def e4m3_decode(code: Tensor) -> Tensor:
    """Return the float32 values of e4m3 codes (uint8); codes 0x7F and 0xFF are NaN."""
    return code.view(torch.float8_e4m3fn).float()


def e2m1_encode_ties_to_even(x: Tensor) -> Tensor:
    """Return the e2m1 codes (uint8, 0 to 15) of float32 values: nearest, ties to the even code, saturating at +-6.

    The sign bit (8) follows the input's sign bit, also where the magnitude rounds to zero.

    Source: N7.3.
    """
    magnitude = x.float().abs()
    code = (magnitude > 0.25).to(torch.uint8)
    # Each middle between neighbours: a tie goes up exactly where the upper code is even.
    for middle, tie_goes_up in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        code += (magnitude >= middle) if tie_goes_up else (magnitude > middle)
    return code | (x.float().signbit().to(torch.uint8) << 3)


def e2m1_encode_ties_to_smaller(x: Tensor) -> Tensor:
    """Return the e2m1 codes (uint8, 0 to 15) of float32 values: nearest, ties to the smaller magnitude, saturating.

    The sign bit (8) follows the input's sign bit, also where the magnitude rounds to zero.

    Source: A0.2, mode half_down.
    """
    magnitude = x.float().abs()
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for middle in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0):
        code += magnitude > middle
    return code | (x.float().signbit().to(torch.uint8) << 3)


def e2m1_without_minus_zero(code: Tensor) -> Tensor:
    """Return e2m1 codes with 8 (minus zero) replaced by 0, as the index packers emit them (A0.2, N8.4)."""
    return torch.where(code == 8, 0, code).to(torch.uint8)


def pack_nibbles(code: Tensor) -> Tensor:
    """Return codes 0 to 15 [..., D] two to a byte, [..., D / 2] uint8, the even element in the low nibble (A0.2)."""
    return code[..., 0::2].to(torch.uint8) | (code[..., 1::2].to(torch.uint8) << 4)


def unpack_nibbles(data: Tensor) -> Tensor:
    """Return the codes [..., 2 * bytes] uint8 of bytes that hold two each, the low nibble first."""
    return torch.stack([data & 15, data >> 4], -1).flatten(-2)


def e2m1_decode(code: Tensor) -> Tensor:
    """Return the float32 values of e2m1 codes 0 to 15; code 8 is -0.0."""
    # By arithmetic: a table would be copied from the host, which a captured graph cannot do.
    low = code.to(torch.int32) & 7
    magnitude = torch.where(low < 2, low * 0.5, torch.ldexp((2 + (low & 1)).float(), (low >> 1) - 2))
    return torch.where(code > 7, -magnitude, magnitude)


def fp4_scale_e4m3(amax: Tensor) -> Tensor:
    """Return the E4M3 scale codes (uint8) of fp4 groups: e4m3 of amax / 6 clamped to [2**-9, 448].

    Args:
        amax: float32, largest magnitude of the group, not negative.

    Source: N7.3 (page V41_FP4) and N8.1 (fake quantisation), which share this rule and no other.
    """
    return e4m3_encode((amax.float() / E2M1_MAX).clamp(_E4M3_SMALLEST, E4M3_MAX))


def fp4_fake_quant_e4m3_scale(x: Tensor, group: int = 16) -> Tensor:
    """Return float32 values rounded to the fp4 grid of their group of `group` lanes, with E4M3 scales.

    Negative values that round to zero become -0.0; an exact -0.0 becomes +0.0.

    Args:
        x: [..., D], D divisible by `group`.
        group: lanes that share a scale.

    Source: N8.1.
    """
    groups = x.float().reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scale = e4m3_decode(fp4_scale_e4m3(groups.abs().amax(-1, keepdim=True)))
    return (e2m1_decode(e2m1_encode_ties_to_even(groups / scale + 0.0)) * scale).flatten(-2)


def fp4_fake_quant_ue8m0_scale(x: Tensor, group: int = 32) -> Tensor:
    """Return float32 values rounded to the fp4 grid of their group of `group` lanes, with power-of-two scales.

    Negative values that round to zero become -0.0; an exact -0.0 becomes +0.0.

    Args:
        x: [..., D], D divisible by `group`.
        group: lanes that share a scale.

    Source: A2 (stage B), N8.4 (first stage).
    """
    groups = x.float().reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scale = ue8m0_decode(ue8m0_fp4_fake(groups.abs().amax(-1, keepdim=True)))
    return (e2m1_decode(e2m1_encode_ties_to_even(groups / scale + 0.0)) * scale).flatten(-2)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean of squares over the last dimension + eps), float32, keeping that dimension as 1.

    The statistic is taken in float64, where the squares of bfloat16 values are exact, so a row's bits do not depend on
    how many other rows there are.
    """
    return (x.double().square().mean(-1, keepdim=True) + eps).rsqrt().float()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return (x * inverse_rms) * weight in float32, multiplied in this order, not rounded further.

    Source: N3.3, N7.2, N8.2.
    """
    return x.float() * inverse_rms(x, eps) * weight.float()

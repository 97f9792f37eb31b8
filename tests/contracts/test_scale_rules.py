"""The UE8M0 rules and the e2m1 roundings, each on all bfloat16 values against exact rational arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from dspark_ops.contracts import numerics

GRID = [Fraction(value) for value in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]


def bf16_values() -> torch.Tensor:
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    return values[values.isfinite()]


def amaxes() -> torch.Tensor:
    values = bf16_values()
    return values[~values.signbit()]


def exponent_byte(value: Fraction) -> int:
    """Biased exponent of the smallest power of two that is not below a positive value."""
    power = value.numerator.bit_length() - value.denominator.bit_length() - 1
    while Fraction(2) ** power < value:
        power += 1
    return power + 127


def mx(amax: Fraction) -> int:
    return max(exponent_byte(amax / 448), 0) if amax else 0


def act(amax: Fraction) -> int:
    return exponent_byte(max(amax, Fraction(1e-4)) / 448)


def v41page(amax: Fraction) -> int:
    return exponent_byte(max(amax / 448, Fraction(1e-4)))


def fp8_grid(amax: Fraction) -> int:
    return min(max(exponent_byte(max(amax, Fraction(1e-10)) / 448), 1), 254)


def index(amax: Fraction) -> int:
    return min(max(exponent_byte(max(amax / 6, Fraction(1e-4))), 1), 254)


def fp4_fake(amax: Fraction) -> int:
    return exponent_byte(max(amax, 6 * Fraction(2) ** -126) / 6)


RULES = [
    (numerics.ue8m0_mx, mx),
    (numerics.ue8m0_act, act),
    (numerics.ue8m0_v41page, v41page),
    (numerics.ue8m0_fp8_grid, fp8_grid),
    (numerics.ue8m0_index, index),
    (numerics.ue8m0_fp4_fake, fp4_fake),
]


@pytest.mark.parametrize(("rule", "exact"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_a_scale_rule_gives_the_exact_byte_for_every_bfloat16_amax(
    rule: Callable[[torch.Tensor], torch.Tensor], exact: Callable[[Fraction], int]
) -> None:
    values = amaxes()
    bytes_ = rule(values)
    assert bytes_.dtype == torch.uint8
    assert bytes_.tolist() == [exact(Fraction(value)) for value in values.tolist()]


def test_no_two_scale_rules_are_the_same_function() -> None:
    values = amaxes()
    tables = [tuple(rule(values).tolist()) for rule, _ in RULES] + [tuple(numerics.ue8m0_v4page(values).tolist())]
    # ACT multiplies by the rounded reciprocal and V4PAGE divides: no bfloat16 value tells them apart (N0.4).
    assert len(set(tables)) == len(RULES)
    assert tables[1] == tables[-1]


def test_mx_bytes_of_the_golden_amaxes() -> None:
    amax = torch.tensor([0.0, 1.0, 448.0, 450.0, 1e4, 224.0, 1.75, 57344.0, 448.00003]).float()
    assert numerics.ue8m0_mx(amax).tolist() == [0, 119, 127, 128, 132, 126, 119, 134, 128]
    assert numerics.ue8m0_mx(torch.tensor(torch.finfo(torch.bfloat16).max)).item() == 247


def test_v41page_bytes_of_the_golden_amaxes() -> None:
    amax = torch.tensor([0.0, 2.0**-12, 1.0, 1.75, 1.7578125, 448.0, 449.0, 3e38])
    assert numerics.ue8m0_v41page(amax).tolist() == [114, 114, 119, 119, 120, 127, 128, 247]


def test_v41page_by_exponent_and_mantissa_gives_the_same_byte_for_every_bfloat16_amax() -> None:
    bits = amaxes().view(torch.int32)
    byte = ((bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).int()).clamp(min=114)
    assert torch.equal(numerics.ue8m0_v41page(amaxes()).int(), byte)


def test_floors_of_the_rules_for_a_zero_group() -> None:
    zero = torch.zeros(1)
    assert [rule(zero).item() for rule, _ in RULES] == [0, 105, 114, 85, 114, 1]


@pytest.mark.parametrize("exponent", [20, 60, 120, -20, -60])
def test_the_first_mantissas_after_a_power_of_two_times_448_go_up_where_a_logarithm_does_not(exponent: int) -> None:
    first = torch.tensor(1.75 * 2.0**exponent).nextafter(torch.tensor(3e38))
    assert numerics.ue8m0_mx(first).item() == exponent + 127 - 7
    logarithm = (first / 448).log2().ceil().int().item() + 127
    assert logarithm == numerics.ue8m0_mx(first).item() - 1


@pytest.mark.parametrize(("divisor", "bits"), [(448.0, 0x3B124925), (6.0, 0x3E2AAAAB)])
def test_division_and_the_rounded_reciprocal_agree_for_every_float32_mantissa(divisor: float, bits: int) -> None:
    reciprocal = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    amax = (torch.arange(1 << 23, dtype=torch.int32) | (127 << 23)).view(torch.float32)
    assert torch.equal(numerics.pow2ceil_byte(amax / divisor), numerics.pow2ceil_byte(amax * reciprocal))


def test_the_rules_multiply_by_the_named_float32_reciprocals() -> None:
    for value, bits in ((numerics._RECIPROCAL_448, 0x3B124925), (numerics._RECIPROCAL_6, 0x3E2AAAAB)):
        assert torch.tensor(value, dtype=torch.float32).view(torch.int32).item() == bits
        assert torch.tensor(value, dtype=torch.float32).item() == value


def test_half_down_codes_of_all_bfloat16_values_are_the_nearest_ones_with_ties_to_the_smaller() -> None:
    codes = numerics.e2m1_encode_ties_to_smaller(bf16_values()).tolist()
    for value, code in zip(bf16_values().tolist(), codes, strict=True):
        magnitude = abs(Fraction(value))
        assert (code & 7) == min(range(8), key=lambda index: (abs(GRID[index] - magnitude), index))
        assert (code >> 3) == (str(value)[0] == "-")


def test_midpoints_of_both_roundings() -> None:
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    down = numerics.e2m1_decode(numerics.e2m1_encode_ties_to_smaller(middles))
    even = numerics.e2m1_decode(numerics.e2m1_encode_ties_to_even(middles))
    assert down.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    assert even.tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


def test_ties_to_even_equal_rounding_to_a_step_on_a_million_values() -> None:
    x = torch.linspace(-6, 6, 1_000_001)
    step = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))
    assert torch.equal(numerics.e2m1_decode(numerics.e2m1_encode_ties_to_even(x)), (x / step).round() * step)


def test_minus_zero_is_dropped_only_where_it_is_asked_for() -> None:
    codes = numerics.e2m1_encode_ties_to_even(torch.tensor([-0.0, -0.1, -0.25, -0.3]))
    assert codes.tolist() == [8, 8, 8, 9]
    assert numerics.e2m1_without_minus_zero(codes).tolist() == [0, 0, 0, 9]


def test_nibbles_come_back_from_their_bytes() -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(4, 64) % 16
    data = numerics.pack_nibbles(codes)
    assert data[0, :4].tolist() == [0x10, 0x32, 0x54, 0x76]
    assert torch.equal(numerics.unpack_nibbles(data), codes)


def test_fake_quantisation_with_power_of_two_scales_keeps_the_sign_of_small_negatives() -> None:
    row = torch.zeros(32)
    row[:6] = torch.tensor([6.0, -0.0, -0.1, 0.1, -2.5, 3.5])
    got = numerics.fp4_fake_quant_ue8m0_scale(row)
    assert got[:6].tolist() == [6.0, 0.0, 0.0, 0.0, -2.0, 4.0]
    assert got.signbit()[:6].tolist() == [False, False, True, False, True, False]


def test_decoded_scale_bytes_at_both_ends_are_a_subnormal_and_nan() -> None:
    decoded = numerics.ue8m0_decode(torch.tensor([0x00, 0x7F, 0xFE, 0xFF], dtype=torch.uint8))
    assert decoded[:3].tolist() == [2.0**-127, 1.0, 2.0**127]
    assert decoded[3].isnan()

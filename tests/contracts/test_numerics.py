"""The rounding rules, checked on all bfloat16 values against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from dspark_ops.contracts import numerics

E4M3 = [((-1) ** (code >> 7)) * (Fraction(8 + (code & 7), 8) * Fraction(2) ** ((code >> 3 & 15) - 7) if code >> 3 & 15
        else Fraction(code & 7, 8) * Fraction(1, 64)) for code in range(256)]  # fmt: skip
E2M1 = [Fraction(value) for value in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]


def finite_bf16() -> torch.Tensor:
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    return values[values.isfinite()]


def nearest_even(value: Fraction, grid: list[Fraction]) -> int:
    """Index of the nearest grid magnitude, the even index of two equally near ones, the last one beyond the grid."""
    return min(range(len(grid)), key=lambda index: (abs(grid[index] - value), index % 2))


def test_e4m3_codes_of_all_bfloat16_values_are_the_nearest_ones() -> None:
    for value, code in zip(finite_bf16().tolist(), numerics.e4m3_encode(finite_bf16()).tolist(), strict=True):
        low = max(0, (code & 127) // 2 * 2 - 2)  # even, so that the window keeps the parity of the codes
        assert low + nearest_even(abs(Fraction(value)), E4M3[low : min(low + 6, 127)]) == code & 127
        assert (code >> 7) == (str(value)[0] == "-")


def test_e4m3_ties_go_to_the_even_code_and_large_values_saturate() -> None:
    middles = [(E4M3[code] + E4M3[code + 1]) / 2 for code in range(126)]
    codes = numerics.e4m3_encode(torch.tensor([float(middle) for middle in middles])).tolist()
    assert codes == [code + code % 2 for code in range(126)]
    assert numerics.e4m3_encode(torch.tensor([448.0, 449.0, 1e6, -3e38])).tolist() == [0x7E, 0x7E, 0x7E, 0xFE]


def test_e4m3_decoding_gives_the_value_of_every_code() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    for code, value in enumerate(numerics.e4m3_decode(codes).tolist()):
        assert value != value if code & 127 == 127 else Fraction(value) == E4M3[code]


def test_e2m1_codes_of_all_bfloat16_values_are_the_nearest_ones_with_ties_to_even() -> None:
    for value, code in zip(
        finite_bf16().tolist(), numerics.e2m1_encode_ties_to_even(finite_bf16()).tolist(), strict=True
    ):
        assert (code & 7) == nearest_even(abs(Fraction(value)), E2M1)
        assert (code >> 3) == (str(value)[0] == "-")


def test_e2m1_decoding_inverts_encoding() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(numerics.e2m1_encode_ties_to_even(numerics.e2m1_decode(codes)), codes)


def test_pow2ceil_is_the_smallest_power_of_two_not_below_every_positive_bfloat16() -> None:
    values = finite_bf16()
    values = values[values >= 2.0**-126]
    for value, byte in zip(values.tolist(), numerics.pow2ceil_byte(values).tolist(), strict=True):
        power = Fraction(2) ** (byte - 127)
        assert power / 2 < Fraction(value) <= power


def test_v4page_bytes_of_the_golden_vector() -> None:
    amax = torch.tensor([0.0, 1e-5, 1.0, 448.0, 449.0])
    assert numerics.ue8m0_v4page(amax).tolist() == [105, 105, 119, 127, 128]


def test_v4page_scale_is_the_smallest_that_fits_every_bfloat16_amax_above_the_floor() -> None:
    amax = finite_bf16()
    amax = amax[amax >= 1e-4]
    for value, byte in zip(amax.tolist(), numerics.ue8m0_v4page(amax).tolist(), strict=True):
        scale = Fraction(2) ** (byte - 127)
        assert scale / 2 * 448 < Fraction(value) <= scale * 448


def test_v4page_division_and_the_rounded_reciprocal_give_one_byte_for_every_float32_mantissa() -> None:
    reciprocal = torch.tensor(0x3B124925, dtype=torch.int32).view(torch.float32)
    mantissas = torch.arange(1 << 23, dtype=torch.int32)
    amax = (mantissas | (127 << 23)).view(torch.float32)
    assert torch.equal(numerics.ue8m0_v4page(amax), numerics.pow2ceil_byte(amax * reciprocal).to(torch.uint8))


def test_ue8m0_decoding_and_reciprocal_are_exact_for_all_bytes() -> None:
    byte = torch.arange(255, dtype=torch.uint8)
    for index, (scale, inverse) in enumerate(
        zip(numerics.ue8m0_decode(byte).tolist(), numerics.ue8m0_reciprocal(byte).tolist(), strict=True)
    ):
        assert Fraction(scale) == Fraction(2) ** (index - 127)
        assert Fraction(inverse) == Fraction(2) ** (127 - index)


@pytest.mark.parametrize(
    ("amax", "scale"),
    [(0.0, 2.0**-9), (2.0**-12, 2.0**-9), (6 * 2.0**-9, 2.0**-9), (6.0, 1.0), (6 * 1.0625, 1.0), (6 * 1.1875, 1.25),
     (6 * 448.0, 448.0), (1e6, 448.0)],
)  # fmt: skip
def test_fp4_group_scales_at_their_boundaries(amax: float, scale: float) -> None:
    assert numerics.e4m3_decode(numerics.fp4_scale_e4m3(torch.tensor([amax]))).item() == scale


def test_fp4_scale_by_division_and_by_the_rounded_reciprocal_agree_on_every_bfloat16() -> None:
    amax = finite_bf16()
    amax = amax[amax >= 0]
    sixth = torch.tensor(1 / 6, dtype=torch.float32)
    assert torch.equal(numerics.fp4_scale_e4m3(amax), numerics.e4m3_encode((amax * sixth).clamp(2.0**-9, 448)))


def test_fp4_fake_quantisation_keeps_the_sign_of_small_negatives_and_clears_minus_zero() -> None:
    row = torch.zeros(16)
    row[:5] = torch.tensor([6.0, -0.0, -0.1, 0.1, -2.5])
    got = numerics.fp4_fake_quant_e4m3_scale(row)
    assert got[:5].tolist() == [6.0, 0.0, 0.0, 0.0, -2.0]
    assert got.signbit()[:5].tolist() == [False, False, True, False, True]


def test_fp4_fake_quantisation_gives_values_that_bfloat16_holds_exactly() -> None:
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    got = numerics.fp4_fake_quant_e4m3_scale(x)
    assert torch.equal(got, numerics.round_bf16(got))
    assert torch.linalg.norm(got - x) / torch.linalg.norm(x) < 0.12


def test_rms_statistic_does_not_stop_growing_and_eps_is_under_the_root() -> None:
    ones, twos = torch.ones(1, 4096).bfloat16(), torch.full((1, 7168), 2.0).bfloat16()
    assert torch.equal(numerics.rms_norm(ones, torch.ones(4096), 0.0), torch.ones(1, 4096))
    assert torch.equal(numerics.rms_norm(twos, torch.ones(7168), 0.0), torch.ones(1, 7168))
    small = torch.full((1, 8), 2.0**-10).bfloat16()
    assert numerics.rms_norm(small, torch.ones(8), 2.0**-20).bfloat16().unique().tolist() == [0.70703125]
    assert numerics.rms_norm(torch.zeros(1, 8), torch.ones(8), 1e-6).abs().max().item() == 0
    assert numerics.rms_norm(torch.full((1, 64), 300.0).half(), torch.ones(64), 0.0).unique().tolist() == [1.0]


def test_rms_norm_of_a_row_does_not_depend_on_the_other_rows() -> None:
    x = torch.randn(33, 512, generator=torch.Generator().manual_seed(2)).bfloat16()
    weight = torch.rand(512, generator=torch.Generator().manual_seed(3)).bfloat16()
    together = numerics.rms_norm(x, weight, 1e-20)
    alone = torch.cat([numerics.rms_norm(row[None], weight, 1e-20) for row in x])
    assert torch.equal(together, alone)

"""The quantisers: golden bytes, zero and tiny groups, edges of scales, and rows of the indexer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get, numerics
from dspark_ops.contracts.quantize import (
    fp4_quantize_rows,
    fp8_grid_quantize,
    fp8_grid_round,
    mx_dequantize,
    mxfp8_quantize,
)
from dspark_ops.errors import ContractError

NAMES = ("mxfp8_quantize", "fp8_grid_quantize", "fp8_grid_round", "fp4_quantize_rows")


def blocks(*groups: torch.Tensor) -> torch.Tensor:
    return torch.cat(groups)[None]


def single(amax: float, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    row = torch.zeros(1, 32, dtype=dtype)
    row[0, 5] = amax
    return row


def test_zero_and_tiny_groups_have_byte_0_and_payload_0_beside_a_normal_group() -> None:
    x = blocks(torch.zeros(32), torch.full((32,), 2.0**-133), torch.full((32,), 2.0**-124), torch.ones(32)).bfloat16()
    q, scales = mxfp8_quantize(x, "sf_linear")
    assert scales.tolist() == [0, 0, 0, 0x77]
    assert q.view(torch.uint8)[0, :96].unique().tolist() == [0]
    assert q.view(torch.uint8)[0, 96:].unique().tolist() == [0x78]


def test_the_last_group_that_counts_as_zero_and_the_first_that_does_not() -> None:
    below = torch.tensor(448 * 2.0**-127).bfloat16()
    above = below.view(torch.int16).add(1).view(torch.bfloat16)
    q, scales = mxfp8_quantize(torch.stack([below, above]).repeat_interleave(32)[None], "sf_linear")
    assert scales.tolist() == [0, 1]
    assert q.float()[0, [0, 32]].tolist() == [0.0, 224.0]


def test_the_sign_of_a_value_that_counts_as_zero_is_kept() -> None:
    x = torch.zeros(1, 32)
    x[0, 1], x[0, 2] = -0.0, -(2.0**-130)
    q, _ = mxfp8_quantize(x.bfloat16(), "sf_linear")
    assert q.view(torch.uint8)[0, :4].tolist() == [0x00, 0x80, 0x80, 0x00]


@pytest.mark.parametrize(
    ("amax", "byte", "code", "decoded"),
    [(448.0, 0x7F, 0x7E, 448.0), (224.0, 0x7E, 0x7E, 224.0), (1.75, 0x77, 0x7E, 1.75),
     (57344.0, 0x86, 0x7E, 57344.0), (450.0, 0x80, 0x76, 448.0)],
)  # fmt: skip
def test_a_group_whose_amax_is_at_a_power_of_two_or_one_step_above(
    amax: float, byte: int, code: int, decoded: float
) -> None:
    q, scales = mxfp8_quantize(single(amax), "sf_linear")
    assert scales.tolist() == [byte]
    assert q.view(torch.uint8)[0, 5].item() == code
    assert mx_dequantize(q, scales[None])[0, 5].item() == decoded


def test_the_float32_above_448_takes_the_next_scale() -> None:
    amax = torch.tensor(448.0).nextafter(torch.tensor(1e9))
    assert numerics.ue8m0_mx(amax).item() == 0x80
    assert numerics.e4m3_encode(amax / 2).item() == 0x76


def test_decoding_gives_the_subnormal_scale_and_nan_for_the_bytes_at_the_ends() -> None:
    codes = torch.full((1, 128), 0x38, dtype=torch.uint8)
    values = mx_dequantize(codes, torch.tensor([[0x00, 0x7F, 0xFE, 0xFF]], dtype=torch.uint8))
    assert values[0, [0, 32, 64]].tolist() == [2.0**-127, 1.0, 2.0**127]
    assert values[0, 96:].isnan().all()


@pytest.mark.parametrize(
    ("rows", "columns", "size", "places"),
    [
        (6, 96, 512, {(0, 0): 0, (0, 2): 2, (1, 0): 16, (5, 2): 82}),
        (33, 1024, 4096, {(32, 0): 4, (32, 31): 3591}),
        (6, 7168, 28672, {(5, 223): 28243}),
    ],
)
def test_swizzled_scales_lie_at_their_places_and_all_other_bytes_are_zero(
    rows: int, columns: int, size: int, places: dict[tuple[int, int], int]
) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).bfloat16()
    q, swizzled = mxfp8_quantize(x)
    same, linear = mxfp8_quantize(x, "sf_linear")
    assert torch.equal(q.view(torch.uint8), same.view(torch.uint8))
    assert swizzled.numel() == size
    assert int((swizzled == 0).sum()) == size - rows * columns // 32
    for (row, group), place in places.items():
        assert swizzled[place] == linear.view(rows, -1)[row, group]


@pytest.mark.parametrize(("columns", "size"), [(5120, 20480), (2048, 8192), (1280, 5120)])
def test_swizzled_scales_of_128_rows_have_the_stated_bytes(columns: int, size: int) -> None:
    for rows in (1, 128):
        assert mxfp8_quantize(torch.ones(rows, columns).bfloat16())[1].numel() == size


@given(seed=st.integers(0, 999), exponent=st.integers(-100, 100))
def test_scaled_values_fill_the_upper_half_of_the_range_and_are_the_nearest_codes(seed: int, exponent: int) -> None:
    x = (torch.randn(3, 64, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent).bfloat16()
    q, scales = mxfp8_quantize(x, "sf_linear")
    byte = scales.view(3, 2)
    scaled = x.double().view(3, 2, 32) * 2.0 ** (127 - byte.double())[..., None]
    assert (scaled.abs().amax(-1) <= 448).all() and (scaled.abs().amax(-1) > 224).all()
    codes = numerics.e4m3_decode(torch.arange(256, dtype=torch.uint8)).double()
    nearest = (codes[~codes.isnan()] - scaled[..., None]).abs().amin(-1)
    assert torch.equal((q.double().view(3, 2, 32) - scaled).abs(), nearest)


def test_the_grid_has_a_floor_that_mxfp8_has_not() -> None:
    tiny = torch.full((1, 32), 1e-20).bfloat16()
    codes, scales = fp8_grid_quantize(tiny)
    assert scales.tolist() == [[85]] and codes.view(torch.uint8).unique().tolist() == [0]
    q, byte = mxfp8_quantize(tiny, "sf_linear")
    assert byte.item() < 85 and q.float().min() > 224
    assert fp8_grid_quantize(torch.zeros(1, 32).bfloat16())[1].item() == 85


@given(seed=st.integers(0, 999), exponent=st.integers(-60, 60))
def test_values_on_the_grid_stay_and_are_what_the_codes_mean(seed: int, exponent: int) -> None:
    x = (torch.randn(3, 96, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent).bfloat16()
    grid = fp8_grid_round(x)
    codes, scales = fp8_grid_quantize(x)
    assert torch.equal(grid.float(), mx_dequantize(codes, scales))
    assert torch.equal(fp8_grid_round(grid), grid)
    assert (
        (grid.float() - x.float()).abs() <= x.float().abs() * 2.0**-4 + 2.0**-50 + x.float().abs().max() * 2.0**-17
    ).all()


GOLDEN = torch.tensor(
    [0, 0.1, -0.2, 0.25, 0.3, -0.75, 1, 1.25, 1.5, -1.75, 2, 2.5, 3, -3.5, 4, 5, 6, -6, 0.26, 0.74, 1.26, 1.74, 2.51,
     3.49, 5.01, -0.24, 0.5, -0.5, -1, -2, -3, -4]
)  # fmt: skip


@pytest.mark.parametrize(
    ("rounding", "payload"),
    [
        ("half_down", [0, 0, 145, 34, 179, 68, 213, 102, 247, 17, 51, 85, 6, 145, 202, 237]),
        ("rne", [0, 0, 161, 34, 195, 68, 229, 102, 247, 17, 51, 85, 6, 145, 202, 237]),
    ],
)
def test_fp4_bytes_of_the_golden_group(rounding: str, payload: list[int]) -> None:
    row = torch.zeros(1, 128).bfloat16()
    row[0, 64:96] = GOLDEN.bfloat16()
    got, scales = fp4_quantize_rows(row, rounding)
    assert got[0, 32:48].tolist() == payload
    assert got[0, :32].unique().tolist() == [0]
    assert scales.tolist() == [114 | 114 << 8 | 127 << 16 | 114 << 24]


def test_fp4_midpoints_go_to_the_even_code_and_minus_zero_is_not_emitted() -> None:
    block = torch.zeros(1, 32)
    block[0, :12] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.0, -5.0, -6.0])
    payload, scales = fp4_quantize_rows(block.bfloat16())
    # O11 keeps the sign of a zero (byte 88 in fifth place); the indexer's packers drop it (A0.2, N8.4).
    assert bytes(payload[0].tolist()).hex() == "2042647600fe" + "00" * 10
    assert scales.item() == 0x7F
    kept = numerics.pack_nibbles(numerics.e2m1_encode_ties_to_even(block))
    assert bytes(kept[0].tolist()).hex() == "2042647688fe" + "00" * 10


def test_fp4_values_saturate_and_next_floats_after_midpoints_go_up() -> None:
    x = torch.tensor([7.0, 0.2500001, 5.0000005])
    assert numerics.e2m1_decode(numerics.e2m1_encode_ties_to_even(x)).tolist() == [6.0, 0.5, 6.0]


@pytest.mark.parametrize("exponent", [-10, -1, 0, 7, 30])
def test_fp4_rows_of_six_times_a_power_of_two_have_that_scale_and_the_next_float_the_next(exponent: int) -> None:
    amax = torch.tensor([[6 * 2.0**exponent]])
    above = amax.nextafter(torch.tensor(3e38))
    scales = [fp4_quantize_rows(row.repeat(1, 32))[1].item() for row in (amax, above)]
    assert scales == [exponent + 127, exponent + 128]


@pytest.mark.parametrize("rows", [0, 1, 31, 33])
def test_fp4_rows_have_the_same_bytes_alone_and_in_a_batch(rows: int) -> None:
    x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(4)).bfloat16()
    payload, scales = fp4_quantize_rows(x)
    assert payload.shape == (rows, 64) and scales.shape == (rows,)
    for row in range(rows):
        one, word = fp4_quantize_rows(x[row : row + 1])
        assert torch.equal(one[0], payload[row]) and word.item() == scales[row].item()


def test_the_highest_scale_byte_does_not_become_negative_before_it_is_read_back() -> None:
    x = torch.full((1, 128), 3e38).bfloat16()
    word = fp4_quantize_rows(x)[1].item()
    assert word < 0 and [(word >> 8 * index) & 255 for index in range(4)] == [253] * 4


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: mxfp8_quantize(torch.zeros(1, 48).bfloat16()), "whole groups of 32, got 48"),
        (lambda: mxfp8_quantize(torch.zeros(1, 32).bfloat16(), "sf_128x5"), "did you mean 'sf_128x4'"),
        (lambda: fp8_grid_quantize(torch.zeros(1, 40).bfloat16()), "fp8_grid_quantize: wanted columns"),
        (lambda: fp4_quantize_rows(torch.zeros(1, 160)), "128 columns at most, got 160"),
        (lambda: fp4_quantize_rows(torch.zeros(1, 128), "half_up"), "wanted rounding rne or half_down, got 'half_up'"),
    ],
)
def test_calls_outside_the_contract_are_refused(call: object, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_meets_every_small_case(name: str) -> None:
    contract = get(name)
    assert check_numbers(contract, contract.reference) == []

"""Clamped SwiGLU: the asymmetric clamp and the special values."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get
from dspark_ops.contracts.activation import (
    silu_mul_clamp,
    silu_mul_clamp_fp8_grid,
    silu_mul_clamp_mxfp8,
)
from dspark_ops.contracts.quantize import fp8_grid_round, mx_dequantize
from dspark_ops.errors import ContractError


def activate(gate: list[float], up: list[float], **options: object) -> list[float]:
    return silu_mul_clamp(torch.tensor([gate + up]), **options)[0].tolist()


def test_the_gate_has_an_upper_limit_only_and_is_clamped_before_the_activation() -> None:
    got = activate([12.0, -12.0, 3.0, 10.0], [-15.0, 15.0, 4.0, -10.0])
    assert got == pytest.approx([-99.99546, -0.000737301, 11.43089, -99.99546], rel=1e-6)


def test_without_a_limit_nothing_is_clamped() -> None:
    assert activate([12.0, -12.0], [-15.0, 15.0], limit=None) == pytest.approx([-179.9989, -0.001105951], rel=1e-6)


def test_nan_stays_and_infinities_have_one_value_each() -> None:
    nan, infinite, negative = activate([math.nan, math.inf, -math.inf], [1.0, 1.0, 1.0])
    assert math.isnan(nan) and math.isnan(negative)
    assert infinite == pytest.approx(9.999546, rel=1e-6)
    assert math.isnan(activate([1.0], [math.nan])[0])


def test_a_gate_whose_exponential_overflows_gives_a_signed_zero() -> None:
    got = activate([-200.0, -200.0], [1.0, -1.0])
    assert got == [0.0, 0.0] and [math.copysign(1.0, value) for value in got] == [-1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_formats_are_rounded_once(dtype: torch.dtype) -> None:
    gate_up = (torch.randn(24, 2 * 576, generator=torch.Generator().manual_seed(0)) * 6).to(dtype)
    whole = silu_mul_clamp(gate_up)
    assert whole.dtype == dtype
    assert torch.equal(whole, silu_mul_clamp(gate_up.float()).to(dtype))


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    gate_up = torch.randn(33, 2 * 37, generator=torch.Generator().manual_seed(1)) * 4
    whole = silu_mul_clamp(gate_up)
    assert all(torch.equal(whole[row : row + 1], silu_mul_clamp(gate_up[row : row + 1])) for row in range(33))


@pytest.mark.parametrize("width", [32, 288, 576, 1024, 1056, 2304])
def test_both_quantised_forms_are_made_of_the_activation_as_rounded_to_bfloat16(width: int) -> None:
    gate_up = (torch.randn(5, 2 * width, generator=torch.Generator().manual_seed(2)) * 6).bfloat16()
    y, grid = silu_mul_clamp_fp8_grid(gate_up)
    same, codes, scales = silu_mul_clamp_mxfp8(gate_up)
    assert torch.equal(y, silu_mul_clamp(gate_up)) and torch.equal(same, y)
    assert torch.equal(grid, fp8_grid_round(y))
    assert torch.equal(grid.float(), mx_dequantize(codes, scales))
    assert scales.shape == (5, width // 32)


def test_the_limit_reaches_the_quantised_forms() -> None:
    gate_up = torch.full((1, 64), 12.0).bfloat16()
    assert silu_mul_clamp_fp8_grid(gate_up)[0][0, 0].item() == 100.0
    assert silu_mul_clamp_fp8_grid(gate_up, None)[1][0, 0].item() == 144.0
    _, codes, scales = silu_mul_clamp_mxfp8(gate_up, 1.0)
    assert mx_dequantize(codes, scales)[0, 0].item() == pytest.approx(0.731, rel=2**-4)


def test_a_group_of_zeros_has_the_scale_of_the_floor() -> None:
    _, codes, scales = silu_mul_clamp_mxfp8(torch.zeros(1, 128).bfloat16())
    assert scales.tolist() == [[85, 85]] and codes.float().abs().max().item() == 0


def test_halves_that_are_no_whole_groups_are_refused() -> None:
    with pytest.raises(ContractError, match="whole groups of 32, got 48"):
        silu_mul_clamp_fp8_grid(torch.zeros(1, 96).bfloat16())


@pytest.mark.parametrize("name", ["silu_mul_clamp_fp8_grid", "silu_mul_clamp_mxfp8"])
def test_the_quantised_references_and_their_parts_meet_every_small_case(name: str) -> None:
    contract = get(name)
    assert check_numbers(contract, contract.reference) == []
    ops = SimpleNamespace(**{part: get(part).reference for part in contract.decomposition.parts})
    assert check_numbers(contract, partial(contract.decomposition.compose, ops)) == []

"""Clamped SwiGLU: the asymmetric clamp and the special values."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="numbers need torch")

from dspark_ops.contracts.activation import silu_mul_clamp  # noqa: E402


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

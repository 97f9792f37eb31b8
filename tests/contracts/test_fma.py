"""a*b + c rounded once to float32, on the short way where float64 holds the sum and on the long way where not."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dspark_ops.contracts import numerics

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
#: Its sum with anything is not held by float64: it sends a whole call on the long way.
NOT_HELD = (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60)


def nearest_float32(value: Fraction) -> float:
    """The nearest float32, of two equally near ones that with an even last bit; subnormal and beyond the range too."""
    if value == 0:
        return 0.0
    exponent = -149
    while abs(value) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    whole = round(value / Fraction(2) ** exponent)  # Python rounds halves to even
    return float(whole * Fraction(2) ** exponent) if abs(whole) * Fraction(2) ** exponent < 2**128 else float("inf")


def exactly(a: float, b: float, c: float) -> float:
    value = Fraction(a) * Fraction(b) + Fraction(c)
    return nearest_float32(value) if value >= 0 else -nearest_float32(-value)


def both_ways(rows: list[tuple[float, float, float]]) -> tuple[list[float], list[float]]:
    """Each triple in a call of its own, and all of them beside one that float64 does not hold."""
    alone = [numerics.fma(*(torch.tensor([value]) for value in row)).item() for row in rows]
    together = numerics.fma(*torch.tensor([*rows, NOT_HELD]).unbind(1))
    return alone, together[:-1].tolist()


@settings(max_examples=400, deadline=None)
@given(FINITE, FINITE, FINITE)
@example(1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60)
@example(0.0, -1.0, -0.0)
@example(2.0**-75, 2.0**-75, 2.0**-149)
@example(2.0**-126, 1 - 2.0**-24, 0.0)
@example(2.0**127, 2.0, -(2.0**127))
@example(2.0**-149, 2.0**-149, 1.0)
def test_any_three_numbers_give_the_nearest_float32_of_their_exact_sum(a: float, b: float, c: float) -> None:
    want = exactly(a, b, c)
    alone, together = both_ways([(a, b, c)])
    assert alone == [want] and together == [want]


@settings(max_examples=200, deadline=None)
@given(st.integers(2**23, 2**24 - 1), st.integers(-148, 60), st.integers(-1, 1), st.integers(30, 120), st.booleans())
def test_results_at_the_middle_of_two_values_and_just_beside_it(
    whole: int, exponent: int, side: int, distance: int, negative: bool
) -> None:
    """c is a float32 and a*b half a step of it, plus or minus a last bit far below what float64 holds of the sum."""
    c = float(whole) * 2.0**exponent if exponent > -148 else float(whole >> 1) * 2.0**-148
    half = 2.0 ** (exponent - 1) if exponent > -148 else 2.0**-149
    # (1 + t) * (1 - t) = 1 - t**2 and its like: the product lies beside half a step by a part of 2**-24 to 2**-46
    t = 2.0 ** -(12 + distance % 12)
    a, b = {0: (1.0, half), 1: (1 + t, half * (1 + t)), -1: (1 + t, half * (1 - t))}[side]
    a, b, c = (float(value) for value in torch.tensor([-a if negative else a, b, -c if negative else c]))
    want = exactly(a, b, c)
    alone, together = both_ways([(a, b, c)])
    assert alone == [want] and together == [want]


def test_both_ways_give_the_same_bits_on_many_values() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(64, 257, generator=generator).bfloat16()
    b, c = (torch.randn(64, 257, generator=generator) for _ in range(2))
    for scale in (1.0, 2.0**-70, 2.0**60):
        quick = numerics.fma(a, b, c * scale)
        joined = [torch.cat([value.float().flatten(), torch.tensor([extra])]) for value, extra
                  in zip((a, b, c * scale), NOT_HELD, strict=True)]  # fmt: skip
        assert torch.equal(quick.flatten().view(torch.int32), numerics.fma(*joined)[:-1].view(torch.int32))


def test_operands_are_broadcast() -> None:
    a, b, c = torch.tensor([[2.0], [3.0]]), torch.tensor([5.0, 7.0]), torch.tensor(1.0)
    assert numerics.fma(a, b, c).tolist() == [[11.0, 15.0], [16.0, 22.0]]
    assert numerics.fma(c, c, a).tolist() == [[3.0], [4.0]]
    assert numerics.fma(c, c, c).tolist() == 2.0
    assert numerics.fma(a[:0], b, c).shape == (0, 2)


def test_fma_rounds_once_where_float64_would_round_twice() -> None:
    a, b = torch.tensor([1 + 2.0**-12]), torch.tensor([1 + 2.0**-12])
    c = torch.tensor([2.0**-60])
    # (1 + 2^-11 + 2^-24) + 2^-60 lies just above the middle of two float32 values; float64 drops the 2^-60.
    assert numerics.fma(a, b, c).item() == 1 + 2.0**-11 + 2.0**-23
    assert (a.double() * b.double() + c.double()).float().item() == 1 + 2.0**-11
    assert numerics.fma(-a, b, -c).item() == -(1 + 2.0**-11 + 2.0**-23)
    assert numerics.fma(a, b, -c).item() == 1 + 2.0**-11


def test_fma_equals_exact_rational_arithmetic_on_random_values() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(4000, generator=generator) for _ in range(3))
    exponents = torch.randint(-40, 40, (4000,), generator=generator)
    c = torch.ldexp(c, exponents)
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), numerics.fma(a, b, c).tolist(), strict=True):
        assert got == exactly(x, y, z)


def test_fma_keeps_infinities_and_nan() -> None:
    inf, nan = float("inf"), float("nan")
    got = numerics.fma(torch.tensor([inf, 1.0, nan, inf]), torch.ones(4), torch.tensor([0.0, -inf, 0.0, -inf]))
    assert got[:2].tolist() == [inf, -inf]
    assert got[2:].isnan().all()

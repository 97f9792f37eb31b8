"""Device functions exp, log1p and the router's score, each against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from dspark_ops.contracts.moe import _sqrt_softplus
from dspark_ops_triton.blocks.elementary import exp_rounded, log1p_rounded, sqrt_softplus

LANES = 4096
NAN, INF = float("nan"), float("inf")


@triton.jit
def _kernel(x, out, WHICH: tl.constexpr, LANES: tl.constexpr):
    lanes = tl.program_id(0) * LANES + tl.arange(0, LANES)
    value = tl.load(x + lanes)
    if WHICH == 0:
        value = exp_rounded(value)
    elif WHICH == 1:
        value = log1p_rounded(value)
    else:
        value = sqrt_softplus(value)
    tl.store(out + lanes, value)


def _run(which: int, x: torch.Tensor) -> torch.Tensor:
    count = triton.cdiv(x.numel(), LANES) * LANES
    padded, out = torch.zeros(count), torch.empty(count)
    padded[: x.numel()] = x
    _kernel[(count // LANES,)](padded, out, WHICH=which, LANES=LANES)
    return out[: x.numel()]


def _steps(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (got.view(torch.int32) - wanted.view(torch.int32)).abs()


def _samples(low: float, high: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(1 << 16, generator=generator) * (high - low) + low


RANGES: list[tuple[int, Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = [
    (0, torch.exp, _samples(-87.0, 88.7)),
    (0, torch.exp, _samples(-1.0, 1.0)),
    (1, torch.log1p, _samples(-25.0, 29.9).exp2()),
    (1, torch.log1p, _samples(0.0, 4.0)),
]


@pytest.mark.parametrize(("which", "exact", "x"), RANGES, ids=["exp", "exp near 0", "log1p", "log1p near 1"])
def test_a_result_is_the_rounded_one_but_for_a_few_in_ten_thousand(
    which: int, exact: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> None:
    steps = _steps(_run(which, x), exact(x.double()).float())
    assert steps.max() <= 1
    assert (steps > 0).double().mean() < 5e-4


def test_ends_of_the_exponential() -> None:
    x = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 89.0, -104.0, 88.72283, -87.33654, 1e30, -1e30])
    got, wanted = _run(0, x), x.double().exp().float()
    assert torch.equal(got[1:], wanted[1:])
    assert got[0].isnan()
    subnormal = torch.linspace(-103.9, -87.4, 999)
    assert _steps(_run(0, subnormal), subnormal.double().exp().float()).max() <= 1


def test_ends_of_log1p() -> None:
    x = torch.tensor([NAN, 0.0, 1e-45, 3e-39, 2.98e-8, 5.9604645e-08, 2.0**30])
    got, wanted = _run(1, x), x.double().log1p().float()
    assert torch.equal(got[1:], wanted[1:])
    assert got[0].isnan()


def test_the_score_is_the_contracts_and_keeps_what_is_not_finite() -> None:
    x = torch.cat([_samples(-30.0, 25.0), _samples(-2.0, 2.0), torch.tensor([20.0, 20.000002, 1e30, -1e30, -80.0])])
    steps = _steps(_run(2, x), _sqrt_softplus(x))
    assert steps.max() <= 1
    assert (steps > 0).double().mean() < 5e-4
    assert str(_run(2, torch.tensor([NAN, INF, -INF])).tolist()) == "[nan, inf, 0.0]"

"""Device functions of the hyper-connection combine and the norm, each alone."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dspark_ops.contracts.numerics import fma
from dspark_ops_triton.blocks.norm import combine_copies, inverse_rms, round_bf16

HIDDEN, LANES = 96, 128


@triton.jit
def _combine_kernel(x, pre, out, COPIES: tl.constexpr, HIDDEN: tl.constexpr, LANES: tl.constexpr):
    lanes = tl.arange(0, LANES)
    total = combine_copies(x, pre, lanes, lanes < HIDDEN, COPIES, HIDDEN)
    tl.store(out + lanes, total)


@triton.jit
def _norm_kernel(x, rounded, inverse, eps, COUNT: tl.constexpr, LANES: tl.constexpr):
    lanes = tl.arange(0, LANES)
    value = tl.load(x + lanes, mask=lanes < COUNT, other=0.0)
    tl.store(rounded + lanes, round_bf16(value), mask=lanes < COUNT)
    tl.store(inverse, inverse_rms(value, COUNT, eps))


def test_the_combine_is_the_chain_of_fused_multiply_adds_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, HIDDEN, generator=generator).bfloat16()
    pre = torch.rand(4, generator=generator)
    expected = torch.zeros(HIDDEN)
    for copy in range(4):
        expected = fma(x[copy], pre[copy], expected)
    separate = (x.float() * pre[:, None]).cumsum(0)[-1]
    assert not torch.equal(expected, separate)  # the inputs tell the chain from rounded products
    out = torch.full((LANES,), -1.0)
    _combine_kernel[(1,)](x, pre, out, COPIES=4, HIDDEN=HIDDEN, LANES=LANES)
    assert torch.equal(out[:HIDDEN], expected)
    assert torch.equal(out[HIDDEN:], torch.zeros(LANES - HIDDEN))


def test_values_are_rounded_to_the_nearest_bfloat16() -> None:
    x = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1))
    rounded, inverse = torch.empty(HIDDEN), torch.empty(1)
    _norm_kernel[(1,)](x, rounded, inverse, 1e-20, COUNT=HIDDEN, LANES=LANES)
    assert torch.equal(rounded, x.bfloat16().float())


def test_the_inverse_root_mean_square_counts_the_values_and_not_the_lanes() -> None:
    for scale in (1e-4, 1.0, 1e4):
        x = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(2)) * scale
        rounded, inverse = torch.empty(HIDDEN), torch.empty(1)
        _norm_kernel[(1,)](x, rounded, inverse, 1e-20, COUNT=HIDDEN, LANES=LANES)
        exact = x.double().square().mean().rsqrt()
        assert abs(inverse.double().item() / exact.item() - 1) < 3e-7


def test_zeros_give_a_finite_inverse() -> None:
    rounded, inverse = torch.empty(HIDDEN), torch.empty(1)
    _norm_kernel[(1,)](torch.zeros(HIDDEN), rounded, inverse, 1e-20, COUNT=HIDDEN, LANES=LANES)
    assert abs(inverse.item() / 1e10 - 1) < 1e-6

"""Hyper-connections: golden vectors, the order of roundings, and rows that do not depend on each other."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from dspark_ops.contracts import get, mhc
from dspark_ops.errors import ContractError


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mix_with_logits(logits: torch.Tensor, iterations: int = 20) -> tuple[torch.Tensor, ...]:
    """Call the operator so that its projections are zero and the base carries the logits."""
    copies = logits.shape[-1]
    base = torch.cat([torch.zeros(copies), torch.ones(copies), logits.flatten()])
    fn = torch.zeros(base.numel(), copies * 8)
    return mhc.mhc_mix_sinkhorn(random(1, copies * 8).bfloat16(), fn, torch.ones(3), base, iterations=iterations)


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [(1, [[0.233916, 0.859803], [0.766084, 0.140196]]), (20, [[0.182426, 0.817573], [0.817573, 0.182426]])],
)
def test_sinkhorn_of_two_copies_gives_the_golden_matrix(iterations: int, expected: list[list[float]]) -> None:
    _, _, comb = mix_with_logits(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), iterations)
    torch.testing.assert_close(comb[0], torch.tensor(expected), rtol=0, atol=1e-6)


def test_sinkhorn_of_four_copies_gives_the_golden_matrix_and_ends_on_columns() -> None:
    pre, post, comb = mix_with_logits(torch.tensor([[0.0, 1, 2, 3], [3, 0, 0, 0], [0, 0, 5, 0], [-1, 0, 1, 0.5]]))
    expected = torch.tensor(
        [
            [0.0385451, 0.2674363, 0.0476338, 0.6463845],
            [0.8497978, 0.1079957, 0.0070764, 0.0353258],
            [0.0342329, 0.0873793, 0.8496086, 0.0285821],
            [0.0774232, 0.5371877, 0.0956803, 0.2897065],
        ]
    )
    torch.testing.assert_close(comb[0], expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(comb[0].sum(0), torch.full((4,), 0.999999), rtol=0, atol=1e-6)
    assert (comb[0].sum(1) - 1).abs().max().item() > 1e-5
    torch.testing.assert_close(pre[0], torch.full((4,), 0.500001))
    torch.testing.assert_close(post[0], torch.full((4,), 1.4621172))


def test_mix_normalises_over_all_copies_and_assigns_rows_of_the_projection_to_pre_post_and_comb() -> None:
    x, fn = (100 * random(2, 32)).bfloat16(), torch.zeros(24, 32)
    fn[1, 3], fn[5, 7], fn[8 + 4 * 2 + 3, 31] = 1.0, 1.0, 1.0
    pre, post, comb = mhc.mhc_mix_sinkhorn(x, fn, torch.tensor([2.0, 3.0, 4.0]), torch.zeros(24))
    z = x.double() / x.double().square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(pre[:, 1].double(), torch.sigmoid(2 * z[:, 3]) + 1e-6, rtol=0, atol=1e-7)
    torch.testing.assert_close(post[:, 1].double(), 2 * torch.sigmoid(3 * z[:, 7]), rtol=0, atol=2e-7)
    assert (pre[:, 0] - 0.500001).abs().max() < 1e-7
    logits = torch.zeros(2, 4, 4, dtype=torch.float64)
    logits[:, 2, 3] = 4 * z[:, 31]
    torch.testing.assert_close(comb.double(), mhc.sinkhorn(logits, 20, 1e-6), rtol=0, atol=1e-7)


def test_mix_of_a_token_is_the_same_alone_and_in_a_batch() -> None:
    x, fn, base = random(17, 4 * 192).bfloat16(), random(24, 4 * 192, seed=1) / 28, random(24, seed=2)
    together = mhc.mhc_mix_sinkhorn(x, fn, torch.ones(3), base)
    alone = [mhc.mhc_mix_sinkhorn(x[row : row + 1], fn, torch.ones(3), base) for row in range(17)]
    for index, output in enumerate(together):
        assert torch.equal(output, torch.cat([result[index] for result in alone]))


def test_mix_refuses_a_projection_whose_rows_fit_no_number_of_copies() -> None:
    with pytest.raises(ContractError, match=r"wanted fn of \(2 \+ N\) \* N rows"):
        mhc.mhc_mix_sinkhorn(torch.zeros(1, 32).bfloat16(), torch.zeros(23, 32), torch.ones(3), torch.zeros(23))


def test_combine_with_a_one_hot_pre_returns_that_copy() -> None:
    x = random(3, 4 * 16).bfloat16()
    assert torch.equal(mhc.mhc_combine(x, torch.eye(4)[2:3].repeat(3, 1)), x[:, 32:48])


def test_combine_rounds_each_step_of_the_chain_once() -> None:
    x, pre = random(4, 4 * 32).bfloat16(), torch.rand(4, 4, generator=torch.Generator().manual_seed(5))
    got = mhc.mhc_combine(x, pre)
    for row in range(4):
        for lane in range(32):
            total = Fraction(0)
            for copy in range(4):
                exact = Fraction(x[row, 32 * copy + lane].item()) * Fraction(pre[row, copy].item()) + total
                total = Fraction(torch.tensor(float(exact), dtype=torch.float64).float().item())
            assert got[row, lane].item() == torch.tensor(float(total)).bfloat16().item()


def test_combine_norm_rounds_the_sum_to_bfloat16_before_the_statistic() -> None:
    # Copies that sum to 1 + 2^-9 per lane: bfloat16 rounds that to 1, so the norm of a constant row is exactly 1.
    x = torch.cat([torch.ones(1, 8), torch.full((1, 8), 2.0**-9)], 1).bfloat16()
    x[0, 0] = 2.0
    pre = torch.ones(1, 2)
    combined = mhc.mhc_combine(x, pre).double()
    assert combined[0].tolist() == [2.0] + [1.0] * 7
    expected = (combined * (combined.square().mean() + 1e-20).rsqrt()).float().bfloat16()
    assert torch.equal(mhc.mhc_combine_norm(x, pre, torch.ones(8).bfloat16()), expected)


@pytest.mark.parametrize(
    ("values", "eps", "expected"),
    [
        (torch.ones(4096), 0.0, 1.0),
        (torch.full((7168,), 2.0), 0.0, 1.0),
        (torch.full((8,), 2.0**-10), 2.0**-20, 0.70703125),
        (torch.zeros(8), 1e-6, 0.0),
        (torch.zeros(8), 1e-20, 0.0),
    ],
)
def test_combine_norm_statistic_is_wide_and_eps_is_under_the_root(
    values: torch.Tensor, eps: float, expected: float
) -> None:
    one_copy = torch.ones(1, 1)
    got = mhc.mhc_combine_norm(values[None].bfloat16(), one_copy, torch.ones(values.numel()).bfloat16(), eps)
    assert got.unique().tolist() == [expected]


def test_combine_norm_multiplies_by_the_weight_before_its_single_rounding() -> None:
    x, weight = torch.tensor([[1.0, 4.0]]).bfloat16(), torch.full((2,), 1.375).bfloat16()
    # Rounding before the weight would give 0.47265625; N3.3 fixes one rounding at the end for this operator.
    assert mhc.mhc_combine_norm(x, torch.ones(1, 1), weight, 0.0)[0, 0].item() == 0.470703125


def test_post_adds_the_first_copy_before_the_branch() -> None:
    # In this order the float32 product of the first copy is rounded, the branch product is not.
    first, branch = 1 + 2.0**-7, 1 + 2.0**-7
    comb = torch.zeros(1, 4, 4)
    comb[0, 0, 0] = 1 + 2.0**-23
    post = torch.tensor([[-(1 + 2.0**-23), 0.0, 0.0, 0.0]])
    residual = torch.zeros(1, 4, 1)
    residual[0, 0] = first
    got = mhc.mhc_post(torch.tensor([[branch]]).bfloat16(), residual.bfloat16(), post, comb)
    rounded = torch.tensor(first).mul(1 + 2.0**-23).double()
    exact = torch.tensor(branch).double() * (1 + 2.0**-23)
    assert got[0, 0, 0].item() == (rounded - exact).bfloat16().item() != 0


def test_post_reads_comb_as_source_then_destination() -> None:
    residual = random(1, 4, 8).bfloat16()
    comb = torch.zeros(1, 4, 4)
    comb[0, 1, 3] = 1.0
    got = mhc.mhc_post(torch.zeros(1, 8).bfloat16(), residual, torch.zeros(1, 4), comb)
    assert torch.equal(got[0, 3], residual[0, 1])
    assert got[0, :3].abs().max().item() == 0


def test_post_follows_the_bitwise_order_on_random_values() -> None:
    x, residual = random(3, 16).bfloat16(), random(3, 4, 16, seed=1).bfloat16()
    post, comb = random(3, 4, seed=2), random(3, 4, 4, seed=3)
    got = mhc.mhc_post(x, residual, post, comb)

    def single(value: Fraction) -> Fraction:
        return Fraction(torch.tensor(float(value), dtype=torch.float64).float().item())

    for token, copy, lane in torch.cartesian_prod(torch.arange(3), torch.arange(4), torch.arange(16)).tolist():
        total = single(Fraction(comb[token, 0, copy].item()) * Fraction(residual[token, 0, lane].item()))
        total = single(Fraction(post[token, copy].item()) * Fraction(x[token, lane].item()) + total)
        for source in range(1, 4):
            product = Fraction(comb[token, source, copy].item()) * Fraction(residual[token, source, lane].item())
            total = single(product + total)
        assert got[token, copy, lane].item() == torch.tensor(float(total)).bfloat16().item()


@pytest.mark.parametrize("name", ["mhc_mix_sinkhorn", "mhc_combine", "mhc_combine_norm", "mhc_post"])
def test_every_small_case_runs_and_meets_its_golden_values(name: str) -> None:
    contract = get(name)
    for case in contract.cases("small", 0):
        got = contract.reference(**case.inputs)
        names = [output.name for output in contract.outputs]
        outputs = dict(zip(names, got if isinstance(got, tuple) else (got,), strict=True))
        for output in contract.outputs:
            assert outputs[output.name].isfinite().all(), case.name
            assert outputs[output.name].dtype == getattr(torch, output.dtype), case.name
        for key, value in case.expected.items():
            assert torch.equal(outputs[key], value), case.name

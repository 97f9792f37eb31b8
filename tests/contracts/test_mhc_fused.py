"""Fused hyper-connection sites: order of roundings, what is quantised, and equality with their parts."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get, mhc, mhc_fused
from dspark_ops.contracts.quantize import fp8_grid_quantize, fp8_grid_round, mx_dequantize, mxfp8_quantize
from dspark_ops.contracts.scale_layouts import SF_128X4
from dspark_ops.errors import ContractError

NAMES = tuple(contract.name for contract in mhc_fused.CONTRACTS)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def site(tokens: int = 3, hidden: int = 32, **changes: Any) -> dict[str, torch.Tensor]:
    """Return random arguments of `mhc_post_combine`."""
    return {
        "x": random(tokens, hidden).bfloat16(), "residual": random(tokens, 4, hidden, seed=1).bfloat16(),
        "post": random(tokens, 4, seed=2).abs(), "comb": random(tokens, 4, 4, seed=3).abs(),
        "pre": random(tokens, 4, seed=4).abs(), **changes,
    }  # fmt: skip


def single(value: Fraction) -> Fraction:
    return Fraction(torch.tensor(float(value), dtype=torch.float64).float().item())


def test_the_sum_takes_rounded_copies_and_rounds_every_product_and_sum() -> None:
    arguments = site()
    new_residual, combined = mhc_fused.mhc_post_combine(**arguments)
    assert torch.equal(new_residual, mhc.mhc_post(*(arguments[name] for name in ("x", "residual", "post", "comb"))))
    for token, lane in torch.cartesian_prod(torch.arange(3), torch.arange(32)).tolist():
        total = Fraction(0)
        for copy in range(4):
            weight, value = arguments["pre"][token, copy].item(), new_residual[token, copy, lane].item()
            total = single(total + single(Fraction(weight) * Fraction(value)))
        assert combined[token, lane].item() == torch.tensor(float(total)).bfloat16().item()


def test_the_sum_is_not_the_chain_of_fused_multiply_adds() -> None:
    arguments = site(64, 1024)
    new_residual, combined = mhc_fused.mhc_post_combine(**arguments)
    chain = mhc.mhc_combine(new_residual.flatten(1), arguments["pre"])
    assert 0 < (combined != chain).sum() < 100


def test_a_one_hot_pre_and_copies_kept_apart_return_one_old_copy_plus_its_share_of_the_branch() -> None:
    one_hot = torch.eye(4)[2:3].repeat(3, 1)
    arguments = site(pre=one_hot, comb=torch.eye(4).repeat(3, 1, 1), post=torch.zeros(3, 4))
    new_residual, combined = mhc_fused.mhc_post_combine(**arguments)
    assert torch.equal(new_residual, arguments["residual"])
    assert torch.equal(combined, arguments["residual"][:, 2])


def test_a_permutation_moves_source_copies_to_their_destinations() -> None:
    moves = torch.zeros(3, 4, 4)
    moves[:, [0, 1, 2, 3], [2, 0, 3, 1]] = 1.0
    new_residual, _ = mhc_fused.mhc_post_combine(**site(comb=moves, post=torch.zeros(3, 4)))
    assert torch.equal(new_residual[:, [2, 0, 3, 1]], site()["residual"])


def test_the_norm_is_within_an_ulp_of_float64_and_of_the_rounded_sum() -> None:
    arguments, weight = site(24, 256), (1 + 0.2 * random(256, seed=5)).bfloat16()
    _, combined, normed = mhc_fused.mhc_post_combine_norm(**arguments, weight=weight)
    values = combined.double()
    exact = values * (values.square().mean(-1, keepdim=True) + 1e-20).rsqrt() * weight.double()
    steps = normed.view(torch.int16).int() - exact.float().bfloat16().view(torch.int16).int()
    assert steps.abs().max().item() <= 1


def test_tokens_of_zeros_stay_zeros_at_an_eps_of_1e_20() -> None:
    zeros = {"x": torch.zeros(3, 32).bfloat16(), "residual": torch.zeros(3, 4, 32).bfloat16()}
    for output in mhc_fused.mhc_post_combine_norm_fp8_grid(**site(**zeros), weight=torch.ones(32).bfloat16()):
        assert output.abs().max().item() == 0


def test_the_grid_is_that_of_the_normed_output_and_what_its_codes_mean() -> None:
    weight = (1 + 0.2 * random(96, seed=5)).bfloat16()
    outputs = mhc_fused.mhc_post_combine_norm_fp8_grid(**site(5, 96), weight=weight)
    plain = mhc_fused.mhc_post_combine_norm(**site(5, 96), weight=weight)
    assert all(torch.equal(a, b) for a, b in zip(outputs[:3], plain, strict=True))
    assert torch.equal(outputs[3], fp8_grid_round(outputs[2]))
    assert torch.equal(outputs[3].float(), mx_dequantize(*fp8_grid_quantize(outputs[2])))
    assert not torch.equal(outputs[3], outputs[2])


@pytest.mark.parametrize("tokens", [1, 2, 5, 6, 8, 129])
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3])
def test_mxfp8_is_the_quantised_output_of_the_norm_with_zero_padding(tokens: int, magnitude: float) -> None:
    x, pre = (magnitude * random(tokens, 4 * 160)).bfloat16(), random(tokens, 4, seed=1).bfloat16()
    weight = (1 + 0.2 * random(160, seed=2)).bfloat16()
    y, q, scales = mhc_fused.mhc_combine_norm_mxfp8(x, pre, weight, 1e-6)
    assert torch.equal(y, mhc.mhc_combine_norm(x, pre, weight, 1e-6))
    codes, linear = mxfp8_quantize(y, "sf_linear")
    assert torch.equal(q.view(torch.uint8), codes.view(torch.uint8))
    assert scales.numel() == 8 * 128 * -(-tokens // 128)
    assert torch.equal(SF_128X4.unpack(scales, tokens, 5).flatten(), linear)
    assert int((scales != 0).sum()) == 5 * tokens


def test_the_scales_of_eight_tokens_of_v41_are_20480_bytes() -> None:
    x = random(8, 4 * 5120).bfloat16()
    _, q, scales = mhc_fused.mhc_combine_norm_mxfp8(x, torch.ones(8, 4), torch.ones(5120).bfloat16())
    assert (q.shape, scales.numel()) == ((8, 5120), 20480)


def test_a_hidden_size_that_is_no_multiple_of_32_is_refused() -> None:
    with pytest.raises(ContractError, match="whole groups of 32, got 48"):
        mhc_fused.mhc_combine_norm_mxfp8(random(1, 192).bfloat16(), torch.ones(1, 4), torch.ones(48).bfloat16())


def test_codes_of_a_value_that_was_not_rounded_to_bfloat16_are_found() -> None:
    contract = get("mhc_combine_norm_mxfp8")

    def careless(x: torch.Tensor, pre: torch.Tensor, weight: torch.Tensor, eps: float = 1e-20) -> Any:
        combined = mhc.mhc_combine(x, pre).double()
        exact = combined * (combined.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
        return exact.float().bfloat16(), *mxfp8_quantize(exact.float())

    problems = [str(failure) for failure in check_numbers(contract, careless)]
    assert any("output q" in problem for problem in problems)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_and_its_parts_meet_every_small_case(name: str) -> None:
    contract = get(name)
    assert check_numbers(contract, contract.reference) == []
    assert contract.decomposition is not None
    ops = SimpleNamespace(**{part: get(part).reference for part in contract.decomposition.parts})
    assert check_numbers(contract, partial(contract.decomposition.compose, ops)) == []

"""Router gate: golden vectors, degenerate rows, padding, and where the rule differs from other engines'."""

from __future__ import annotations

import math

import pytest
import torch

from dspark_ops.contracts.moe import moe_gate_topk
from dspark_ops.errors import ContractError

NAN, INF = float("nan"), float("inf")


def gate(logits: list[float], bias: list[float] | None = None, top_k: int = 2, **options: object) -> tuple[list, list]:
    weights, ids = moe_gate_topk(
        torch.tensor([logits], dtype=torch.float32), torch.tensor(bias or [0.0] * len(logits)), top_k, **options
    )
    return ids[0].tolist(), weights[0].tolist()


@pytest.mark.parametrize(
    ("x", "score"),
    [
        (-20, 4.53999e-05), (-5, 0.08194723), (-1, 0.559698), (0, 0.83255461), (1, 1.14597630), (2, 1.458399),
        (20, 4.47213596), (25, 5.0),
    ],
)  # fmt: skip
def test_the_score_is_the_root_of_softplus(x: float, score: float) -> None:
    _, weights = gate([x], top_k=1, renorm_eps=0.0, routed_scaling=1.0)
    assert weights == [1.0]  # one expert alone has all the weight; its score shows beside an expert of score 5
    _, (whole, part) = gate([25.0, float(x)], [0.0, 0.0], routed_scaling=1.0)
    assert 5 * part / whole == pytest.approx(score, rel=2e-6)


def test_the_gate_vector_has_its_ids_and_weights() -> None:
    ids, weights = gate([0, 1, 1, -5, 25, 0.5], [0.5, 0, 0, 3, 0, 0], top_k=4)
    assert ids == [4, 3, 0, 1]
    assert weights == pytest.approx([1.062251, 0.0174097, 0.1768764, 0.2434629], rel=1e-6)


def test_rows_without_any_score_have_two_different_experts_and_no_weight() -> None:
    assert gate([-INF] * 8) == ([0, 1], [0.0, 0.0])
    assert gate([-200.0] * 8, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]) == ([7, 6], [0.0, 0.0])


def test_one_live_expert_takes_all_the_weight() -> None:
    assert gate([-INF] * 7 + [1.0], routed_scaling=1.0) == ([7, 0], [1.0, 0.0])


def test_a_bias_below_zero_everywhere_changes_no_weight() -> None:
    ids, weights = gate([2, 1, 0, 0, 0, 0, -1, -1], [-2.0] * 8, routed_scaling=1.0)
    assert ids == [0, 1]
    assert weights == pytest.approx([0.559980, 0.440020], abs=1e-6)


def test_a_nan_ranks_as_infinity_and_makes_the_weights_of_its_row_nan() -> None:
    # engines that rank a NaN last would give ids [2, 1] and finite weights for the first row
    ids, weights = gate([NAN, 1, 2, 0, 0, 0, 0, 0])
    assert ids == [0, 2] and all(math.isnan(weight) for weight in weights)
    ids, weights = gate([NAN] * 8)
    assert ids == [0, 1] and all(math.isnan(weight) for weight in weights)


def test_a_nan_ties_with_a_true_infinity_and_the_lower_id_goes_first() -> None:
    logits = [0.0] * 64
    logits[20], logits[50] = INF, NAN
    assert gate(logits)[0] == [20, 50]
    logits[20], logits[50] = NAN, INF
    assert gate(logits)[0] == [20, 50]


@pytest.mark.parametrize(
    "row",
    [[NAN] * 8, [INF] * 8, [-INF] * 8, [1e30, -1e30] * 4, [NAN, INF, -INF, 0, 0, 1e30, -1e30, -200]],
)
@pytest.mark.parametrize("top_k", [1, 2, 6, 8])
def test_no_expert_is_chosen_twice_whatever_the_row_holds(row: list[float], top_k: int) -> None:
    ids, _ = gate(row, top_k=top_k)
    assert len(set(ids)) == top_k and set(ids) <= set(range(8))


@pytest.mark.parametrize("pad_id", [-1, 0])
@pytest.mark.parametrize("valid", [0, 1, 3])
def test_padded_rows_have_the_pad_id_and_weight_zero_even_if_they_hold_nan(pad_id: int, valid: int) -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    clean = moe_gate_topk(logits, torch.zeros(8), 2)
    logits[valid:] = NAN
    weights, ids = moe_gate_topk(
        logits, torch.zeros(8), 2, pad_id=pad_id, num_valid=torch.tensor([valid], dtype=torch.int32)
    )
    assert torch.equal(weights[:valid], clean[0][:valid]) and torch.equal(ids[:valid], clean[1][:valid])
    assert (weights[valid:] == 0).all() and (ids[valid:] == pad_id).all()


def test_image_tokens_use_the_other_bias_and_text_tokens_are_bitwise_unmoved() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, bias, other = (torch.randn(*shape, generator=generator) for shape in ((4, 16), (16,), (16,)))
    ids = torch.tensor([7, 129264, 7, 129264])
    weights, chosen = moe_gate_topk(logits, bias, 3, bias_alt=other, input_ids=ids, alt_token_id=129264)
    for row, used in enumerate((bias, other, bias, other)):
        alone = moe_gate_topk(logits[row : row + 1], used, 3)
        assert torch.equal(weights[row : row + 1], alone[0]) and torch.equal(chosen[row : row + 1], alone[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_within_float32_rounding_of_exact_arithmetic(dtype: torch.dtype) -> None:
    logits = (torch.randn(300, 384, generator=torch.Generator().manual_seed(3)) * 4).to(dtype)
    weights, ids = moe_gate_topk(logits, torch.zeros(384), 6)
    exact = torch.nn.functional.softplus(logits.double(), threshold=60).sqrt().gather(1, ids.long())
    torch.testing.assert_close(
        weights.double(), exact / exact.sum(-1, keepdim=True) * 1.5, rtol=1e-6, atol=0, check_dtype=False
    )


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    logits = torch.randn(65, 384, generator=torch.Generator().manual_seed(4))
    weights, ids = moe_gate_topk(logits, torch.zeros(384), 6)
    for row in (0, 1, 63, 64):
        alone = moe_gate_topk(logits[row : row + 1], torch.zeros(384), 6)
        assert torch.equal(weights[row : row + 1], alone[0]) and torch.equal(ids[row : row + 1], alone[1])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"top_k": 9}, "top_k is 9: wanted 1 to 8"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 2, "numerics": "log2"}, "numerics is 'log2': wanted log1p or aiter"),
        ({"top_k": 2, "numerics": "aiter"}, "defined for 384 experts and up to 16 choices: got 8 and 2"),
        ({"top_k": 2, "bias_alt": torch.zeros(8)}, "input_ids is None"),
        ({"top_k": 2, "input_ids": torch.zeros(1).long()}, "bias_alt is None"),
    ],
)
def test_wrong_options_are_refused_with_what_was_wanted(options: dict, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        moe_gate_topk(torch.zeros(1, 8), torch.zeros(8), **options)

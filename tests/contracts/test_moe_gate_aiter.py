"""The router gate with AITER's numerics: its own score, its rank of NaN, and equal keys in the order of its lanes."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from dspark_ops.contracts.moe import moe_gate_topk
from dspark_ops.contracts.moe_gate_aiter import EXPERTS, NETWORK

INF, NAN = math.inf, math.nan


def gate(logits: torch.Tensor, bias: torch.Tensor | None = None, top_k: int = 6, **options: object) -> tuple:
    bias = torch.zeros(EXPERTS) if bias is None else bias
    return moe_gate_topk(
        logits.expand(1, -1) if logits.dim() == 1 else logits, bias, top_k, numerics="aiter", **options
    )


def lanes(keys: list[float], top_k: int) -> list[int]:
    """The order of choice, lane by lane and one exchange at a time."""
    offers = []
    for lane in range(64):
        held = [(keys[lane + 64 * slot], lane + 64 * slot) for slot in range(6)]
        for left, right in NETWORK:
            if held[left][0] < held[right][0]:
                held[left], held[right] = held[right], held[left]
        offers.append(held)
    ids = []
    for _ in range(top_k):
        heads = [held[0] if held else (-INF, 0) for held in offers]
        best = max(range(64), key=lambda lane: (heads[lane][0], -lane))
        ids.append(heads[best][1])
        offers[best] = offers[best][1:]
    return ids


def score(x: float) -> float:
    """The formula in float64."""
    return math.sqrt(x if x > 20 else math.log2(1 + 2 ** (x * math.log2(math.e))) * math.log(2))


def test_the_network_sorts_every_order_of_six() -> None:
    for bits in product((0, 1), repeat=6):  # a network that sorts all zeros and ones sorts everything
        held = list(bits)
        for left, right in NETWORK:
            if held[left] < held[right]:
                held[left], held[right] = held[right], held[left]
        assert held == sorted(bits, reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_choices_are_those_of_the_lanes_whatever_is_equal(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    bias = torch.randint(-2, 3, (EXPERTS,), generator=generator).float()
    bias[torch.rand(EXPERTS, generator=generator) < 0.2 * seed] = -INF
    # with logits of -inf every score is 0 and the bias is the key
    _, ids = gate(torch.full((EXPERTS,), -INF), bias, 16)
    assert ids[0].tolist() == lanes(bias.tolist(), 16)


def test_equal_keys_go_by_lane_and_not_by_the_lowest_id() -> None:
    bias = torch.full((EXPERTS,), -1.0)
    bias[[0, 1, 64]] = 2.0
    assert gate(torch.full((EXPERTS,), -INF), bias, 3)[1].tolist() == [[0, 64, 1]]
    assert moe_gate_topk(torch.full((1, EXPERTS), -INF), bias, 3)[1].tolist() == [[0, 1, 64]]


def test_a_lane_that_has_offered_all_six_goes_on_with_expert_0_and_no_weight() -> None:
    weights, ids = gate(torch.full((EXPERTS,), NAN), top_k=9)
    assert ids.tolist() == [[0, 64, 128, 192, 256, 320, 0, 0, 0]]
    assert weights.tolist() == [[0.0] * 9]
    logits = torch.full((EXPERTS,), NAN)
    logits[0] = 1.0
    weights, ids = gate(logits, top_k=8)
    assert ids[0, 0] == 0 and ids[0, 6:].tolist() == [0, 0]
    assert weights.tolist() == [[1.5, *[0.0] * 7]]  # expert 0 named again weighs nothing


def test_logits_up_to_minus_16_point_64_score_exactly_zero() -> None:
    logits = torch.full((EXPERTS,), -INF)
    logits[0], logits[1], logits[2] = 0.0, -16.6356, -16.63
    weights, ids = gate(logits, top_k=3)
    chosen = dict(zip(ids[0].tolist(), weights[0].tolist(), strict=True))
    assert chosen.get(1, 0.0) == 0.0 and chosen[2] > 0
    plain = moe_gate_topk(logits[None], torch.zeros(EXPERTS), 3)
    assert plain[1].tolist() == [[0, 2, 1]] and plain[0][0, 2] > 0


def test_weights_are_scores_over_their_sum_or_over_the_least_divisor() -> None:
    logits = torch.randn(EXPERTS, generator=torch.Generator().manual_seed(5)) * 4
    weights, ids = gate(logits)
    scores = [score(logits[index].item()) for index in ids[0].tolist()]
    assert weights[0].tolist() == pytest.approx([1.5 * one / sum(scores) for one in scores], rel=1e-6)
    weights, _ = gate(logits, renorm_eps=100.0, routed_scaling=2.0)
    assert weights[0].tolist() == pytest.approx([2 * one / 100 for one in scores], rel=1e-6)
    assert gate(torch.full((EXPERTS,), -INF), renorm_eps=0.0)[0].tolist() == [[0.0] * 6]


def test_a_nan_is_chosen_last_and_an_infinite_logit_counts_as_the_largest_float32() -> None:
    logits = torch.full((EXPERTS,), -3.0)
    logits[7], logits[9], logits[70] = NAN, INF, torch.finfo(torch.float32).max
    weights, ids = gate(logits, top_k=2)
    assert ids.tolist() == [[70, 9]]  # equal keys: lane 6 before lane 9
    assert weights.tolist() == [[0.75, 0.75]]
    bias = torch.zeros(EXPERTS)
    bias[70] = NAN
    assert gate(logits, bias, 1)[1].tolist() == [[9]]


def test_padding_and_the_other_bias_are_those_of_the_gate() -> None:
    generator = torch.Generator().manual_seed(6)
    logits, bias, other = (torch.randn(*shape, generator=generator) for shape in ((3, EXPERTS), (EXPERTS,), (EXPERTS,)))
    logits[2] = NAN
    tokens = torch.tensor([5, 9, 5])
    weights, ids = gate(
        logits, bias, pad_id=0, num_valid=torch.tensor([2], dtype=torch.int32), bias_alt=other, input_ids=tokens,
        alt_token_id=9,
    )  # fmt: skip
    for row, used in ((0, bias), (1, other)):
        alone = gate(logits[row], used)
        assert torch.equal(weights[row], alone[0][0]) and torch.equal(ids[row], alone[1][0])
    assert ids[2].tolist() == [0] * 6 and weights[2].tolist() == [0.0] * 6

"""Index scores: both numerics by hand, the exact mask, pages behind the last entry, and why ties are common."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.conformance.compare import compare
from dspark_ops.contracts.index_scores import INDEX_SCORES, head_sum, index_scores
from dspark_ops.contracts.layouts import page_layout
from dspark_ops.errors import ContractError

INF = float("inf")
PAGES = page_layout("index_k_page68")


@pytest.fixture
def step() -> dict:
    """Six rows of 32 heads over eight pages of 64 keys."""
    generator = torch.Generator().manual_seed(1)
    cache = torch.zeros(9, PAGES.page_bytes(64), dtype=torch.uint8)
    PAGES.store(cache, torch.arange(9 * 64), torch.randn(9 * 64, 128, generator=generator), 64)
    codes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6])
    return {
        "q": codes[torch.randint(0, 15, (6, 32, 128), generator=generator)].bfloat16(),
        "weights": (torch.randn(6, 32, generator=generator) * 0.05).bfloat16(),
        "cache": cache,
        "page_table": torch.stack([torch.randperm(9, generator=generator)[:8] for _ in range(6)]).int(),
        "lengths": torch.tensor([512, 511, 65, 64, 1, 0], dtype=torch.int32),
        "page_size": 64,
    }


def keys_of(step: dict, row: int) -> torch.Tensor:
    slots = torch.cat([torch.arange(64) + 64 * int(page) for page in step["page_table"][row]])
    return PAGES.load(step["cache"], slots, 64)


def test_bf16_steps_round_the_dot_the_product_and_the_sum(step: dict) -> None:
    scores = index_scores(**step)
    for row, length in enumerate(step["lengths"].tolist()):
        dots = (step["q"][row].float() @ keys_of(step, row).T).bfloat16()
        products = dots.relu() * step["weights"][row].unsqueeze(1)  # of two bfloat16 values, rounded to bfloat16
        wanted = products.float().sum(0).bfloat16().float()
        assert torch.equal(scores[row, :length], wanted[:length])
        assert (scores[row, length:] == -INF).all()


def test_fp32_rounds_nothing_on_the_way(step: dict) -> None:
    scores = index_scores(**step, numerics="fp32")
    for row, length in enumerate(step["lengths"].tolist()):
        dots = step["q"][row].double() @ keys_of(step, row).double().T
        wanted = (dots.relu() * step["weights"][row].double().unsqueeze(1)).sum(0)
        torch.testing.assert_close(scores[row, :length].double(), wanted[:length], rtol=1e-6, atol=1e-6)
        assert (scores[row, length:] == -INF).all()


def test_the_sum_of_heads_by_hand() -> None:
    dots = torch.tensor(
        [[1.00390625, -3.0], [257.0, 8.0]]
    )  # 1 + 2**-8 and 257 lie in the middle of two bfloat16 values
    weights = torch.tensor([1.0, 0.5])
    assert head_sum(dots, weights, "bf16_steps").tolist() == [129.0, 4.0]
    assert head_sum(dots, weights, "fp32").tolist() == [129.50390625, 4.0]


def test_neither_numerics_passes_for_the_other(step: dict) -> None:
    steps, exact = index_scores(**step), index_scores(**step, numerics="fp32")
    bound = INDEX_SCORES.outputs[0].exact
    assert compare(steps, exact, bound) is not None and compare(exact, steps, bound) is not None
    assert 1e-3 < float((steps - exact)[0].norm() / exact[0].norm()) < 1e-2


def test_equal_scores_are_common_in_bf16_steps_and_rare_in_fp32(step: dict) -> None:
    assert index_scores(**step)[0].unique().numel() < 450
    assert index_scores(**step, numerics="fp32")[0].unique().numel() > 500


def test_a_score_of_minus_infinity_in_the_wrong_place_is_never_close(step: dict) -> None:
    scores = index_scores(**step)
    for place in ((0, 511), (4, 1)):
        wrong = scores.clone()
        wrong[place] = 0.0 if scores[place] == -INF else -INF
        assert compare(wrong, scores, INDEX_SCORES.outputs[0].exact) is not None


def test_pages_behind_the_last_entry_are_not_read(step: dict) -> None:
    wanted = index_scores(**step)
    table = step["page_table"].clone()
    table[2, 2:], table[3, 1:], table[4, 1:], table[5] = -1, 999, -1, -1
    assert torch.equal(index_scores(**{**step, "page_table": table}), wanted)


def test_a_row_has_the_same_bits_alone_and_in_a_batch(step: dict) -> None:
    for numerics in ("bf16_steps", "fp32"):
        together = index_scores(**step, numerics=numerics)
        for row in range(6):
            one = {key: step[key][row : row + 1] for key in ("q", "weights", "page_table", "lengths")}
            assert torch.equal(index_scores(**{**step, **one}, numerics=numerics)[0], together[row])


def test_wrong_calls_are_refused_with_what_was_wanted(step: dict) -> None:
    for change, text in (
        ({"numerics": "tf32"}, "numerics is 'tf32': wanted bf16_steps or fp32"),
        ({"q": step["q"][..., :64]}, "wanted 128 lanes"),
        ({"page_size": 32}, "wanted a cache of uint8"),
        ({"layout": "index_k_page86"}, "did you mean 'index_k_page68'"),
    ):
        with pytest.raises(ContractError, match=text):
            index_scores(**{**step, **change})

"""Candidate blocks: which blocks survive ties, NaN and infinities, the consumer form, and packed lengths."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ops import contracts
from dspark_ops.contracts.candidates import candidate_blocks, candidate_lengths
from dspark_ops.errors import ContractError

NAN, INF = float("nan"), float("inf")


def kept_blocks(scores: list[float], length: int, topk_blocks: int, block_size: int = 2) -> list[int]:
    """Blocks kept of a row in which entry i of block b holds scores[b] or, but for its first entry, -1."""
    row = [value for score in scores for value in (score, *[-1.0] * (block_size - 1))]
    masked, keep = candidate_blocks(
        torch.tensor([row]), torch.tensor([length], dtype=torch.int32), None, topk_blocks, block_size
    )
    assert keep is not None and masked[0, length:].eq(-INF).all()
    blocks = keep.view(len(scores), block_size)
    assert (blocks.all(1) == blocks.any(1)).all()
    return blocks.all(1).nonzero().flatten().tolist()


def test_the_best_blocks_are_kept_and_always_the_newest_one() -> None:
    assert kept_blocks([3, 1, 4, 1, 5, 0], 12, 3) == [2, 4, 5]
    assert kept_blocks([3, 1, 4, 1, 5, 0], 7, 2) == [2, 3]  # block 3 holds entry 6, the newest one
    assert kept_blocks([3, 1, 4, 1, 5, 0], 12, 6) == [0, 1, 2, 3, 4, 5]


def test_of_equal_blocks_the_lowest_are_kept() -> None:
    assert kept_blocks([0] * 8, 16, 3) == [0, 1, 7]
    assert kept_blocks([0.0, -0.0, 0.0, -0.0, 0.0], 10, 3) == [0, 1, 4]
    assert kept_blocks([1, 2, 2, 2, 2, 0], 12, 3) == [1, 2, 5]


def test_a_thousand_equal_blocks_keep_the_first_ones_where_a_library_top_k_does_not() -> None:
    assert kept_blocks([0.0] * 1000, 2000, 16) == [*range(15), 999]


def test_a_block_with_a_nan_uses_up_a_place_and_is_not_kept() -> None:
    assert kept_blocks([9, NAN, 8, 7, 0], 10, 3) == [0, 4]
    assert kept_blocks([9, NAN, NAN, NAN, 0], 10, 3) == []  # NaN ranks even before the newest block


def test_the_newest_block_is_kept_even_if_it_holds_a_nan() -> None:
    masked, keep = candidate_blocks(torch.tensor([[1, 2, NAN, 0]]), torch.tensor([4], dtype=torch.int32), None, 1, 2)
    assert keep.tolist() == [[False, False, True, True]]
    assert math.isnan(masked[0, 2]) and masked[0, [0, 1, 3]].tolist() == [1, 2, 0]


def test_a_nan_behind_the_visible_part_is_hidden_and_decides_nothing() -> None:
    masked, keep = candidate_blocks(torch.tensor([[1, 2, 3, NAN]]), torch.tensor([3], dtype=torch.int32), None, 2, 2)
    assert masked.tolist() == [[1, 2, 3, -INF]] and keep.all()


def test_blocks_of_minus_infinity_are_not_kept_but_for_the_newest() -> None:
    lens = torch.tensor([5, 0], dtype=torch.int32)
    masked, keep = candidate_blocks(torch.full((2, 6), -INF), lens, None, 3, 2)
    assert (masked == -INF).all()
    assert keep.tolist() == [[False] * 4 + [True] * 2, [False] * 6]


def test_infinite_scores_tie_with_the_newest_block_and_the_lower_ones_win() -> None:
    assert kept_blocks([INF, 1, INF, 0], 8, 2) == [0, 2]
    assert kept_blocks([INF, 1, INF, 0], 8, 3) == [0, 2, 3]


def test_a_last_block_that_is_cut_short_is_a_block() -> None:
    _, keep = candidate_blocks(torch.tensor([[0, 0, 0, 0, 9.0]]), torch.tensor([3], dtype=torch.int32), None, 1, 2)
    assert keep.tolist() == [[False, False, True, True, False]]
    _, keep = candidate_blocks(torch.tensor([[0, 0, 0, 0, 9.0]]), torch.tensor([5], dtype=torch.int32), None, 2, 2)
    assert keep.tolist() == [[True, True, False, False, True]]


def test_a_consumer_keeps_what_is_visible_and_published_and_publishes_nothing() -> None:
    logits = torch.tensor([[1, NAN, 3, 4, 5.0]])
    published = torch.tensor([[True, True, False, True, True]])
    masked, keep = candidate_blocks(logits, torch.tensor([4], dtype=torch.int32), published)
    assert keep is None
    assert math.isnan(masked[0, 1]) and masked[0, [0, 2, 3, 4]].tolist() == [1, -INF, 4, -INF]


def test_logits_of_other_float_types_become_float32() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    lens = torch.tensor([40, 9, 17], dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float16):
        masked, keep = candidate_blocks(logits.to(dtype), lens, None, 2)
        wanted, wanted_keep = candidate_blocks(logits.to(dtype).float(), lens, None, 2)
        assert masked.dtype == torch.float32 and torch.equal(masked, wanted) and torch.equal(keep, wanted_keep)


@settings(max_examples=150, deadline=None)
@given(
    row=st.lists(st.sampled_from([-INF, -1.0, -0.0, 0.0, 1.0, 2.0, INF, NAN]), min_size=1, max_size=30),
    length=st.integers(0, 30),
    topk_blocks=st.integers(1, 9),
    block_size=st.integers(1, 5),
)
def test_the_kept_set_is_that_of_a_sort_by_hand(
    row: list[float], length: int, topk_blocks: int, block_size: int
) -> None:
    length = min(length, len(row))
    visible = [value if column < length else -INF for column, value in enumerate(row)]
    scores = []
    for begin in range(0, len(row), block_size):
        block = visible[begin : begin + block_size]
        scores.append(NAN if any(math.isnan(value) for value in block) else max(block))
    if length:
        scores[(length - 1) // block_size] = INF
    ranked = sorted(
        range(len(scores)), key=lambda b: (not math.isnan(scores[b]), -scores[b] if scores[b] == scores[b] else 0)
    )
    kept = {block for block in ranked[:topk_blocks] if scores[block] > -INF}

    _, keep = candidate_blocks(
        torch.tensor([row]), torch.tensor([length], dtype=torch.int32), None, topk_blocks, block_size
    )
    assert keep[0].tolist() == [column // block_size in kept for column in range(len(row))]


@pytest.mark.parametrize(
    ("length", "topk_blocks", "blocks", "exact"),
    [
        (9, 1, 2, 1), (16384, 2048, 2048, 16384), (16385, 2048, 2049, 16377), (7, 256, 1, 7), (0, 2048, 0, 0),
        (0, 1, 0, 0), (9, 2048, 2, 9), (16383, 2048, 2048, 16383), (1048571, 2048, 131072, 16379),
    ],
)  # fmt: skip
def test_packed_lengths_with_exact_tail(length: int, topk_blocks: int, blocks: int, exact: int) -> None:
    block_lens, compact, _ = candidate_lengths(torch.tensor([length], dtype=torch.int32), topk_blocks, exact_tail=True)
    assert (int(block_lens), int(compact)) == (blocks, exact)


def test_packed_lengths_count_whole_blocks_unless_asked_otherwise() -> None:
    lens = torch.tensor([0, 1, 7, 8, 9, 16383, 16384, 16385, 1000000], dtype=torch.int32)
    block_lens, compact, table = candidate_lengths(lens)
    assert block_lens.tolist() == [0, 1, 1, 1, 2, 2048, 2048, 2049, 125000]
    assert compact.tolist() == [0, 8, 8, 8, 16, 16384, 16384, 16384, 16384]
    assert table.tolist() == [[0]] * 9 and table.dtype == torch.int32
    assert [list(item.shape) for item in candidate_lengths(lens[:0])] == [[0], [0], [0, 1]]


def test_the_packed_length_is_what_the_kept_blocks_hold() -> None:
    generator = torch.Generator().manual_seed(5)
    lens = torch.tensor([0, 1, 8, 9, 40, 63, 64], dtype=torch.int32)
    masked, keep = candidate_blocks(torch.randn(7, 64, generator=generator), lens, None, 3)
    _, exact, _ = candidate_lengths(lens, 3, exact_tail=True)
    assert (keep & (masked > -INF)).sum(1).tolist() == exact.tolist()
    _, whole, _ = candidate_lengths(lens, 3)
    assert keep.sum(1).tolist() == whole.tolist()


@pytest.mark.parametrize("sizes", [{"topk_blocks": 0}, {"block_size": 0}])
def test_sizes_that_are_not_positive_are_refused(sizes: dict[str, int]) -> None:
    lens = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ContractError, match="candidate_lengths: wanted positive"):
        candidate_lengths(lens, **sizes)
    with pytest.raises(ContractError, match="candidate_blocks: wanted positive"):
        candidate_blocks(torch.zeros(1, 8), lens, **sizes)


def test_a_published_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ContractError, match=r"wanted published \[1, 8\], got \[1, 9\]"):
        candidate_blocks(torch.zeros(1, 8), torch.ones(1, dtype=torch.int32), torch.ones(1, 9, dtype=torch.bool))


def test_the_model_states_its_candidate_sizes() -> None:
    (site,) = contracts.get("candidate_blocks").sites(contracts.model_shapes("deepseek-v4.1-flash/tp4"))
    assert site.options == {"topk_blocks": 2048, "block_size": 8}

"""Selection: ties, NaN rank, short rows, filters by score and place, slots through a page table."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark_ops.contracts.index_select import (
    filter_topk_pages,
    finish_topk_pages,
    topk_rows,
    topk_rows_nan_last,
)
from dspark_ops.contracts.ordering import order_by_score
from dspark_ops.errors import ContractError

NAN, INF = float("nan"), float("inf")


def best(row: list[float], length: int, top_k: int, order: str = "score", select: object = topk_rows) -> list[int]:
    ids = select(torch.tensor([row]), torch.tensor([length], dtype=torch.int32), top_k, order)
    assert ids.shape == (1, top_k) and ids.dtype == torch.int32
    return ids[0].tolist()


def test_sixty_ones_among_five_thousand_equal_zeros_fill_all_places() -> None:
    row = torch.zeros(1, 5000)
    row[0, 4000:4060] = 1.0
    lengths = torch.tensor([5000], dtype=torch.int32)
    assert topk_rows(row, lengths, 1024, "score")[0].tolist() == [*range(4000, 4060), *range(964)]
    assert topk_rows(row, lengths, 1024)[0].tolist() == [*range(964), *range(4000, 4060)]
    shared = torch.full((1, 5020), INF)
    shared[:, 7:5007] = row
    assert torch.equal(topk_rows(shared[:, 7:5007], lengths, 1024), topk_rows(row, lengths, 1024))


def test_a_nan_goes_first_and_under_the_other_rule_last() -> None:
    row = [1, NAN, 3, 3, 3, 2, NAN, 0, 3, 1]
    assert best(row, 10, 4) == [1, 6, 2, 3]
    assert best(row, 10, 4, select=topk_rows_nan_last) == [2, 3, 4, 8]
    assert best([-INF, NAN, INF], 3, 3) == [1, 2, 0]
    assert best([-INF, NAN, INF], 3, 3, select=topk_rows_nan_last) == [2, 0, 1]


def test_places_behind_the_visible_scores_hold_minus_one() -> None:
    assert best([5, 9, 7], 3, 4) == [1, 2, 0, -1]
    assert best([5, 9, 7], 3, 4, "position") == [0, 1, 2, -1]
    assert best([5, 9, 7], 2, 3) == [1, 0, -1]
    assert best([NAN, 9, 7], 0, 2) == [-1, -1]


def test_a_visible_minus_infinity_is_chosen_like_any_score() -> None:
    assert best([-INF] * 6, 6, 4) == [0, 1, 2, 3]
    assert best([-INF] * 6, 6, 4, select=topk_rows_nan_last) == [0, 1, 2, 3]


def test_both_zeros_and_all_nans_are_equal() -> None:
    assert best([-0.0, 0.0, -0.0, 0.0], 4, 3) == [0, 1, 2]
    nans = torch.tensor([[-1, 0x7FC00000, 0x7F800001]], dtype=torch.int32).view(torch.float32)
    assert order_by_score(nans).tolist() == [[0, 1, 2]]
    assert order_by_score(nans, nan="last").tolist() == [[0, 1, 2]]


@settings(max_examples=150, deadline=None)
@given(
    row=st.lists(st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0])), min_size=1, max_size=20),
    length=st.integers(0, 20),
    top_k=st.integers(1, 24),
)
def test_the_choice_is_that_of_a_stable_sort_by_hand(row: list[float], length: int, top_k: int) -> None:
    length = min(length, len(row))
    ranked = sorted(range(length), key=lambda column: (0,) if math.isnan(row[column]) else (1, -row[column]))[:top_k]
    rest = [-1] * (top_k - len(ranked))
    assert best(row, length, top_k) == ranked + rest
    assert best(row, length, top_k, "position") == sorted(ranked) + rest


@pytest.mark.parametrize(
    ("top_k", "order", "text"), [(0, "position", "top_k is 0"), (1, "value", "order is 'value': wanted position")]
)
def test_wrong_options_are_refused(top_k: int, order: str, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        best([1.0], 1, top_k, order)
    with pytest.raises(ContractError, match="nan is 'middle'"):
        order_by_score(torch.zeros(1, 1), nan="middle")


SCORES = torch.tensor([[0.5, NAN, -INF, INF, -0.0, 1.0]])
TABLE = torch.tensor([[7, 0, 2]], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_filter_keeps_the_order_and_drops_nan_minus_infinity_and_what_is_outside(dtype: torch.dtype) -> None:
    indices = torch.tensor([[5, 1, 2, 3, -1, 6, 4, 5, 2**31 - 1]], dtype=dtype)
    pages, raw = torch.full((1, 9), -7, dtype=torch.int32), torch.full((1, 9), -7, dtype=dtype)
    assert filter_topk_pages(SCORES, indices, TABLE, pages, 2, raw) is None
    assert pages.tolist() == [[5, -1, -1, 1, -1, -1, 4, 5, -1]]
    assert raw.tolist() == [[5, -1, -1, 3, -1, -1, 4, 5, -1]]


def test_finishing_sorts_what_counts_and_clears_the_rest_of_the_output() -> None:
    indices = torch.tensor([[5, 1, 2, 3, -1, 6, 4, 0]])
    pages, raw = torch.full((3, 10), -7, dtype=torch.int32), torch.full((3, 10), -7)
    finish_topk_pages(SCORES, indices, torch.tensor([5], dtype=torch.int32), TABLE, pages, 2, raw)
    assert raw[0].tolist() == [0, 3, 4] + [-1] * 7
    assert pages[0].tolist() == [14, 1, 4] + [-1] * 7
    assert (pages[1:] == -1).all() and (raw[1:] == -1).all()


def test_finishing_without_a_look_at_scores_goes_by_place_alone() -> None:
    indices = torch.tensor([[5, 1, 2, 3, -1, 6, 4, 0]], dtype=torch.int32)
    pages, raw = torch.full((1, 8), -7, dtype=torch.int32), torch.full((1, 8), -7, dtype=torch.int32)
    finish_topk_pages(SCORES, indices, torch.tensor([99], dtype=torch.int32), TABLE, pages, 2, raw, False)
    assert raw[0].tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    finish_topk_pages(SCORES, indices, torch.tensor([2], dtype=torch.int32), TABLE, pages, 2, raw, False)
    assert raw[0].tolist() == [0, 1] + [-1] * 6 and pages[0].tolist() == [14, 15] + [-1] * 6


def test_the_two_forms_name_the_same_slots() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(5, 90, generator=generator)
    scores[:, ::7] = -INF
    ids = topk_rows(scores, torch.tensor([90, 3, 0, 64, 89], dtype=torch.int32), 40)
    table = torch.randperm(60, generator=generator).view(5, 12).int()
    filtered, finished = torch.zeros(5, 40, dtype=torch.int32), torch.zeros(5, 40, dtype=torch.int32)
    filter_topk_pages(scores, ids, table, filtered, 8)
    finish_topk_pages(scores, ids, torch.full((5,), 90, dtype=torch.int32), table, finished, 8)
    for row in range(5):
        assert [slot for slot in filtered[row].tolist() if slot >= 0] == [
            slot for slot in finished[row].tolist() if slot >= 0
        ]


@pytest.mark.parametrize(
    ("page_size", "pages", "raw", "text"),
    [
        (0, (1, 3), None, "page_size is 0"),
        (2, (1, 2), None, "page_indices"),
        (2, (1, 3), torch.full((1, 3), -7, dtype=torch.int32), "wanted raw_indices torch.int64"),
        (2, (1, 3), torch.full((1, 4), -7), r"wanted raw_indices torch.int64 \[1, 3\]"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_and_nothing_is_written(
    page_size: int, pages: tuple, raw: object, text: str
) -> None:
    out = torch.full(pages, -7, dtype=torch.int32)
    indices = torch.tensor([[0, 3, 5]])
    with pytest.raises(ContractError, match=f"filter_topk_pages.*{text}"):
        filter_topk_pages(SCORES, indices, TABLE, out, page_size, raw)
    with pytest.raises(ContractError, match=f"finish_topk_pages.*{text}"):
        finish_topk_pages(SCORES, indices, torch.ones(1, dtype=torch.int32), TABLE, out, page_size, raw)
    assert (out == -7).all() and (raw is None or (raw == -7).all())

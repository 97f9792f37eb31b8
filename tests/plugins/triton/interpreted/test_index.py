"""Index scores, finished pages, ragged schedules and the argmax over ranks against their contracts' cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case, Contract
from dspark_ops_triton.blocks.varctx_records import MOST_REQUESTS
from dspark_ops_triton.finish_pages import finish_topk_pages
from dspark_ops_triton.index_scores import Tiles, _index_scores, index_scores
from dspark_ops_triton.varctx import varctx_schedule
from dspark_ops_triton.vocab_pairs import argmax_vocab_parallel

Thinned = Callable[..., Contract]


def test_the_argmax_over_ranks_passes_every_case_of_its_contract() -> None:
    assert check_numbers(contracts.get("argmax_vocab_parallel"), argmax_vocab_parallel) == []


def test_finished_pages_pass_the_cases_of_their_contract(thinned: Thinned) -> None:
    def kept(case: Case) -> bool:
        return case.name.startswith("no rows") or case.inputs["scores"].shape[1] == 5

    assert check_numbers(thinned("finish_topk_pages", 5, kept), finish_topk_pages) == []


@pytest.mark.parametrize("repeated", [False, True])
def test_a_full_choice_is_put_in_order_from_any_order(repeated: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    indices = torch.randperm(900, generator=generator)[:512][None]
    if repeated:
        indices = indices // 9
    table = torch.arange(15, dtype=torch.int32)[None] + 100
    for choice in (indices, indices.sort().values):
        given = (torch.zeros(1, 900), choice, torch.tensor([800], dtype=torch.int32), table)
        got, wanted = (torch.zeros(1, 640, dtype=torch.int32) for _ in range(2))
        finish_topk_pages(*given, got, 64)
        contracts.get("finish_topk_pages").reference(*given, wanted, 64)
        assert torch.equal(got, wanted)


def test_the_ragged_schedule_passes_the_cases_of_its_contract(thinned: Thinned) -> None:
    few = thinned("varctx_schedule", 8, lambda case: bool(case.expected) or case.name == "no requests")
    assert check_numbers(few, varctx_schedule) == []


def test_the_most_requests_are_scheduled() -> None:
    generator = torch.Generator().manual_seed(0)
    lens = torch.randint(0, 3000, (MOST_REQUESTS,), generator=generator).int()
    got = varctx_schedule(lens, 64, 8190, 3000, 2)
    wanted = contracts.get("varctx_schedule").reference(lens, 64, 8190, 3000, 2)
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_index_scores_pass_the_cases_of_their_contract(thinned: Thinned) -> None:
    def kept(case: Case) -> bool:
        return case.name.startswith("no rows") or len(case.inputs["q"]) == 1

    assert check_numbers(thinned("index_scores", 4, kept), index_scores) == []


def test_the_scores_of_an_entry_do_not_depend_on_the_rows_of_the_call() -> None:
    case = next(case for case in contracts.get("index_scores").cases("small", 0) if len(case.inputs["q"]) == 6)
    inputs = case.inputs
    rows = ("q", "weights", "page_table", "lengths")
    alone = index_scores(**{**inputs, **{name: inputs[name][3:4] for name in rows}})
    assert torch.equal(index_scores(**inputs)[3:4], alone)


def test_scores_of_programs_of_several_tiles_are_the_same() -> None:
    case = next(case for case in contracts.get("index_scores").cases("small", 0) if len(case.inputs["q"]) == 6)
    each = (_index_scores(Tiles(entries=16, warps=4, programs=count), **case.inputs) for count in (0, 2))
    assert torch.equal(*each)


def test_calls_that_do_not_fit_are_refused() -> None:
    q, table = torch.zeros(1, 2, 128, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"a power of two, got index_k_page68, .* cache \[1, 70\]"):
        index_scores(q, q[:, :, 0], torch.zeros(1, 70, dtype=torch.uint8), table, table[0], 1)
    with pytest.raises(ValueError, match="enough for one each, got 3 requests of 2 rows, 4 programs"):
        varctx_schedule(torch.zeros(3, dtype=torch.int32), 64, 4, 100, 2)
    with pytest.raises(ValueError, match=r"got page_size 0, 1 choices, \[1, 1\] and raw_indices that fit"):
        finish_topk_pages(torch.zeros(1, 1), table, table[0], table, table.clone(), 0)

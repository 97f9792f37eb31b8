"""One rank's share of an argmax, candidate lengths and cache slots, against their contracts' cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from dspark_ops import contracts
from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import Case
from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.row_argmax import Tiles
from dspark_ops_triton.index_lengths import candidate_lengths, filter_topk_pages
from dspark_ops_triton.vocab_parallel import LocalArgmax, argmax_vocab_parallel_local


def _bound(tiles: Tiles) -> LocalArgmax:
    return LocalArgmax(tiles, 8, ArrivalState(0, torch.device("cpu")))


@pytest.mark.parametrize("function", [candidate_lengths, filter_topk_pages], ids=lambda function: function.__name__)
def test_a_kernel_passes_every_case_of_its_contract(function: Any) -> None:
    assert check_numbers(contracts.get(function.__name__), function) == []


@pytest.mark.parametrize(
    "function", [argmax_vocab_parallel_local, _bound(Tiles(512, 4, 2))], ids=["unprepared", "bound"]
)
def test_the_local_argmax_passes_its_special_cases_and_some_random_ones(function: Any) -> None:
    contract = contracts.get("argmax_vocab_parallel_local")

    def cases(scale: str, seed: int) -> Iterator[Case]:
        for index, case in enumerate(contract.cases(scale, seed)):
            if index % 11 == 0 or not case.name.startswith(("random", "coarse", "bfloat16", "all equal", "columns")):
                yield case

    assert check_numbers(replace(contract, cases=cases), function) == []


def test_the_pairs_of_all_ranks_give_the_argmax_of_the_whole_row() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 400, generator=generator).round()
    logits[2, 390] = float("nan")
    bound = _bound(Tiles(32, 4, 8))
    pairs = torch.stack([bound(shard, rank, 90 if rank == 3 else -1) for rank, shard in enumerate(logits.chunk(4, 1))])
    ids = contracts.get("argmax_vocab_parallel").reference(pairs)
    logits[2, 390] = -1.0  # beyond the 90 valid columns of the last rank
    assert torch.equal(ids, logits[:, :390].argmax(-1))
    for words in bound._arrivals._streams.values():
        assert not words.any()


def test_calls_that_do_not_fit_are_refused() -> None:
    x = torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"valid_cols of -1 to 4, .* got rank 0, valid_cols 5"):
        argmax_vocab_parallel_local(x, 0, 5)
    with pytest.raises(ValueError, match="got 0 and 8"):
        candidate_lengths(torch.zeros(1, dtype=torch.int32), 0)
    ids = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"got page_size 1, \[2, 3\] and raw_indices that do not"):
        filter_topk_pages(x, ids, ids, ids, 1, ids.long())


def test_nothing_is_launched_for_no_rows() -> None:
    ids = torch.zeros(0, 3, dtype=torch.int32)
    assert argmax_vocab_parallel_local(torch.zeros(0, 4)).shape == (2, 0)
    assert candidate_lengths(ids[:, 0])[2].shape == (0, 1)
    filter_topk_pages(torch.zeros(0, 4), ids, ids, ids.clone(), 1)

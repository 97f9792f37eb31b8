"""Argmax over ranks, all of them in one process: what the whole row gives, whatever the split."""

from __future__ import annotations

import pytest
import torch

from dspark_ops.conformance.numbers import check_numbers
from dspark_ops.contracts import get, model_shapes
from dspark_ops.contracts.argmax import argmax_rows
from dspark_ops.contracts.vocab_parallel import (
    argmax_vocab_parallel,
    argmax_vocab_parallel_local,
    special_rows,
)
from dspark_ops.errors import ContractError

NAN, INF = float("nan"), float("inf")
WORLDS = [1, 2, 3, 4, 8]


def over_ranks(logits: object, ranks: int, valid: list[int] | None = None) -> list[int]:
    """Return the ids that `ranks` ranks agree on; each reduces its shard, then all gathered pairs."""
    width = logits.shape[1] // ranks
    shards = [logits[:, rank * width : (rank + 1) * width] for rank in range(ranks)]
    columns = valid or [-1] * ranks
    gathered = torch.stack(
        [argmax_vocab_parallel_local(shard, rank, columns[rank]) for rank, shard in enumerate(shards)]
    )
    return argmax_vocab_parallel(gathered).tolist()


@pytest.mark.parametrize("name", ["argmax_vocab_parallel_local", "argmax_vocab_parallel"])
def test_the_reference_gives_every_case_its_known_values(name: str) -> None:
    assert check_numbers(get(name), get(name).reference) == []


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("rows", [0, 1, 24, 192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_ids_are_those_of_the_whole_rows(ranks: int, rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, ranks * 24, generator=generator).to(dtype)
    for values in (logits, (logits * 2).round(), torch.zeros_like(logits)):
        assert over_ranks(values, ranks) == argmax_rows(values).tolist()
        assert over_ranks(values, ranks) == values.float().argmax(-1).tolist()


@pytest.mark.parametrize("ranks", WORLDS)
def test_nan_infinities_ties_and_signed_zeros_across_ranks(ranks: int) -> None:
    logits, wanted = special_rows(ranks * 8)
    assert over_ranks(logits, ranks) == wanted
    assert argmax_rows(logits).tolist() == wanted


@pytest.mark.parametrize("ranks", WORLDS)
def test_a_nan_in_every_shard_and_ties_in_every_shard_give_the_first(ranks: int) -> None:
    logits = torch.zeros(2, ranks * 4)
    logits[0, 2::4] = NAN
    logits[1, 3::4] = 7.0
    assert over_ranks(logits, ranks) == [2, 3]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_columns_behind_the_vocabulary_are_ignored(ranks: int) -> None:
    logits = torch.full((1, ranks * 4), -3.0)
    logits[:, -2:] = NAN
    logits[:, -1] = 9.0
    valid = [-1] * (ranks - 1) + [2]
    assert over_ranks(logits, ranks, valid) == [0]
    logits[:, -3] = 1.0
    assert over_ranks(logits, ranks, valid) == [ranks * 4 - 3]


@pytest.mark.parametrize("ranks", WORLDS)
def test_an_empty_shard_loses_to_any_column_even_to_minus_infinity(ranks: int) -> None:
    logits = torch.full((1, ranks * 4), -INF)
    assert over_ranks(logits, ranks, [0] * (ranks - 1) + [-1]) == [(ranks - 1) * 4]
    assert over_ranks(logits, ranks, [0] * ranks) == [0]


def test_pairs_are_value_bits_then_the_global_index() -> None:
    logits = torch.tensor([[1.0, -2.0, 1.5], [-INF, -INF, -INF], [0.0, NAN, 3.0], [-0.0, -1.0, 0.0]])
    values, tokens = argmax_vocab_parallel_local(logits, 2).tolist()
    assert values == [0x3FC00000, 0xFF800000, 0x7FC00000, 0]
    assert tokens == [8, 6, 7, 6]
    values, tokens = argmax_vocab_parallel_local(logits, 2, 0).tolist()
    assert values == [0xFF800000] * 4 and tokens == [2**63 - 1] * 4


def test_pairs_of_a_rank_lie_in_memory_as_all_values_then_all_tokens() -> None:
    pairs = argmax_vocab_parallel_local(torch.eye(3), 1)
    assert pairs.is_contiguous()
    assert pairs.view(-1).tolist() == [0x3F800000] * 3 + [3, 4, 5]


def test_an_index_beyond_32_bits_survives() -> None:
    pairs = argmax_vocab_parallel_local(torch.tensor([[0.0, 1.0]]), 2**31)
    assert argmax_vocab_parallel(pairs.unsqueeze(0)).tolist() == [2**32 + 1]


@pytest.mark.parametrize(
    ("options", "text"),
    [({"rank": -1}, "rank -1"), ({"valid_cols": 5}, "valid_cols 5: wanted .* to 4"), ({"valid_cols": -2}, "-2")],
)
def test_a_rank_or_column_count_that_cannot_be_is_refused(options: dict, text: str) -> None:
    with pytest.raises(ContractError, match=text):
        argmax_vocab_parallel_local(torch.zeros(1, 4), **options)


def test_a_shard_of_the_model_is_a_fourth_of_its_vocabulary() -> None:
    shapes = model_shapes("deepseek-v4.1-flash/tp4")
    assert (shapes.ranks, shapes.vocab_shard) == (4, 32320)
    assert shapes.sharded(2).ranks == 8 and model_shapes("deepseek-v4.1-flash").vocab_shard == 129280
    assert get("argmax_vocab_parallel_local").sites(shapes)[0].axes["C"] == 32320

"""Tokens from logits that no rank has whole: what one rank would find, for any number of ranks and any padding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dspark_ops.contracts.argmax import argmax_rows
from dspark_ops.contracts.markov import markov_block
from dspark_ops.contracts.vocab_parallel import argmax_vocab_parallel, argmax_vocab_parallel_local, special_rows
from dspark_ops.decode.ranks.group import SOLO
from dspark_ops.decode.ranks.shards import Shards
from dspark_ops.decode.ranks.threads import ThreadGroup, run_in_threads
from dspark_ops.decode.ranks.vocab import Vocabulary

WORLDS = (1, 2, 3, 4, 8)
OPS: Any = SimpleNamespace(
    argmax_vocab_parallel_local=argmax_vocab_parallel_local, argmax_vocab_parallel=argmax_vocab_parallel
)


def shard_of(whole: torch.Tensor, ranks: int, rank: int, padding: float = 1e30) -> torch.Tensor:
    """This rank's columns, with padding that would win if it were looked at."""
    shards = Shards(whole.shape[-1], ranks)
    part = shards.cut(whole, rank, whole.dim() - 1)
    part[..., shards.valid(rank) :] = padding
    return part


def tokens_on(ranks: int, logits: torch.Tensor) -> list[torch.Tensor]:
    def work(group: ThreadGroup) -> torch.Tensor:
        vocabulary = Vocabulary(group, Shards(logits.shape[1], ranks))
        return vocabulary.argmax(OPS, shard_of(logits, ranks, group.rank))

    return run_in_threads(ranks, work)


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("vocab", [1, 7, 9, 97, 128])
def test_every_rank_finds_the_token_of_the_whole_row(vocab: int, ranks: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    smooth = torch.randn(20, vocab, generator=generator)
    logits = torch.cat((smooth, smooth.round()))  # the second half is full of ties
    for found in tokens_on(ranks, logits):
        assert found.dtype == torch.int64
        assert torch.equal(found, argmax_rows(logits))


@pytest.mark.parametrize("ranks", WORLDS)
def test_nan_infinity_ties_and_signed_zeros_follow_the_rule_of_whole_rows(ranks: int) -> None:
    rows, wanted = special_rows(9)  # on eight ranks five hold columns, the last of them one, and three none
    for found in tokens_on(ranks, rows):
        assert found.tolist() == wanted


def test_a_row_of_minus_infinity_gives_index_zero_on_any_number_of_ranks() -> None:
    for ranks in WORLDS:
        assert [found.tolist() for found in tokens_on(ranks, torch.full((2, 5), -torch.inf))] == [[0, 0]] * ranks


def test_sixteen_bytes_per_row_and_rank_are_gathered_at_once_however_many_rows_there_are() -> None:
    logits = torch.randn(130, 97, generator=torch.Generator().manual_seed(0))
    sizes: list[int] = []

    def local(part: torch.Tensor, rank: int, columns: int) -> torch.Tensor:
        sizes.append(len(part))
        return argmax_vocab_parallel_local(part, rank, columns)

    ops = SimpleNamespace(argmax_vocab_parallel_local=local, argmax_vocab_parallel=argmax_vocab_parallel)

    def work(group: ThreadGroup) -> tuple[int, int, bool]:
        found = Vocabulary(group, Shards(97, 4)).argmax(ops, shard_of(logits, 4, group.rank))
        return group.collectives, group.gathered_bytes, torch.equal(found, argmax_rows(logits))

    assert run_in_threads(4, work) == [(1, 16 * 130, True)] * 4
    assert sorted(sizes) == [2] * 4 + [64] * 8  # a plan covers 64 rows


def test_whole_rows_are_put_together_without_the_padding() -> None:
    logits = torch.randn(2, 3, 97, generator=torch.Generator().manual_seed(1))
    for ranks in WORLDS:
        vocabulary = Shards(97, ranks)
        found = run_in_threads(
            ranks,
            lambda group, vocabulary=vocabulary, ranks=ranks: Vocabulary(group, vocabulary).whole(
                shard_of(logits, ranks, group.rank)
            ),
        )
        assert all(torch.equal(whole, logits) for whole in found)
    assert Vocabulary(SOLO, Shards(97, 1)).whole(logits).data_ptr() == logits.data_ptr()


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "drawn"])
def test_a_cut_markov_head_drafts_what_the_whole_one_does(ranks: int, sampled: bool) -> None:
    generator = torch.Generator().manual_seed(7)
    base = torch.randn(3, 5, 97, generator=generator)
    base[0] = base[0].round()
    embed, head = (torch.randn(97, 8, generator=generator).bfloat16() for _ in range(2))
    anchor = torch.tensor([3, 96, 0])
    law: dict[str, torch.Tensor] = {}
    if sampled:
        law = {
            "uniforms": torch.rand(3, 5, generator=generator),
            "temperature": torch.tensor([0.0, 0.7, 1.3]),
        }
    drafts, probs = markov_block(base, anchor, embed, head, **law)

    def work(group: ThreadGroup) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        shards = Shards(97, ranks)
        vocabulary = Vocabulary(group, shards)
        found = vocabulary.markov_block(
            OPS, shard_of(base, ranks, group.rank), anchor, embed, shards.cut(head, group.rank), **law
        )
        return *found, group.gathered_bytes

    for found, found_probs, gathered in run_in_threads(ranks, work):
        assert torch.equal(found, drafts)
        assert (found_probs is None) == (probs is None)
        if probs is not None and found_probs is not None:
            assert torch.equal(found_probs, probs)
        else:
            assert gathered == 16 * 3 * 5


def test_a_rank_that_raises_stops_the_others_and_its_error_is_what_the_caller_gets() -> None:
    def work(group: ThreadGroup) -> None:
        if group.rank == 2:
            raise ValueError("this rank is broken")
        group.gather(torch.zeros(1))

    with pytest.raises(ValueError, match="this rank is broken"):
        run_in_threads(4, work)

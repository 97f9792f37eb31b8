"""What ranks tell each other without a collective: in time, or an error that says which rank was missing."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dspark_ops.decode.ranks.distributed import DistributedGroup, PeerError
from dspark_ops.errors import ModelError, RankError


def groups(size: int, seconds: float = 20.0) -> list[DistributedGroup]:
    store = dist.HashStore()
    return [DistributedGroup(store, rank, size, seconds=seconds) for rank in range(size)]


def together(size: int, *topics: str) -> list[Any]:
    """What each rank gets for its text, or its error."""
    ranks = groups(size)
    found: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            found[rank] = [ranks[rank].exchange(topic, f"{topic}\n{rank}") for topic in topics[rank].split()]
        except RankError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_every_rank_gets_all_texts_of_each_topic_in_the_order_of_the_ranks() -> None:
    wanted = [["a\n0", "a\n1", "a\n2"], ["b\n0", "b\n1", "b\n2"], ["a\n0", "a\n1", "a\n2"]]
    assert together(3, "a b a", "a b a", "a b a") == [wanted] * 3


def test_ranks_that_compare_different_things_are_told_so_at_once() -> None:
    first, second = together(2, "plan", "requests")
    assert first == second
    assert "compare different things at once (rank 0: plan, rank 1: requests)" in first


def test_a_rank_that_says_nothing_is_named_after_the_time_that_was_allowed() -> None:
    began = time.monotonic()
    with pytest.raises(PeerError, match=r"rank 0 of 3 stops: rank 1 has not given its plan digest for 0\.3 s"):
        groups(3, seconds=0.3)[0].exchange("plan digest", "text")
    assert 0.3 <= time.monotonic() - began < 20


def test_a_rank_that_has_failed_is_quoted_without_waiting_for_the_time_to_pass() -> None:
    first, second = groups(2, seconds=60)
    second.failed("ModelError: config.json: missing")
    began = time.monotonic()
    with pytest.raises(PeerError, match=r"^rank 0 of 2 stops: rank 1 failed: ModelError: config\.json: missing$"):
        first.exchange("plan digest", "text")
    assert time.monotonic() - began < 20


def test_a_broken_collective_quotes_the_rank_that_failed_or_says_what_is_known() -> None:
    class Broken(DistributedGroup):
        def _group(self) -> Any:
            raise RuntimeError("Connection closed by peer\nand a long trace")

    store = dist.HashStore()
    first, second = Broken(store, 0, 2, seconds=9), DistributedGroup(store, 1, 2)
    with pytest.raises(PeerError, match=r"another rank has ended, or has not answered for 9 s \(Connection closed by"):
        first.gather(torch.zeros(3))
    second.failed("ValueError: a fault")
    for collective in (first.gather, first.same):
        with pytest.raises(PeerError, match=r"^rank 0 of 2 stops: rank 1 failed: ValueError: a fault$"):
            collective(torch.zeros(3))


def test_ranks_and_backends_that_cannot_be_are_refused() -> None:
    with pytest.raises(ModelError, match="rank 2 of 2 over 'gloo': wanted a rank from 0 to below the size"):
        DistributedGroup(dist.HashStore(), 2, 2)
    with pytest.raises(ModelError, match="over gloo or nccl"):
        DistributedGroup(dist.HashStore(), 0, 2, backend="mpi")

"""Ranks as threads of one process: to try a split, and to test one, without processes and without a backend."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dspark_ops._lazy import torch
from dspark_ops.errors import RankError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ThreadGroup", "run_in_threads"]

_T = TypeVar("_T")


class _Table:
    """What the threads of one run lay down for each other."""

    def __init__(self, size: int, seconds: float) -> None:
        self.places: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=seconds)


class ThreadGroup:
    """A `RankGroup` of threads; made by `run_in_threads`.

    Attributes:
        rank, size: see `RankGroup`.
        collectives: how many tensors were exchanged.
        gathered_bytes: bytes of this rank's tensors that were gathered.
    """

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        self.rank, self.size = rank, size
        self.collectives = self.gathered_bytes = 0
        self._table = table

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all threads, [size, ...]."""
        self.collectives += 1
        self.gathered_bytes += tensor.numel() * tensor.element_size()
        return torch.stack(self._all(tensor))

    def same(self, tensor: Tensor) -> Tensor:
        """Return a copy of the first thread's tensor."""
        self.collectives += 1
        found: Tensor = self._all(tensor)[0]
        return found.clone()

    def exchange(self, topic: str, text: str) -> list[str]:
        """Return the texts of all threads.

        Raises:
            RankError: the threads exchange different topics.
        """
        found = self._all((topic, text))
        topics = [topic for topic, _ in found]
        if len(set(topics)) > 1:
            raise RankError(f"the ranks exchange different things at once: {topics}")
        return [text for _, text in found]

    def _all(self, value: Any) -> list[Any]:
        try:
            self._table.places[self.rank] = value
            self._table.barrier.wait()
            found = list(self._table.places)
            self._table.barrier.wait()  # no thread lays down its next value before all have taken these
        except threading.BrokenBarrierError:
            raise RankError(f"rank {self.rank} of {self.size}: another rank has failed or does not answer") from None
        return found


def run_in_threads(size: int, function: Callable[[ThreadGroup], _T], seconds: float = 120.0) -> list[_T]:
    """Run a function once per rank, each in a thread of its own, and return the results in the order of the ranks.

    Args:
        size: number of ranks.
        function: gets the group, seen from its rank.
        seconds: longest wait of a rank for the others.

    Raises:
        Exception: what a rank raised first; the others are stopped at their next exchange.
    """
    table = _Table(size, seconds)
    results: list[Any] = [None] * size
    failures: list[Exception] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(ThreadGroup(rank, size, table))
        except Exception as error:  # it is raised again in the caller's thread
            failures.append(error)
            table.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results

"""Ranks over torch.distributed: gloo between processes on CPUs or on one GPU, NCCL between GPUs."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dspark_ops._lazy import torch
from dspark_ops.errors import CaptureError, ModelError, RankError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BACKENDS", "SECONDS", "DistributedGroup", "PeerError"]

_T = TypeVar("_T")

BACKENDS: Final = ("gloo", "nccl")
SECONDS: Final = 120.0
"""Longest wait for another rank, if nothing else is said: it covers how differently fast ranks load and compile."""
_POLL: Final = 0.02
_LAST_WORDS: Final = 2.0
"""Seconds in which a rank that failed may still say why, once a collective with it has broken."""


class PeerError(RankError):
    """This rank stops because of another one, which is where to look."""


class DistributedGroup:
    """A `RankGroup` of processes.

    Texts go through the store, so that ranks which disagree find out before there is any connection between them; the
    process group is made at the first tensor.

    Args:
        store: a ``torch.distributed`` store that all ranks reach. It should outlive every rank: with a store inside
            rank 0, the others cannot be told why rank 0 has ended.
        rank: this one, from 0.
        size: how many there are.
        backend: ``gloo``, or ``nccl`` for tensors on one GPU per rank.
        seconds: longest wait for another rank, in a collective or for its text.
        process_group: an existing process group of these ranks in place of a new one.

    Attributes:
        rank, size: as given.

    Raises:
        ModelError: a rank, size or backend that cannot be.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        backend: str = "gloo",
        seconds: float = SECONDS,
        process_group: Any = None,
    ) -> None:
        if not 0 <= rank < size or backend not in BACKENDS:
            raise ModelError(
                f"rank {rank} of {size} over {backend!r}: wanted a rank from 0 to below the size, over "
                f"{' or '.join(BACKENDS)}"
            )
        self.rank, self.size = rank, size
        self._store, self._backend, self._seconds = store, backend, seconds
        self._process_group = process_group
        self._made = False
        self._exchanges = 0

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, [size, ...]; an empty one is not sent, since its shape is everybody's."""
        if not tensor.numel():
            return tensor.new_empty(self.size, *tensor.shape)
        sent = self._wire(tensor)
        received = torch.empty((self.size, *sent.shape), dtype=sent.dtype, device=sent.device)

        def collective() -> None:
            torch.distributed.all_gather([*received], sent, group=self._group())

        self._collective(collective)
        return received.to(tensor.device).view(tensor.dtype).view(self.size, *tensor.shape)

    def same(self, tensor: Tensor) -> Tensor:
        """Return rank 0's tensor."""
        if not tensor.numel():
            return tensor
        sent = self._wire(tensor).clone()
        # `group_src` is the rank within the group, whatever it is called in an engine's own world.
        self._collective(lambda: torch.distributed.broadcast(sent, group=self._group(), group_src=0))
        return sent.to(tensor.device).view(tensor.dtype).view(tensor.shape)

    def exchange(self, topic: str, text: str) -> list[str]:
        """Return the texts of all ranks, through the store."""
        self._exchanges += 1
        place = f"dspark-ops/{self._exchanges}"
        self._stored(lambda: self._store.set(f"{place}/{self.rank}", f"{topic}\n{text}"))
        deadline = time.monotonic() + self._seconds
        found = [self._text_of(rank, f"{place}/{rank}", topic, deadline) for rank in range(self.size)]
        topics = [other for other, _, _ in (entry.partition("\n") for entry in found)]
        if len(set(topics)) > 1:
            each = ", ".join(f"rank {rank}: {other}" for rank, other in enumerate(topics))
            raise RankError(f"the ranks compare different things at once ({each}): run the same program on every rank")
        return [entry.partition("\n")[2] for entry in found]

    def failed(self, what: str) -> None:
        """Tell the other ranks why this one is about to end: they say so instead of that it is gone."""
        with contextlib.suppress(RuntimeError):  # the store may be what has failed
            self._store.set(f"dspark-ops/failed/{self.rank}", what)

    def close(self) -> None:
        """Give back the process group, if this object has made it.

        NCCL waits here for graphs that hold collectives of the group: those that nobody refers to are collected first,
        and it is the caller's part to drop the others.
        """
        if self._made:
            self._made = False
            gc.collect()
            torch.distributed.destroy_process_group(self._process_group)

    def _group(self) -> Any:
        if self._process_group is None:
            torch.distributed.init_process_group(
                self._backend,
                store=torch.distributed.PrefixStore("dspark-ops/group", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self._seconds),
            )
            self._process_group, self._made = torch.distributed.group.WORLD, True
        return self._process_group

    def _wire(self, tensor: Tensor) -> Tensor:
        """Return the bytes of a tensor where the backend can send them: no backend then has to know a dtype."""
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        if self._backend != "gloo" or not flat.is_cuda:
            return flat
        if torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                "ranks over gloo exchange through the host, and no graph can: run with execution static or packed, or "
                "with a GPU for each rank"
            )
        return flat.cpu()

    def _collective(self, collective: Callable[[], Any]) -> None:
        try:
            collective()
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            words = self._last_words(time.monotonic() + _LAST_WORDS)
            why = words or f"another rank has ended, or has not answered for {self._seconds:g} s ({first})"
            raise PeerError(f"rank {self.rank} of {self.size} stops: {why}") from error

    def _text_of(self, rank: int, key: str, topic: str, deadline: float) -> str:
        while not self._stored(lambda: self._store.check([key])):
            words = self._last_words()
            if words:
                raise PeerError(f"rank {self.rank} of {self.size} stops: {words}")
            if time.monotonic() > deadline:
                raise PeerError(
                    f"rank {self.rank} of {self.size} stops: rank {rank} has not given its {topic} for "
                    f"{self._seconds:g} s: see what it printed last, or allow more time"
                )
            time.sleep(_POLL)
        return bytes(self._stored(lambda: self._store.get(key))).decode()

    def _last_words(self, deadline: float = 0.0) -> str:
        """Return what a rank that has failed has said, waiting for it until a deadline; empty if none has."""
        keys = {rank: f"dspark-ops/failed/{rank}" for rank in range(self.size) if rank != self.rank}
        while True:
            try:
                for rank, key in keys.items():
                    if self._store.check([key]):
                        return f"rank {rank} failed: {bytes(self._store.get(key)).decode()}"
            except RuntimeError:  # a store that is gone says nothing
                return ""
            if time.monotonic() >= deadline:
                return ""
            time.sleep(_POLL)

    def _stored(self, access: Callable[[], _T]) -> _T:
        try:
            return access()
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            raise PeerError(
                f"rank {self.rank} of {self.size} stops: the store that the ranks share is gone ({first}); the process "
                "that holds it has ended"
            ) from error

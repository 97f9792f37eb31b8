"""What the decode loop asks of a drafter, and what a drafter answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dspark_ops._lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.decode.v41.rows import Rows

__all__ = ["DraftRequests", "Drafter", "Proposal"]


@dataclass(frozen=True, slots=True)
class DraftRequests:
    """The requests of one draft step.

    Attributes:
        index: [R] numbers of the requests in the caller's list.
        slot: [R] int64, their places in the state.
        anchor: [R] int64, the last token of each, not yet seen by the target.
        start: [R] int64, its position s; positions below are committed.
        gamma: drafts per request.
        temperature: [R] float32 with 0 for greedy requests, or None if all are greedy.
        uniforms: [R, gamma] float32 of [0, 1) for the draws, or None if all are greedy.
        live: [R] bool, or None if all are; what is drafted for a request that is not live is stored nowhere.
    """

    index: tuple[int, ...]
    slot: Tensor
    anchor: Tensor
    start: Tensor
    gamma: int
    temperature: Tensor | None = None
    uniforms: Tensor | None = None
    live: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def part(self, begin: int, end: int) -> DraftRequests:
        """Return requests `begin` to `end` - 1."""
        cut = slice(begin, end)
        return DraftRequests(
            self.index[cut],
            self.slot[cut],
            self.anchor[cut],
            self.start[cut],
            self.gamma,
            None if self.temperature is None else self.temperature[cut],
            None if self.uniforms is None else self.uniforms[cut],
            None if self.live is None else self.live[cut],
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts and what is known of them.

    Attributes:
        drafts: [R, G] int64; draft k is for position s + k + 1 (0-based k). -1 stands for "no draft".
        probs: [R, G, V] float32, the very laws the drafts were drawn from (one-hot for greedy ones), or None if no
            request samples (C1.7.2).
        confidence: [R, G] float32, chance that draft k is accepted given that those before it are.
        survival: [R, G] float32, chance that drafts 0 to k are all accepted; does not rise along a row.
    """

    drafts: Tensor
    probs: Tensor | None
    confidence: Tensor
    survival: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Proposal]) -> Proposal:
        """Return one proposal of several, in order."""
        probs = [part.probs for part in parts if part.probs is not None]
        return cls(
            torch.cat([part.drafts for part in parts]),
            torch.cat(probs) if probs else None,
            torch.cat([part.confidence for part in parts]),
            torch.cat([part.survival for part in parts]),
        )


class Drafter(Protocol):
    """Anything that proposes drafts. The loop commits every position once, in order, before the next proposal."""

    def commit(self, rows: Rows, features: Tensor) -> None:
        """Take note of committed rows and the target's features of them, [T, taps * hidden] bfloat16."""

    def propose(self, requests: DraftRequests) -> Proposal:
        """Return drafts for each request."""

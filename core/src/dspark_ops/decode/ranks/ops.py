"""The bound operators of a rank: those that read logits take this rank's columns, and answer for whole rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dspark_ops.decode.ranks.vocab import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.decode.policy import Scheduler
    from dspark_ops.selection.plan import Plan

__all__ = ["RANK_OPERATORS", "RankOps", "same", "same_lengths", "whole_rows"]

RANK_OPERATORS: Final[Mapping[str, tuple[str, ...]]] = {
    "argmax_rows": ("argmax_vocab_parallel_local", "argmax_vocab_parallel"),
    "accept_tail": ("accept_greedy",),
    "accept_forced": ("accept_forced", "accept_greedy"),
    "markov_block": (),
}
"""Operators over whole rows of logits, and what a rank plans in place of each."""


class RankView:
    """The operators of one site or row count on a rank; those that take no logits are the bound ones themselves."""

    def __init__(self, view: Any, vocabulary: Vocabulary) -> None:
        self._view = view
        self.vocabulary = vocabulary

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def argmax_rows(self, x: Tensor) -> Tensor:
        """Return the greedy token of each row, [R] int64, for x [R, C], this rank's columns."""
        return self.vocabulary.argmax(self._view, x)

    def accept_tail(
        self, candidates: Tensor, logits: Tensor, prefix_lens: Tensor, verify_lens: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return what `accept_tail` does, for logits [B * W, C], this rank's columns."""
        target_ids = self.argmax_rows(logits).view(candidates.shape)
        accepted = self._view.accept_greedy(candidates, target_ids, verify_lens)
        return *accepted, *self._view.accept_finalize(*accepted, candidates[:, 1:], prefix_lens)

    def accept_forced(
        self,
        candidates: Tensor,
        logits: Tensor,
        prefix_lens: Tensor,
        accept_lens: Tensor,
        verify_lens: Tensor | None = None,
        bonus: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return what `accept_forced` does, for logits [B * W, C], this rank's columns."""
        if bonus is None:  # with one the operator does not read the logits
            target_ids = self.argmax_rows(logits).view(candidates.shape)
            bonus = self._view.accept_greedy(candidates, target_ids, verify_lens)[1]
        found: tuple[Tensor, ...] = self._view.accept_forced(
            candidates, logits, prefix_lens, accept_lens, verify_lens, bonus
        )
        return found

    def markov_block(
        self,
        base: Tensor,
        anchor: Tensor,
        embed: Tensor,
        head: Tensor,
        *,
        uniforms: Tensor | None = None,
        temperature: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what `markov_block` does, for base [R, G, C] and head [C, M]; see `Vocabulary.markov_block`."""
        return self.vocabulary.markov_block(self._view, base, anchor, embed, head, uniforms, temperature)


class RankOps(RankView):
    """What ``plan.bind()`` gave, on a rank.

    Args:
        ops: the bound operators, `dspark_ops.BoundOps`.
        vocabulary: where the tokens' columns are.
    """

    @property
    def plan(self) -> Plan:
        """The plan that these operators follow."""
        plan: Plan = self._view.plan
        return plan

    def at(self, *, rows: int | None = None, site: str | None = None) -> RankView:
        """Return the operators for a row count, a site, or both; see `dspark_ops.BoundOps.at`."""
        return RankView(self._view.at(rows=rows, site=site), self.vocabulary)


def whole_rows(ops: Any, logits: Tensor) -> Tensor:
    """Return logits [..., V] over the whole vocabulary: `logits`, gathered if `ops` are a rank's."""
    return ops.vocabulary.whole(logits) if isinstance(ops, RankView) else logits


def same(ops: Any, tensor: Tensor) -> Tensor:
    """Return what rank 0 has in place of `tensor`; `tensor` itself if `ops` are not a rank's."""
    return ops.vocabulary.group.same(tensor) if isinstance(ops, RankView) else tensor


def same_lengths(ops: Any, scheduler: Scheduler) -> Scheduler:
    """Return a scheduler whose verify lengths are rank 0's; `scheduler` itself if `ops` are not a rank's.

    Lengths follow from confidences, which are floats that each rank computes for itself, and they decide shapes.
    """
    return _RankScheduler(scheduler, ops) if isinstance(ops, RankView) else scheduler


class _RankScheduler:
    def __init__(self, scheduler: Scheduler, ops: RankView) -> None:
        self._scheduler, self._ops = scheduler, ops

    @property
    def on_device(self) -> bool:
        return self._scheduler.on_device

    def width(self, requests: int) -> int:
        return self._scheduler.width(requests)

    def verify_lens(self, confidence: Tensor, survival: Tensor, requests: Sequence[int]) -> Tensor:
        return same(self._ops, self._scheduler.verify_lens(confidence, survival, requests))

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int]) -> None:
        self._scheduler.observe(accept_lens, verified)

    def forget(self, request: int) -> None:
        self._scheduler.forget(request)

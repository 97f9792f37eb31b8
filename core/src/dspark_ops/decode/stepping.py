"""How a cycle's drafts and verify rows are run: in rows packed for each step, or at fixed sizes in runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dspark_ops._lazy import torch
from dspark_ops.decode.drafting import Drafter, DraftRequests, Proposal
from dspark_ops.decode.model import Model
from dspark_ops.decode.packing import VerifyRows
from dspark_ops.decode.policy import VerifyPolicy
from dspark_ops.decode.ranks.ops import same_lengths
from dspark_ops.decode.v41.rows import Rows
from dspark_ops.decode.v41.state import DecodeState

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PackedSteps", "StepResult", "Steps"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a verify step gave, before anything is accepted.

    Attributes:
        candidates: [R, W] int64, anchors and drafts.
        logits: [R * W, V] float32.
        rows: rows that were run.
        features: [T, taps * hidden] bfloat16 of `rows`.
        mask: [R, W] bool, which of the candidates `rows` has, request by request; None if it has all of them.
    """

    candidates: Tensor
    logits: Tensor
    rows: Rows
    features: Tensor
    mask: Tensor | None = None

    def committed(self, commit_lens: Tensor) -> tuple[Rows, Tensor]:
        """Return the rows that become valid, the first ``commit_lens[r]`` of each request, and their features.

        Where all rows were run, the others stay in the result as rows that are not live.
        """
        columns = torch.arange(self.candidates.shape[1], device=self.candidates.device)
        valid = columns < commit_lens.unsqueeze(1)
        if self.mask is not None:
            chosen = valid[self.mask]
            return self.rows.where(chosen), self.features[chosen]
        return Rows(self.rows.request, self.rows.position, self.rows.token, valid.flatten()), self.features


class Steps(Protocol):
    """What the loop asks in each cycle, in this order: begin, propose, verify, commit."""

    def begin(self, requests: int) -> tuple[int, int]:
        """Return the drafts per block and the most verify rows per request of a cycle over `requests` requests."""

    def propose(self, asked: DraftRequests) -> Proposal:
        """Return drafts."""

    def verify_lens(self, proposal: Proposal, requests: Sequence[int]) -> Tensor:
        """Return the rows that each request is to verify, [R] int32, before drafts and context limit them."""

    def verify(self, asked: DraftRequests, proposal: Proposal, lens: Tensor) -> StepResult:
        """Run the target over ``lens[r]`` rows of each request."""

    def commit(self, rows: Rows, features: Tensor) -> None:
        """Give the drafter committed rows; prompts too."""

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int]) -> None:
        """Take note of a step: accept lengths, the final token included, and rows verified, one per request."""

    def forget(self, request: int) -> None:
        """Drop what is remembered of a request that has ended."""


class PackedSteps:
    """Steps over exactly the rows that are verified; every step may have another size.

    Args:
        model: target and drafter.
        ops: bound operators for blocks of `gamma` drafts.
        state: caches of the run.
        drafter: proposes.
        policy: how many rows each request verifies.
        gamma: drafts per block.
    """

    def __init__(
        self, model: Model, ops: Any, state: DecodeState, drafter: Drafter, policy: VerifyPolicy, gamma: int
    ) -> None:
        self._target, self._ops, self._state = model.target, ops.at(site="verify"), state
        self._drafter, self._gamma, self._width = drafter, gamma, gamma + 1
        self._scheduler = same_lengths(ops, policy.scheduler(ops.at(site="draft"), gamma))

    def begin(self, requests: int) -> tuple[int, int]:
        """Return the block length and the scheduler's width."""
        self._width = self._scheduler.width(requests)
        return self._gamma, self._width

    def propose(self, asked: DraftRequests) -> Proposal:
        """Run the drafter."""
        return self._drafter.propose(asked)

    def verify_lens(self, proposal: Proposal, requests: Sequence[int]) -> Tensor:
        """Ask the scheduler, within the width of the step."""
        lens = self._scheduler.verify_lens(proposal.confidence, proposal.survival, requests)
        return lens.clamp(max=self._width)

    def verify(self, asked: DraftRequests, proposal: Proposal, lens: Tensor) -> StepResult:
        """Pack the rows, run them and spread their logits."""
        candidates = torch.cat((asked.anchor.unsqueeze(1), proposal.drafts), 1)
        step = VerifyRows.pack(candidates, asked.slot, asked.start, lens)
        output = self._target.forward(self._ops, self._state, step.rows)
        return StepResult(candidates, step.strided(output.logits), step.rows, output.features, step.mask)

    def commit(self, rows: Rows, features: Tensor) -> None:
        """Tell the drafter."""
        self._drafter.commit(rows, features)

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int]) -> None:
        """Tell the scheduler."""
        self._scheduler.observe(accept_lens, verified)

    def forget(self, request: int) -> None:
        """Tell the scheduler."""
        self._scheduler.forget(request)

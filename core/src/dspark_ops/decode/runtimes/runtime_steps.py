"""The loop's steps in runtimes: static sizes, accepting outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dspark_ops.decode.drafting import Drafter, DraftRequests, Proposal
from dspark_ops.decode.runtimes.runtime_set import RuntimeSet
from dspark_ops.decode.stepping import StepResult
from dspark_ops.decode.v41.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RuntimeSteps"]


class RuntimeSteps:
    """Steps that fill the buffers from the host and run the runtime that fits the batch.

    Args:
        runtimes: of the run.
        drafter: takes the committed rows.
        outside: proposes in place of the runtimes' own draft steps, or None.
    """

    def __init__(self, runtimes: RuntimeSet, drafter: Drafter, outside: Drafter | None) -> None:
        self._runtimes, self._drafter, self._outside = runtimes, drafter, outside
        self._runtime = runtimes.primary
        self._width = self._runtime.shape.widths[-1]

    def begin(self, requests: int) -> tuple[int, int]:
        """Choose the runtime and the width of this cycle."""
        self._runtime = self._runtimes.choose(requests)
        self._width = self._runtimes.width(self._runtime, requests)
        return self._runtime.shape.gamma, self._width

    def propose(self, asked: DraftRequests) -> Proposal:
        """Fill the buffers and draft; the proposal stays valid until the next one."""
        self._fill(asked)
        if self._outside is not None:
            return self._outside.propose(asked)
        return self._runtime.draft(len(asked), sampled=asked.uniforms is not None)

    def verify_lens(self, proposal: Proposal, requests: Sequence[int]) -> Tensor:
        """Ask the runtime's scheduler, within the width of the step."""
        scheduler = self._runtimes.scheduler(self._runtime)
        return scheduler.verify_lens(proposal.confidence, proposal.survival, requests).clamp(max=self._width)

    def verify(self, asked: DraftRequests, proposal: Proposal, lens: Tensor) -> StepResult:
        """Run the prepared verify step that has room for the lengths."""
        count, gamma = len(asked), self._runtime.shape.gamma
        buffers = self._runtimes.buffers
        buffers.drafts[:count, :gamma] = proposal.drafts
        buffers.lens[:count] = lens
        found = self._runtime.verify(count, self._width)
        rows = count * self._width
        return StepResult(
            found.candidates[:count], found.logits[:rows], found.rows.part(0, rows), found.features[:rows]
        )

    def commit(self, rows: Rows, features: Tensor) -> None:
        """Tell the drafter."""
        self._drafter.commit(rows, features)

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int]) -> None:
        """Tell the runtimes, which choose by it."""
        self._runtimes.observe(accept_lens, verified, self._runtime.shape.gamma)

    def forget(self, request: int) -> None:
        """Tell the schedulers."""
        self._runtimes.forget(request)

    def _fill(self, asked: DraftRequests) -> None:
        buffers, count = self._runtimes.buffers, len(asked)
        buffers.slot[:count] = asked.slot
        buffers.anchor[:count] = asked.anchor
        buffers.start[:count] = asked.start
        buffers.live[:count] = True
        buffers.pad_from(count)
        if asked.temperature is not None and asked.uniforms is not None:
            buffers.temperature[:count] = asked.temperature
            buffers.uniforms[:count, : asked.gamma] = asked.uniforms

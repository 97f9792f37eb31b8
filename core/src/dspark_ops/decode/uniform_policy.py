"""One width for all requests of a step, learned from what was accepted: `VerifyWidthPolicy` as a policy of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.policy import Scheduler
from dspark_ops.decode.sps import StepRates, default_rates
from dspark_ops.decode.verify_width import VerifyWidthPolicy, WidthFeed, WidthHistogram

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["UniformPolicy"]


@dataclass(frozen=True, slots=True)
class UniformPolicy:
    """The width with the best predicted rate, the same for all requests of a step (A18).

    It looks at no draft of the step that it decides about, only at what was accepted at least 32 steps before.

    Attributes:
        rates: step rates by number of tokens (`MeasuredRates`).
        extra: narrower widths to choose from, the anchor included; those that a block is too short for are left out.
            Runtimes must have them prepared to gain from them (`RuntimeOptions.extra_widths`).
        forced: width that is always taken; 0: none.
    """

    rates: StepRates = field(default_factory=default_rates)
    extra: tuple[int, ...] = (2, 3)
    forced: int = 0

    def scheduler(self, ops: Any, gamma: int) -> Scheduler:
        """Return a scheduler that starts with the full width.

        Raises:
            ConfigError: see `VerifyWidthPolicy`.
        """
        extra = [width for width in self.extra if width <= gamma]
        return _UniformScheduler(VerifyWidthPolicy(self.rates, gamma + 1, extra, self.forced))


class _UniformScheduler:
    on_device = True  # the host chooses the width before the step, and within the step every row of it is verified

    def __init__(self, policy: VerifyWidthPolicy) -> None:
        self._policy = policy
        self._histogram = WidthHistogram(policy.widths)
        self._feed = WidthFeed(policy)

    def width(self, requests: int) -> int:
        return self._policy.choose(requests)

    def verify_lens(self, confidence: Tensor, survival: Tensor, requests: Sequence[int]) -> Tensor:
        return torch.full((len(requests),), self._policy.widths[-1], dtype=torch.int32, device=survival.device)

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int]) -> None:
        for length, rows in zip(accept_lens, verified, strict=True):
            # Fewer rows than the step's width were run near the end of the context. They tell as much as the widest
            # width that they fill does.
            filled = max((width for width in self._policy.widths if width <= rows), default=0)
            if filled:
                self._histogram.record(filled, [min(length, filled) - 1])
        self._feed.observed(self._histogram.snapshot)

    def forget(self, request: int) -> None:
        """Counts belong to no request."""

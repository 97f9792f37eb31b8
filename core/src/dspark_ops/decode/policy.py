"""How many drafts each request verifies: the policies of the decode loop.

A policy is a value, made once. Its scheduler lives as long as a run and may remember earlier steps. What it may look at
is limited: whether draft k is verified must not depend on draft k or a later one, or sampled output is no longer the
target's (C1.10.7). Every policy here keeps to that.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dspark_ops._lazy import torch
from dspark_ops.decode.sps import StepRates, default_rates
from dspark_ops.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PrefixPolicy", "Scheduler", "StaticPolicy", "ThresholdPolicy", "VerifyPolicy"]


class Scheduler(Protocol):
    """Chooses the verify rows of each step of one run.

    Attributes:
        on_device: `verify_lens` asks neither the host nor earlier steps, so it may be captured in a graph.
    """

    @property
    def on_device(self) -> bool:
        """See above."""

    def width(self, requests: int) -> int:
        """Return the most rows that a request of the next step may verify; asked once per step, before its drafts.

        Args:
            requests: how many take part.
        """

    def verify_lens(self, confidence: Tensor, survival: Tensor, requests: Sequence[int]) -> Tensor:
        """Return the rows that each request verifies, the anchor included.

        Args:
            confidence: [R, G] float32, chance that draft k is accepted, given that those before it are.
            survival: [R, G] float32, running product of `confidence`.
            requests: R numbers that name the requests for as long as they run.

        Returns:
            [R] int32, 1 to G + 1.
        """

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int]) -> None:
        """Take note of what came out of a step, perhaps one step late.

        Args:
            accept_lens: one per request, the final token included.
            verified: rows that each request verified.
        """

    def forget(self, request: int) -> None:
        """Drop what is remembered of a request that has ended."""


class VerifyPolicy(Protocol):
    """A rule for verify lengths."""

    def scheduler(self, ops: Any, gamma: int) -> Scheduler:
        """Return a scheduler for one run of `gamma` drafts per block; `ops` are the operators of the draft site."""


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """Every request verifies the same number of rows (C1.11.1).

    Attributes:
        rows: rows per request, the anchor included; 0 stands for all.

    Raises:
        ConfigError: `rows` is negative.
    """

    rows: int = 0

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ConfigError(f"static verify rows is {self.rows}: wanted 0 (all) or more")

    def scheduler(self, ops: Any, gamma: int) -> Scheduler:
        """Return a scheduler that always gives the same length."""
        return _StaticScheduler(min(self.rows or gamma + 1, gamma + 1))


@dataclass(frozen=True, slots=True)
class ThresholdPolicy:
    """Each request verifies the drafts before the first whose confidence is below a threshold (C1.8.4).

    Attributes:
        threshold: from 0 (verify all) to 1.

    Raises:
        ConfigError: `threshold` is outside.
    """

    threshold: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise ConfigError(f"confidence threshold is {self.threshold}: wanted a number from 0 to 1")

    def scheduler(self, ops: Any, gamma: int) -> Scheduler:
        """Return a scheduler without memory."""
        return _ThresholdScheduler(self.threshold, gamma)


@dataclass(frozen=True, slots=True)
class PrefixPolicy:
    """The drafts that are worth their verify rows, over all requests, at the device's step rates (C1.10).

    Attributes:
        rates: step rates of the device.
        mode: ``early_stop`` uses the confidences of this very step and stops at the first draft that does not pay;
            ``global`` finds the best number of drafts in confidences that are `lag` steps old, then gives them to the
            drafts that are now most likely to survive. A request without a confidence that old counts as sure.
        lag: steps between the confidences that decide the number and their use; for ``global`` at least 1, because a
            search that looks past a draft it refuses would bias the output (C1.10.5).

    Raises:
        ConfigError: unknown mode, or a lag below 1.
    """

    rates: StepRates = field(default_factory=default_rates)
    mode: str = "early_stop"
    lag: int = 2

    def __post_init__(self) -> None:
        if self.mode not in ("early_stop", "global"):
            raise ConfigError(f"scheduler mode is {self.mode!r}: wanted 'early_stop' or 'global'")
        if self.lag < 1:
            raise ConfigError(f"scheduler lag is {self.lag}: wanted at least 1 step, or the output would be biased")

    def scheduler(self, ops: Any, gamma: int) -> Scheduler:
        """Return a scheduler that calls ``ops.schedule_prefix``; without calibrated rates, one that verifies all."""
        if not self.rates.calibrated:
            warnings.warn("step rates of a single size: every draft is verified; measure at least two", stacklevel=2)
            return _StaticScheduler(gamma + 1)
        if self.mode == "early_stop":
            return _EarlyStopScheduler(ops, self.rates, gamma)
        return _LaggedScheduler(ops, self.rates, self.lag, gamma)


class _Unlearning:
    """A scheduler that learns nothing from what was accepted, and remembers no request."""

    def observe(self, accept_lens: Sequence[int], verified: Sequence[int]) -> None:
        """See `Scheduler`."""

    def forget(self, request: int) -> None:
        """See `Scheduler`."""


class _StaticScheduler(_Unlearning):
    on_device = True

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def width(self, requests: int) -> int:
        return self._rows

    def verify_lens(self, confidence: Tensor, survival: Tensor, requests: Sequence[int]) -> Tensor:
        return torch.full((len(requests),), self._rows, dtype=torch.int32, device=survival.device)


class _ThresholdScheduler(_Unlearning):
    on_device = True

    def __init__(self, threshold: float, gamma: int) -> None:
        self._threshold = threshold
        self._gamma = gamma

    def width(self, requests: int) -> int:
        return self._gamma + 1

    def verify_lens(self, confidence: Tensor, survival: Tensor, requests: Sequence[int]) -> Tensor:
        # a confidence that is NaN ends the prefix
        return (confidence >= self._threshold).int().cumprod(-1).sum(-1, dtype=torch.int32) + 1


class _EarlyStopScheduler(_Unlearning):
    on_device = False  # its table depends on how many requests there are

    def __init__(self, ops: Any, rates: StepRates, gamma: int) -> None:
        self._ops = ops
        self._gamma = gamma
        self._tables = _Tables(rates)

    def width(self, requests: int) -> int:
        return self._gamma + 1

    def verify_lens(self, confidence: Tensor, survival: Tensor, requests: Sequence[int]) -> Tensor:
        return self._ops.schedule_prefix(survival, self._tables.of(survival), None, "early_stop")


class _LaggedScheduler(_Unlearning):
    on_device = False  # it remembers earlier steps

    def __init__(self, ops: Any, rates: StepRates, lag: int, gamma: int) -> None:
        self._ops = ops
        self._gamma = gamma
        self._tables = _Tables(rates)
        self._lag = lag
        self._history: dict[int, deque[Tensor]] = {}

    def width(self, requests: int) -> int:
        return self._gamma + 1

    def verify_lens(self, confidence: Tensor, survival: Tensor, requests: Sequence[int]) -> Tensor:
        steps = [self._history.setdefault(request, deque(maxlen=self._lag)) for request in requests]
        sure = torch.ones_like(survival)
        rows = [step[0] if len(step) == self._lag else sure[row] for row, step in enumerate(steps)]
        lagged = torch.stack(rows) if rows else survival
        table = self._tables.of(survival)
        planned = self._ops.schedule_prefix(lagged, table, None, "global")
        budget = (planned - 1).sum(dtype=torch.int32).reshape(1)
        for row, step in enumerate(steps):
            step.append(survival[row].clone())
        return self._ops.schedule_prefix(survival, table, budget, "budget")

    def forget(self, request: int) -> None:
        self._history.pop(request, None)


class _Tables:
    """Dense tables of rates on the device, made once per number of requests."""

    def __init__(self, rates: StepRates) -> None:
        self._rates = rates
        self._dense: dict[tuple[int, int, str], Tensor] = {}

    def of(self, survival: Tensor) -> Tensor:
        requests, gamma = survival.shape
        key = (requests, gamma, str(survival.device))
        if key not in self._dense:
            rates = self._rates.dense(requests, requests * (gamma + 1))
            self._dense[key] = torch.tensor(rates, dtype=torch.float64, device=survival.device)
        return self._dense[key]

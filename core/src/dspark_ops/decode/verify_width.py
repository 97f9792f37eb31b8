"""One verify width for all requests of a step, chosen by how often drafts are accepted and what a step costs.

All ranks of a model must choose the same width, or a collective waits forever. So a choice depends on nothing but the
number of requests, the number of choices before it, and counts that every rank reads at the same step: `WidthFeed`
reads what was counted one interval ago, waiting for it if need be, and never asks whether it happens to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dspark_ops.decode.sps import MeasuredRates, StepRates
from dspark_ops.errors import ConfigError, ContractError

__all__ = [
    "Counts",
    "VerifyWidthPolicy",
    "WidthConditions",
    "WidthFeed",
    "WidthHistogram",
    "WidthSnapshot",
    "expected_accept",
]

Counts = Sequence[Sequence[int]]
"""Requests by width (rising) and by accepted drafts (0 to full - 1)."""

EXPLORE_EVERY: Final = 64
"""Every so many choices the full width is taken, so that late positions stay observed."""
MARGIN: Final = 1.02
"""A width replaces the current one only if its rate is higher by more than 2 percent."""
DECAY: Final = 0.9
"""What is left of earlier observations at each update."""
INTERVAL: Final = 32
"""Steps between two updates, and the age of the counts that an update reads."""


def expected_accept(hazards: Sequence[float], width: int) -> float:
    """Return the tokens that a request is expected to emit when it verifies `width` rows.

    Args:
        hazards: chance that draft j is accepted, given that those before it were.
        width: rows, the anchor included; 1 to ``len(hazards) + 1``.

    Source: C1.11.3, C9.1 item 5.
    """
    total = survival = 1.0
    for hazard in hazards[: width - 1]:
        survival *= hazard
        total += survival
    return total


@dataclass(frozen=True, slots=True)
class WidthConditions:
    """What a deployment is like, as far as it decides whether widths may be chosen per step.

    Attributes:
        verify_mode: ``static`` is the only mode with one width per step.
        attention_data_parallel: ranks hold different requests.
        pipeline_ranks: stages of a pipeline.
        recurrent_target: the target has a recurrent (Mamba-like) state.
        simulated_acceptance: accepted lengths are drawn.
        debug_observers: something watches every verify step.
    """

    verify_mode: str = "static"
    attention_data_parallel: bool = False
    pipeline_ranks: int = 1
    recurrent_target: bool = False
    simulated_acceptance: bool = False
    debug_observers: bool = False

    def refusals(self) -> tuple[str, ...]:
        """Return every reason not to choose widths; empty if there is none.

        Source: A18, C1.11.3.
        """
        reasons = (
            (self.verify_mode != "static", f"verify mode is {self.verify_mode!r}: wanted 'static'"),
            (self.attention_data_parallel, "attention is data parallel: ranks would need one width for other batches"),
            (self.pipeline_ranks > 1, f"{self.pipeline_ranks} pipeline ranks: wanted 1"),
            (self.recurrent_target, "the target has recurrent state, which is captured for one width"),
            (self.simulated_acceptance, "acceptance is simulated: what is counted says nothing about the drafts"),
            (self.debug_observers, "debug observers expect the full width"),
        )
        return tuple(text for applies, text in reasons if applies)


class VerifyWidthPolicy:
    """Chooses the verify width of each step.

    The predicted rate of a width is ``requests * expected_accept * rate of a step with requests * width tokens``, with
    step rates interpolated between measured sizes and flat outside. Steps that need every row for another reason
    (grammars, log-probabilities) take the full width without asking.

    Args:
        rates: measured step rates by number of tokens (`MeasuredRates`).
        full: rows of the full width, the anchor included.
        extra: narrower widths that are ready to be used, each 2 to full - 1.
        forced: width that is always chosen; 0: none.

    Attributes:
        widths: all widths, rising.
        current: the width that the rates favour; the full one at first.
        decisions: choices made, forced ones not counted.

    Raises:
        ConfigError: a width that cannot be, or rates that are not a table of numbers of tokens.

    Source: A18, C1.11.3.
    """

    def __init__(self, rates: StepRates, full: int, extra: Sequence[int] = (2, 3), forced: int = 0) -> None:
        if not isinstance(rates, MeasuredRates):
            raise ConfigError(
                f"step rates of the verify width are {type(rates).__name__}: wanted rates by number of tokens; a sum "
                f"of request and token times is not read here"
            )
        wrong = [width for width in extra if not 2 <= width < full]
        if full < 2 or wrong:
            raise ConfigError(
                f"verify widths {list(extra)} beside the full width {full}: wanted a full width of 2 or more, and "
                f"others of 2 to {full - 1}"
            )
        self.widths: tuple[int, ...] = tuple(sorted({*extra, full}))
        if forced and forced not in self.widths:
            raise ConfigError(f"forced verify width is {forced}: wanted one of {list(self.widths)}, or 0 for none")
        self.current = full
        self.decisions = 0
        self._rates = rates
        self._full = full
        self._forced = forced
        self._reached = [0.0] * (full - 1)
        self._correct = [0.0] * (full - 1)

    def choose(self, requests: int) -> int:
        """Return the width of the next step.

        The full width is taken until every position was observed, and at every 64th choice; `current` stays then.
        Otherwise the best width replaces the current one if it is better by more than 2 percent at this batch size.

        Args:
            requests: requests of the step.
        """
        if self._forced:
            return self._forced
        self.decisions += 1
        if min(self._reached) <= 0 or self.decisions % EXPLORE_EVERY == 0:
            return self._full
        # the first of equal scores: max keeps the narrowest
        best = max(self.widths, key=lambda width: self.score(width, requests))
        if self.score(best, requests) > self.score(self.current, requests) * MARGIN:
            self.current = best
        return self.current

    def score(self, width: int, requests: int) -> float:
        """Return the predicted tokens per second of a width, once every position was observed."""
        return requests * expected_accept(self.hazards(), width) * self._rates.interpolated(requests * width)

    def hazards(self) -> list[float]:
        """Return the chance of each draft, given those before it; 0 for a position that was never reached."""
        pairs = zip(self._correct, self._reached, strict=True)
        return [correct / reached if reached > 0 else 0.0 for correct, reached in pairs]

    def update(self, counts: Counts) -> None:
        """Add what was counted in one interval; what is known of a position fades only if it was reached again.

        Args:
            counts: one row per width, rising; column k holds the requests that accepted k drafts, 0 to full - 1.

        Raises:
            ContractError: the counts have another shape.
        """
        if len(counts) != len(self.widths) or any(len(row) != self._full for row in counts):
            got = [len(row) for row in counts]
            raise ContractError(
                f"counts of {len(counts)} widths with {got} columns: wanted {len(self.widths)} widths with {self._full}"
            )
        reached, correct = [0] * (self._full - 1), [0] * (self._full - 1)
        for width, row in zip(self.widths, counts, strict=True):
            for draft in range(width - 1):
                reached[draft] += sum(row[draft:])
                correct[draft] += sum(row[draft + 1 :])
        for draft, seen in enumerate(reached):
            if seen > 0:
                self._reached[draft] = DECAY * self._reached[draft] + seen
                self._correct[draft] = DECAY * self._correct[draft] + correct[draft]


class WidthSnapshot(Protocol):
    """Counts as they were at one step, perhaps still on their way from a device."""

    def counts(self) -> Counts:
        """Return the counts since the start of the run; waits until they are here."""


class WidthHistogram:
    """Counts of a run, kept on the host; a device may keep the same table and copy it when asked.

    Args:
        widths: all widths, rising; the last is the full one.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        self._row = {width: index for index, width in enumerate(widths)}
        self._table = [[0] * widths[-1] for _ in widths]

    def record(self, width: int, correct_lens: Sequence[int]) -> None:
        """Count one step: the width that it had, and the drafts that each request accepted."""
        row = self._table[self._row[width]]
        for correct in correct_lens:
            row[min(correct, len(row) - 1)] += 1

    def snapshot(self) -> WidthSnapshot:
        """Return the counts of this moment."""
        return _HostSnapshot(tuple(tuple(row) for row in self._table))


@dataclass(frozen=True, slots=True)
class _HostSnapshot:
    table: Counts

    def counts(self) -> Counts:
        return self.table


class WidthFeed:
    """Gives a policy its counts, one interval late, so that every rank gets the same ones at the same step.

    At every 32nd observed step the snapshot taken 32 steps ago is read, what it added goes to the policy, and a new one
    is taken. The first update comes at step 64, with the counts of steps 1 to 32.

    Args:
        policy: the policy to feed.
    """

    def __init__(self, policy: VerifyWidthPolicy) -> None:
        self._policy = policy
        self._steps = 0
        self._known: Counts = [[0] * policy.widths[-1] for _ in policy.widths]
        self._pending: WidthSnapshot | None = None

    def observed(self, snapshot: Callable[[], WidthSnapshot]) -> None:
        """Note that a step is over.

        Args:
            snapshot: takes a snapshot of the counts; called at every 32nd step only, and not read before 32 more.
        """
        self._steps += 1
        if self._steps % INTERVAL:
            return
        if self._pending is not None:
            counts = self._pending.counts()
            pairs = zip(counts, self._known, strict=True)
            self._policy.update([[new - old for new, old in zip(*pair, strict=True)] for pair in pairs])
            self._known = counts
        self._pending = snapshot()

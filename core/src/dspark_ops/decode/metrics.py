"""Counts of a decode run and the figures that follow from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DecodeMetrics"]


@dataclass(slots=True)
class DecodeMetrics:
    """Counts of one request or of a whole run.

    Attributes:
        emitted: tokens given to the caller. The first one of each request comes from its prefill, the others from
            verify steps: ``emitted == prefills + accepted + verify_steps - trimmed``.
        prefills: requests whose prompt was run.
        prompt_rows: prompt tokens run through the target.
        verify_steps: verify steps, counted once per request that takes part.
        verified_rows: rows of verify steps, anchors included.
        proposed: drafts proposed.
        accepted: drafts accepted, before trimming.
        trimmed: tokens dropped behind the end-of-text token or the most tokens asked for (C2.7).
        cut_by_schedule: drafts that were proposed and that the schedule, or the context's end, left out.
        capped: drafts left out that were run all the same and would have been accepted (cap-accept).
        histogram: verify steps by accept length, the final token included: 1 to gamma + 1.
        offered, reached, correct: per draft position, from 0: how often there was a draft, how often it was judged
            (verified, and all before it right), how often it was right.
        forwards: calls of the target for verify steps (a batch counts once).
        folded: those of them that accepted on the device, as the tail of the step (C2.9).
        unfolded: the others of a run that folds, by the first reason why not.
        seconds: wall time after the prefills, if measured.
        prefill_seconds: wall time of the prefills.
    """

    emitted: int = 0
    prefills: int = 0
    prompt_rows: int = 0
    verify_steps: int = 0
    verified_rows: int = 0
    proposed: int = 0
    accepted: int = 0
    trimmed: int = 0
    cut_by_schedule: int = 0
    capped: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    offered: Counter[int] = field(default_factory=Counter)
    reached: Counter[int] = field(default_factory=Counter)
    correct: Counter[int] = field(default_factory=Counter)
    forwards: int = 0
    folded: int = 0
    unfolded: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    prefill_seconds: float = 0.0

    def prefill(self, rows: int) -> None:
        """Count one prompt of `rows` tokens and the token that its last row gives."""
        self.prefills += 1
        self.prompt_rows += rows
        self.emitted += 1

    def step(
        self, proposed: int, verified_rows: int, accepted: int, emitted: int, *, allowed: int = 0, capped: int = 0
    ) -> None:
        """Count one verify step of one request.

        Args:
            proposed: drafts proposed.
            verified_rows: rows run, the anchor included.
            accepted: drafts accepted.
            emitted: tokens given to the caller.
            allowed: rows that could be accepted, if fewer than were run; 0 for all.
            capped: drafts behind those that would have been accepted.
        """
        tested = (allowed or verified_rows) - 1
        self.verify_steps += 1
        self.verified_rows += verified_rows
        self.proposed += proposed
        self.accepted += accepted
        self.emitted += emitted
        self.trimmed += accepted + 1 - emitted
        self.cut_by_schedule += proposed - tested
        self.capped += capped
        self.histogram[accepted + 1] += 1
        self.offered.update(range(proposed))
        self.reached.update(range(min(accepted + 1, tested)))
        self.correct.update(range(accepted))

    @property
    def mean_accept_len(self) -> float:
        """Tokens that a verify step of a request gives on average, before trimming (C0.4); 0 without steps."""
        return (self.accepted + self.verify_steps) / self.verify_steps if self.verify_steps else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per verify step, prefill tokens left out; 0 without steps."""
        return (self.emitted - self.prefills) / self.verify_steps if self.verify_steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second after the prefills, prefill tokens left out; 0 if no time was measured."""
        return (self.emitted - self.prefills) / self.seconds if self.seconds else 0.0

    def merged(self, other: DecodeMetrics) -> DecodeMetrics:
        """Return the sums of both."""
        names = self.__dataclass_fields__
        return DecodeMetrics(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return counts and figures with plain types only."""
        counts = {
            name: dict(sorted(value.items())) if isinstance(value := getattr(self, name), Counter) else value
            for name in self.__dataclass_fields__
        }
        figures = ("mean_accept_len", "tokens_per_step", "tokens_per_second")
        return counts | {name: getattr(self, name) for name in figures}

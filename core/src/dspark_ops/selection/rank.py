"""Ranking: which of two candidates comes first. The order of registration plays no part."""

from __future__ import annotations

from collections.abc import Iterable

from dspark_ops.selection.candidate import Candidate
from dspark_ops.selection.evaluate import Evaluation, order_index
from dspark_ops.selection.settings import OperatorSettings


def rank(evaluations: Iterable[Evaluation], settings: OperatorSettings) -> tuple[Evaluation, ...]:
    """Return evaluations, best first: the pinned one, then by the order list, by class, and by id."""
    return tuple(sorted(evaluations, key=lambda item: (*preference(item.candidate, settings), item.candidate.id)))


def preference(candidate: Candidate, settings: OperatorSettings) -> tuple[int, int, int]:
    """Return all that puts one candidate before another but the id; candidates with equal values differ by name only.

    Between the pin and the class belong, in this order: the choice of a lock file, a floor for evidence, and measured
    times. They come into this tuple when plans read them.
    """
    return (candidate.id != settings.pin, order_index(candidate.id, settings.order), candidate.rank.order)

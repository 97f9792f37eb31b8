"""Ranking: which of two candidates comes first. The order of registration plays no part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dspark_ops.selection.candidate import Candidate
from dspark_ops.selection.evaluate import Evaluation, order_index
from dspark_ops.selection.policy import OperatorPolicy
from dspark_ops.selection.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class Standing:
    """What puts candidates first at some row counts beside the configuration and their class.

    Attributes:
        locked: id of the lock's choice, or empty.
        times: median microseconds by kernel id, of all kernels that may serve; empty if they are not all known.
    """

    locked: str = ""
    times: Mapping[str, float] = field(default_factory=dict)


NO_STANDING = Standing()
#: After every measured time; candidates without one, such as the reference, are ordered by class.
_UNTIMED = float("inf")


def rank(
    evaluations: Iterable[Evaluation],
    settings: OperatorSettings,
    policy: OperatorPolicy | None = None,
    standing: Standing = NO_STANDING,
) -> tuple[Evaluation, ...]:
    """Return evaluations, best first: see `preference`; candidates that are equal in all that are ordered by id."""

    def key(item: Evaluation) -> tuple[object, ...]:
        return *preference(item.candidate, settings, policy, standing), item.candidate.id

    return tuple(sorted(evaluations, key=key))


def preference(
    candidate: Candidate,
    settings: OperatorSettings,
    policy: OperatorPolicy | None = None,
    standing: Standing = NO_STANDING,
) -> tuple[bool, bool, int, bool, float, int, int]:
    """Return all that puts one candidate before another but the id; candidates with equal values differ by name only.

    In this order: the pin, the lock's choice, the order list, the floor for evidence (where one below it may serve at
    all), the measured time, the class, and within a class the evidence that the kernel has on this architecture: one
    that has been seen to be right comes before one that nobody has run.
    """
    return (
        candidate.id != settings.pin,
        bool(standing.locked) and candidate.id != standing.locked,
        order_index(candidate.id, settings.order),
        policy is not None and policy.evidence is not None and policy.fallback != "fail" and policy.unproven(candidate),
        standing.times.get(candidate.id, _UNTIMED),
        candidate.rank.order,
        -candidate.evidence.order,
    )


def less_proven(
    candidate: Candidate, chosen: Candidate, settings: OperatorSettings, policy: OperatorPolicy | None = None
) -> bool:
    """Return whether a candidate comes behind the chosen one for its evidence alone, and neither by lock nor times."""
    first, second = (preference(item, settings, policy) for item in (chosen, candidate))
    return first[:-1] == second[:-1] and first[-1] < second[-1]

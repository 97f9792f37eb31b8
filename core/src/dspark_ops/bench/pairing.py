"""From records to pairs: which launches count, which do not and why, and the log-ratios that are left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dspark_ops.bench.measurement import Measurement
from dspark_ops.bench.record import ArmRecord, Launch
from dspark_ops.bench.statistics import log_ratios

__all__ = ["Pair", "Pairs", "pairs_of"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two neighbouring launches, that of A first.

    Attributes:
        number: number of the pair in its session.
        first, second: the launches.
        ratio: ``ln(cycle time of first / cycle time of second)``.
    """

    number: int
    first: Launch
    second: Launch
    ratio: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of a comparison.

    Attributes:
        compared: pairs of A and B; empty where the arms come from different sessions.
        control: pairs of A and A.
        first, second: the launches of A and B that count, paired or not.
        left_out: one sentence per launch that was measured or tried and does not count (R4.3, R4.4).
    """

    compared: tuple[Pair, ...]
    control: tuple[Pair, ...]
    first: tuple[Launch, ...]
    second: tuple[Launch, ...]
    left_out: tuple[str, ...]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every launch that counts, those of the control included."""
        chosen = [*self.first, *self.second]
        chosen += [launch for pair in self.control for launch in (pair.first, pair.second)]
        return tuple({(launch.arm, launch.started, launch.number): launch for launch in chosen}.values())


def pairs_of(first: ArmRecord, second: ArmRecord) -> Pairs:
    """Return the pairs of two arms. Launches that failed or chose a configuration do not count, nor do their partners.

    Arms of one session are paired launch by launch. Arms of different sessions have no neighbours in time.
    """
    left_out = [reason for record in (first, second) for reason in _reasons(record)]
    a, b = _counting(first, control=False), _counting(second, control=False)
    control = list(_matched(*_control(first)))
    if first.session != second.session:
        return Pairs((), tuple(control), tuple(a), tuple(b), tuple(left_out))
    compared = list(_matched(a, b))
    kept = {launch.number for pair in (*compared, *control) for launch in (pair.first, pair.second)}
    for launch in (*a, *b, *_counting(first, control=True)):
        if launch.number not in kept:
            left_out.append(f"launch {launch.number} (arm {launch.arm.value}): its partner in the pair does not count")
    return Pairs(
        compared=tuple(compared),
        control=tuple(control),
        first=tuple(pair.first for pair in compared),
        second=tuple(pair.second for pair in compared),
        left_out=tuple(left_out),
    )


def figures(pairs: Sequence[Pair], figure: Callable[[Measurement], float | None]) -> list[float] | None:
    """Return ``ln(figure of first / figure of second)`` per pair, or None if a launch lacks the figure."""
    values: list[tuple[float, float]] = []
    for pair in pairs:
        left, right = figure(measured(pair.first)), figure(measured(pair.second))
        if not left or not right:
            return None
        values.append((left, right))
    return log_ratios([left for left, _ in values], [right for _, right in values])


def measured(launch: Launch) -> Measurement:
    """Return the measurement of a launch that counts."""
    if launch.measurement is None:
        raise ValueError(f"launch {launch.number} has no measurement")
    return launch.measurement


def _control(record: ArmRecord) -> tuple[list[Launch], list[Launch]]:
    launches = _counting(record, control=True)
    return (
        [launch for launch in launches if launch.arm is record.arm],
        [launch for launch in launches if launch.arm is not record.arm],
    )


def _counting(record: ArmRecord, control: bool) -> list[Launch]:
    if record.selection:
        return []
    return [item for item in record.launches if item.control == control and item.measurement and not _chose(item)]


def _chose(launch: Launch) -> bool:
    return launch.measurement is not None and launch.measurement.selection


def _matched(first: Sequence[Launch], second: Sequence[Launch]) -> Iterator[Pair]:
    partners = {launch.pair: launch for launch in second}
    for launch in first:
        partner = partners.get(launch.pair)
        if partner is not None:
            ratio = log_ratios([measured(launch).cycle], [measured(partner).cycle])[0]
            yield Pair(launch.pair, launch, partner, ratio)


def _reasons(record: ArmRecord) -> Iterator[str]:
    for launch in record.launches:
        name = f"launch {launch.number} (arm {launch.arm.value})"
        if launch.measurement is None:
            yield f"{name}: failed: {launch.error}"
        elif record.selection or _chose(launch):
            yield f"{name}: was used to choose a configuration, so it is no evidence for it"

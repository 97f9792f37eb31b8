"""What planning knows beside contracts, kernels, device and settings: evidence, faults, the lock, measured times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dspark_ops.api.reason import Reason, ReasonCode
from dspark_ops.selection.candidate import Candidate
from dspark_ops.selection.device import Device
from dspark_ops.selection.evidence import Proof
from dspark_ops.selection.known_bad import KnownFault, fault_reasons
from dspark_ops.selection.rank import NO_STANDING, Standing

__all__ = ["NOTHING", "Knowledge"]

#: Operator, name of the site, and the sizes that are fixed there.
Place = tuple[str, tuple[str, tuple[tuple[str, int], ...]]]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What earlier runs found out. All of it is data; a planning that is given the same makes the same plan.

    Attributes:
        proofs: what records prove, by kernel id.
        faults: known faults.
        quarantined: kernels that failed when they were tried, with what happened.
        locked: by place, the kernel of each row count in the lock.
        lock_origin: the lock file.
        layouts: shared layouts that the lock chose.
        times: by place, then row count, then kernel: median microseconds.
        times_origin: the table that they are from.
    """

    proofs: Mapping[str, Proof] = field(default_factory=dict)
    faults: tuple[KnownFault, ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    locked: Mapping[Place, Mapping[int, str]] = field(default_factory=dict)
    lock_origin: str = ""
    layouts: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[Place, Mapping[int, Mapping[str, float]]] = field(default_factory=dict)
    times_origin: str = ""

    def proved(self, candidate: Candidate) -> Candidate:
        """Return a candidate with what the records say of it: where there is one, the manifest's claim is not shown."""
        proof = self.proofs.get(candidate.id)
        return candidate if proof is None else replace(candidate, evidence=proof.level, origin=proof.text)

    def refusals(self, candidate: Candidate, device: Device) -> Iterator[Reason]:
        """Yield why a kernel may not serve on a device whatever it claims: a known fault, or a quarantine."""
        yield from fault_reasons(self.faults, candidate.id, device)
        happened = self.quarantined.get(candidate.id)
        if happened is not None:
            hint = f'repair it, or keep it out for good with  deny = ["{candidate.id}"]'
            yield Reason(
                ReasonCode.QUARANTINED, "smoke", "a kernel that passes its trial run", happened, hint, "smoke at bind"
            )

    def masks(self, place: Place, rows: Sequence[int]) -> set[int]:
        """Return masks of row counts within each of which neither the lock nor the times tell two counts apart."""
        groups: dict[Any, int] = {}
        locked, times = self.locked.get(place, {}), sorted(self.times.get(place, {}))
        if not locked and not times:
            return set()
        for index, count in enumerate(rows):
            key = (locked.get(count), _measured_at(times, count) if times else None)
            groups[key] = groups.get(key, 0) | 1 << index
        return set(groups.values())

    def standing(self, place: Place, count: int, kernels: Sequence[str]) -> Standing:
        """Return what puts candidates first at a row count.

        Times count only where every kernel that may serve has one, and there are two or more: a kernel that nobody
        timed is not slow.

        Args:
            place: operator and place.
            count: a row count of the block.
            kernels: ids of the plugins' kernels that may serve there.
        """
        locked = self.locked.get(place, {}).get(count, "")
        by_rows = self.times.get(place, {})
        times = by_rows.get(_measured_at(sorted(by_rows), count), {}) if by_rows else {}
        complete = len(kernels) > 1 and all(kernel in times for kernel in kernels)
        if not locked and not complete:
            return NO_STANDING
        return Standing(locked, {kernel: times[kernel] for kernel in kernels} if complete else {})

    def origin_of(self, standing: Standing, chosen: str, pin: str | None) -> str:
        """Return what made a kernel the first one, if it was the lock or a measured time."""
        if chosen == pin:
            return ""
        if chosen == standing.locked:
            return f"lock {self.lock_origin}"
        if chosen in standing.times:
            return f"measured {standing.times[chosen]:.2f} us, {self.times_origin}"
        return ""


def _measured_at(times: Sequence[int], count: int) -> int:
    """Return the measured row count that stands for a planned one: the next larger one, else the largest."""
    return times[min(bisect_left(times, count), len(times) - 1)]


#: Nothing is known: what a planning by contracts, kernels, device and settings alone is given.
NOTHING = Knowledge()

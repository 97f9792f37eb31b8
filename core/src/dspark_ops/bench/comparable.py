"""May two arms be compared? Every field that differs and does not belong to the treatment is a reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dspark_ops.bench.fingerprint import differing_fields
from dspark_ops.bench.record import ArmRecord, Launch

__all__ = ["Difference", "incomparable", "treated_fields"]

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs where it must not."""

    field: str
    first: Any
    second: Any
    where: str

    def __str__(self) -> str:
        return f"{self.field} differs between {self.where}: {_short(self.first)} and {_short(self.second)}"


def treated_fields(first: ArmRecord, second: ArmRecord) -> tuple[str, ...]:
    """Return the dotted fields, or heads of fields, in which two arms may differ: the treatment and what follows of it.

    Kernels are chosen from the configuration, so that the plan may differ where the configuration or the environment
    does. What else follows from a treatment is for the user to declare.
    """
    treated = [*first.declared, *second.declared]
    for name in differing_fields(first.treatment, second.treatment):
        head, _, rest = name.partition(".")
        treated += [f"environment.{rest}"] if head == "environment" else []
        treated.append("plan")
    return tuple(dict.fromkeys(treated))


def incomparable(first: ArmRecord, second: ArmRecord) -> list[Difference]:
    """Return why two arms may not be compared; nothing if they may (R4.15)."""
    treated = treated_fields(first, second)
    found = [
        Difference(f"workload.{name}", *values, "the arms")
        for name, values in differing_fields(first.workload, second.workload).items()
        if not _covered(f"workload.{name}", treated)
    ]
    left, right = _measured(first), _measured(second)
    for record, launches in ((first, left), (second, right)):
        for launch in launches[1:]:
            where = f"launches {launches[0].number} and {launch.number} of arm {record.arm.value}"
            found += _differences(launches[0].fingerprint, launch.fingerprint, (), where)
    if left and right:
        found += _differences(left[0].fingerprint, right[0].fingerprint, treated, "the arms")
    return list(_first_of_each(found))


def _differences(
    left: Mapping[str, Any], right: Mapping[str, Any], treated: Iterable[str], where: str
) -> Iterator[Difference]:
    for name, (first, second) in differing_fields(left, right).items():
        if not _covered(name, treated):
            yield Difference(name, first, second, where)


def _first_of_each(found: Iterable[Difference]) -> Iterator[Difference]:
    seen: set[str] = set()
    for item in found:
        if item.field not in seen:
            seen.add(item.field)
            yield item


def _measured(record: ArmRecord) -> list[Launch]:
    return [launch for launch in record.launches if launch.measurement is not None]


def _covered(name: str, treated: Iterable[str]) -> bool:
    return any(name == head or name.startswith(f"{head}.") for head in treated)


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."

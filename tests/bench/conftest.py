"""Arms with made-up launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.bench.design import Arm, schedule
from dspark_ops.bench.measurement import Dispatch, Measurement
from dspark_ops.bench.record import ArmRecord, Launch

Arms = tuple[ArmRecord, ArmRecord]

OLD = Dispatch("argmax_rows", "core/argmax_rows/reference", 80, "reference")
NEW = Dispatch("argmax_rows", "fast/argmax_rows/one_launch", 80, "fused")
MACHINE = {"machine": {"processor": "P", "usable_cores": 8}, "versions": {"torch": "2.13"}, "code": {"dspark_ops": "c"}}
WORKLOAD = {"model": "tiny", "prompts": 2, "batch": 1}


def measurement(cycle: float, served: Dispatch, **fields: Any) -> Measurement:
    values: dict[str, Any] = {
        "cycle_us": (cycle * 1.01, cycle, cycle * 0.99),
        "output_tps": (5.0e6 / cycle,),
        "ttft_ms": (9.0,),
        "accept_len": 5.0,
        "histogram": {4: 50, 6: 50},
        "verify_steps": 100,
        "warmups": 2,
        "tokens_digest": "same",
        "cached_tokens": 0,
        "gate": "passed",
        "dispatch": (served,),
    }
    return Measurement(**(values | fields))


def _made(
    ratios: Sequence[float] = (0.021, 0.019, 0.022, 0.018),
    control: Sequence[float] = (0.001, -0.001, 0.002, -0.002),
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    treatments: tuple[dict[str, Any], dict[str, Any]] = ({"config": "a"}, {"config": "b"}),
    session: str = "s1",
    **fields: Any,
) -> Arms:
    """Return both arms; the log-ratios of their pairs are given, and so are fields of the measurements of each."""
    ratio_of: dict[bool, list[float]] = {False: list(ratios), True: list(control)}
    numbers = {False: 0, True: 0}
    places: dict[int, int] = {}
    launches = []
    for slot in schedule(len(ratios), len(control)):
        if slot.pair not in places:
            places[slot.pair] = numbers[slot.control]
            numbers[slot.control] += 1
        faster = 0.0 if slot.arm is Arm.A else ratio_of[slot.control][places[slot.pair]]
        own, served = (second, NEW) if slot.arm is Arm.B else (first, OLD)
        found = measurement(5000.0 * 2.718281828459045 ** (-faster), served, **(own or {}))
        fingerprint = MACHINE | {"plan": {"dispatch": found.dispatch_hash}}
        started = f"2026-01-01T00:00:{slot.number:02d}"
        launches.append(Launch(slot.number, slot.arm, slot.pair, slot.control, started, 1.0, found, "", fingerprint))
    return (
        ArmRecord(
            session, Arm.A, treatments[0], WORKLOAD, tuple(item for item in launches if item.arm is not Arm.B), **fields
        ),
        ArmRecord(
            session, Arm.B, treatments[1], WORKLOAD, tuple(item for item in launches if item.arm is Arm.B), **fields
        ),
    )


@pytest.fixture
def arms() -> Callable[..., Arms]:
    return _made


@pytest.fixture
def changed() -> Callable[..., ArmRecord]:
    """Return a record with one launch, by its place in the record, changed."""

    def change(record: ArmRecord, place: int, **fields: Any) -> ArmRecord:
        items = list(record.launches)
        items[place] = replace(items[place], **fields)
        return replace(record, launches=tuple(items))

    return change

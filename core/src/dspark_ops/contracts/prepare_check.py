"""Proof that a prepare plan is sound: the rules it must keep, and equal results in every order that it allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dspark_ops.contracts.prepare_plan import MAIN, PreparePlan, Program, Record, Run, Wait, run_items


def disagreements(
    plan: PreparePlan, program: Program, values: Mapping[str, Any], equal: Callable[[Any, Any], bool] | None = None
) -> tuple[tuple[str, ...], ...]:
    """Return the orders that the plan allows and in which a program gives other results than in the serial one.

    Args:
        plan: the plan.
        program: as for `run_items`.
        values: as for `run_items`. Older values under the names that items write show a missing dependency as a stale
            result.
        equal: compares two results; ``==`` if None.
    """
    wanted = run_items(plan, program, values)
    same = equal or (lambda one, other: bool(one == other))
    wrong = []
    for order in plan.orders():
        got = run_items(plan, program, values, order)
        if not all(same(got[name], wanted[name]) for name in plan.results):
            wrong.append(order)
    return tuple(wrong)


def plan_faults(plan: PreparePlan) -> tuple[str, ...]:
    """Return every rule of N9 that a plan breaks, as sentences; none for a sound plan."""
    return tuple(fault for check in (_data_faults, _event_faults, _issue_faults) for fault in check(plan))


def _data_faults(plan: PreparePlan) -> Iterator[str]:
    items, before = plan.items, plan.before()
    writer = {value: item.name for item in items.values() for value in item.writes}
    written = [value for item in items.values() for value in item.writes]
    for value in sorted({value for value in written if written.count(value) > 1 or value in plan.inputs}):
        yield f"{value} has more than one origin"
    for item in items.values():
        for value in item.reads:
            if value not in plan.inputs and writer.get(value, value) not in before[item.name]:
                yield f"{item.name} may start before {value} is made"
    for value in plan.results:
        if value not in plan.inputs and writer.get(value, value) not in before[""]:
            yield f"the main lane may go on before {value} is made"
    for place, name in enumerate(plan.serial):
        early = [value for value in items[name].reads if writer.get(value, name) not in (*plan.serial[:place], name)]
        yield from (f"in the serial order {name} comes before {value} is made" for value in early)


def _event_faults(plan: PreparePlan) -> Iterator[str]:
    recorded: set[str] = set()
    for place, step in enumerate(plan.steps):
        if isinstance(step, Record):
            if step.event in recorded:
                yield f"event {step.event} is recorded twice"
            recorded.add(step.event)
            rest = plan.steps[place + 1 :]
            if step.lane == MAIN and not any(isinstance(later, Run) and later.lane == MAIN for later in rest):
                yield f"no main work follows the fork at {step.event}"
        elif isinstance(step, Wait) and step.event not in recorded:
            yield f"lane {step.lane} waits for {step.event} before it is recorded"


def _issue_faults(plan: PreparePlan) -> Iterator[str]:
    before = plan.before()
    collectives = {item.name for item in plan.items.values() if item.collective}
    for name, item in plan.items.items():
        if item.lane == MAIN:
            continue
        if item.collective:
            yield f"collective {name} is on side lane {item.lane}"
        for late in sorted(collectives - before[name] - {name}):
            yield f"{name} may start before collective {late}"
    block: str | None = None  # the side lane whose block is being issued
    for step in plan.steps:
        if isinstance(step, Run) and step.lane == MAIN and block is not None:
            yield f"main work {step.item.name} is issued between the block of lane {block} and its join"
        elif isinstance(step, Run) and step.lane != MAIN:
            block = step.lane
        elif isinstance(step, Wait) and step.lane == MAIN:
            block = None

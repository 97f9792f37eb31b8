"""Low-ratio prepare: in which order and on which lanes a layer's queries, cache writes and index work are issued.

This is a schedule and not an operator on tensors, so it is a value of its own kind and no entry among the contracts. It
says what may run beside what; putting lanes on real streams is left to a runtime, for which `Record` and `Wait` are the
two calls that an event has. Nothing here touches a device or needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dspark_ops.errors import ContractError

MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One piece of work: what it reads and writes, and the lane that it is issued on.

    Attributes:
        name: the item's name.
        lane: ``main``, or the name of a side lane.
        reads: names of the values that it needs.
        writes: names of the values that it makes.
        collective: talks to other ranks, so that its order of issue must be the same on all of them.
    """

    name: str
    lane: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    collective: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Issue an item on its lane."""

    item: WorkItem

    @property
    def lane(self) -> str:
        """The item's lane."""
        return self.item.lane


@dataclass(frozen=True, slots=True)
class Record:
    """Mark on a lane all that was issued on it so far, or that it waited for."""

    lane: str
    event: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Let a lane go on only when all that an event marks is done."""

    lane: str
    event: str


Step = Run | Record | Wait
Program = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class PreparePlan:
    """Work in lanes that fork from the main one and join it again.

    Attributes:
        inputs: values that exist before.
        results: values that the main lane may use afterwards.
        steps: all steps in the order of issue. In a graph capture this order decides which lane replays what.
        serial: names of the items in the order for a single lane, the fallback and the measure of every other order.
    """

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    steps: tuple[Step, ...]
    serial: tuple[str, ...]

    @property
    def items(self) -> dict[str, WorkItem]:
        """Items by name, in the order of issue."""
        return {step.item.name: step.item for step in self.steps if isinstance(step, Run)}

    @property
    def forks(self) -> tuple[tuple[str, str], ...]:
        """(event, side lane) for every wait of a side lane, in the order of issue."""
        return tuple((step.event, step.lane) for step in self.steps if isinstance(step, Wait) and step.lane != MAIN)

    @property
    def joins(self) -> tuple[str, ...]:
        """Events that the main lane waits for, in the order of issue."""
        return tuple(step.event for step in self.steps if isinstance(step, Wait) and step.lane == MAIN)

    def before(self) -> dict[str, frozenset[str]]:
        """Return for each item the items that are done before it starts, and under ``""`` those done at the end.

        Lanes and events alone decide this, whatever the items read. A wait for an event that was not recorded yet
        orders nothing, as on a device.
        """
        done: dict[str, frozenset[str]] = {}
        marked: dict[str, frozenset[str]] = {}
        found: dict[str, frozenset[str]] = {}
        for step in self.steps:
            here = done.get(step.lane, frozenset())
            if isinstance(step, Run):
                found[step.item.name] = here
                done[step.lane] = here | {step.item.name}
            elif isinstance(step, Record):
                marked[step.event] = here
            else:
                done[step.lane] = here | marked.get(step.event, frozenset())
        return {**found, "": done.get(MAIN, frozenset())}

    def orders(self) -> Iterator[tuple[str, ...]]:
        """Yield every order in which the items may take effect, one after the other."""
        before = self.before()

        def extend(done: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            if len(done) == len(before) - 1:
                yield done
            for name, needed in before.items():
                if name and name not in done and needed <= set(done):
                    yield from extend((*done, name))

        return extend(())


def low_ratio_prepare(kv_source: bool, index_source: bool, fused_qkv: bool = True) -> PreparePlan:
    """Return the plan of a layer of compress ratio 1 or 2 in decode or verify, from its input `x` up to attention.

    Main lane, the critical path: ``qkv_a`` (if fused), ``q_lora`` (down projection, norm), ``q_store`` (up projection,
    rotation, store). Lane ``kv``: ``kv_store`` (norm, rotation, window cache). Lane ``sources``: ``compress`` and then
    ``index``, where the layer has them. A fork is an event on the main lane right after what the side needs, with main
    work behind it; a side block is issued right before its join, behind all main work, so that a captured graph keeps
    the main chain on one lane.

    A runtime may use it only if two matrix products at once are safe: none of them has a workspace that is shared and
    written. Values made on the main lane and read by a side lane live until the join.

    Args:
        kv_source: the layer owns a compressor.
        index_source: the layer owns an indexer.
        fused_qkv: one projection makes the inputs of both query and key-value paths; otherwise each path starts at `x`.

    Source: N9. Events are placed by the data dependencies; their exact place in existing engines was not known.
    """
    start = "qkv" if fused_qkv else "x"
    main = [
        *([WorkItem("qkv_a", MAIN, ("x",), ("qkv",))] if fused_qkv else []),
        WorkItem("q_lora", MAIN, (start,), ("q_lora",)),
        WorkItem("q_store", MAIN, ("q_lora",), ("q",)),
    ]
    kv = [WorkItem("kv_store", "kv", (start,), ("window",))]
    sources = []
    if kv_source:
        sources.append(WorkItem("compress", "sources", ("x",), ("entries",)))
    if index_source:
        reads = ("q_lora", "entries") if kv_source else ("q_lora",)
        sources.append(WorkItem("index", "sources", reads, ("selection",)))
    made = tuple(value for item in (*main[-1:], *kv, *sources) for value in item.writes)
    serial = (*main[:-1], *sources, *kv, main[-1])
    return PreparePlan(
        ("x",), made, _steps(main, [block for block in (sources, kv) if block]), tuple(item.name for item in serial)
    )


def _steps(main: Sequence[WorkItem], blocks: Sequence[Sequence[WorkItem]]) -> tuple[Step, ...]:
    """Return the steps of main work with events where side items need them, then each side block and its join."""
    writer = {value: item.name for item in main for value in item.writes}
    names = ["", *(item.name for item in main)]

    def event(item: WorkItem) -> str:
        """Name the point of the main lane that the item needs: behind its last writer, or the start."""
        last = max(names.index(writer.get(value, "")) for value in item.reads)
        return f"after {names[last]}" if last else "start"

    events = {event(item) for block in blocks for item in block}
    steps: list[Step] = [Record(MAIN, "start")] if "start" in events else []
    for item in main:
        steps.append(Run(item))
        if f"after {item.name}" in events:
            steps.append(Record(MAIN, f"after {item.name}"))
    for block in blocks:
        lane = block[0].lane
        for item in block:
            steps += [Wait(lane, event(item)), Run(item)]
        steps += [Record(lane, f"{lane} done"), Wait(MAIN, f"{lane} done")]
    return tuple(steps)


def run_items(
    plan: PreparePlan, program: Program, values: Mapping[str, Any], order: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a program's items one after the other on this thread, and return all values.

    Args:
        plan: the plan.
        program: by item name, a function of the values that the item reads, in their order; it returns the value that
            the item writes, or a tuple of them.
        values: the inputs, and whatever older values stand where the items write.
        order: names of all items; the plan's serial order if empty.

    Raises:
        ContractError: `order` is no order of the plan's items, or an item reads a value that does not exist.
    """
    items, state = plan.items, dict(values)
    order = order or plan.serial
    if sorted(order) != sorted(items):
        raise ContractError(f"run_items: wanted an order of {', '.join(items)}, got {', '.join(order)}")
    for name in order:
        item = items[name]
        missing = [value for value in item.reads if value not in state]
        if missing:
            raise ContractError(f"run_items: {name} reads {', '.join(missing)}, which nothing has made yet")
        made = program[name](*(state[value] for value in item.reads))
        state.update(zip(item.writes, made if len(item.writes) > 1 else (made,), strict=True))
    return state

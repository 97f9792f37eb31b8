"""Prepare plans on real streams: the lanes of a plan become CUDA streams, its records and waits become events (N9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dspark_ops._lazy import torch
from dspark_ops.contracts.prepare_plan import MAIN, PreparePlan, Program, Record, Run, run_items

__all__ = ["Lanes", "SerialLanes", "StreamLanes", "lanes_for"]


class Lanes(Protocol):
    """Runs the items of a prepare plan."""

    def run(self, plan: PreparePlan, program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run a program's items and return all values; see `run_items`."""


class SerialLanes:
    """One lane for all items, in the plan's serial order: the measure of every other way."""

    def run(self, plan: PreparePlan, program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run the items one after the other on the current stream."""
        return run_items(plan, program, values)


class StreamLanes:
    """A CUDA stream per side lane; the main lane is the stream that is current at each call.

    Eagerly and in a graph capture alike: forks and joins are events, so a captured graph has the same branches. Values
    that one lane makes and another reads are kept until the main lane has waited for all side lanes.

    Args:
        device: where the streams are.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._streams: dict[str, Any] = {}

    def run(self, plan: PreparePlan, program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
        """Issue the plan's steps in their order, and return all values; the current stream may read them then."""
        main = torch.cuda.current_stream(self._device)
        events: dict[str, Any] = {}
        state = dict(values)
        for step in plan.steps:
            stream = main if step.lane == MAIN else self._stream(step.lane)
            if isinstance(step, Run):
                item = step.item
                with torch.cuda.stream(stream):
                    made = program[item.name](*(state[value] for value in item.reads))
                results = made if len(item.writes) > 1 else (made,)
                state.update(zip(item.writes, results, strict=True))
                if stream is not main:
                    # The allocator must not give this memory to the side lane again while the main lane reads it.
                    for result in results:
                        if isinstance(result, torch.Tensor):
                            result.record_stream(main)
            elif isinstance(step, Record):
                events[step.event] = torch.cuda.Event()
                events[step.event].record(stream)
            else:
                stream.wait_event(events[step.event])
        return state

    def _stream(self, lane: str) -> Any:
        if lane not in self._streams:
            self._streams[lane] = torch.cuda.Stream(self._device)
        return self._streams[lane]


def lanes_for(device: str, side_streams: bool) -> Lanes:
    """Return streams where they exist and are wanted, else one lane.

    Args:
        device: a torch device, such as ``cuda:0``.
        side_streams: whether matrix products on two streams at once are safe and wanted (N9, eligibility).
    """
    return StreamLanes(device) if side_streams and device.startswith("cuda") else SerialLanes()

"""Timing calls on a GPU: graphs of many calls that take turns in one process, and what their spread lets one say."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dspark_ops._lazy import torch
from dspark_ops.binding.capture import captured_in
from dspark_ops.errors import EvidenceError

__all__ = ["CallGraph", "Comparison", "Spread", "alternate", "comparison", "spread"]

Call = Callable[[], Any]
#: Microseconds per call by the number of the round.
Samples = Mapping[int, float]

#: Shortest span between two events, in microseconds: events tick in half microseconds.
_SPAN_US: Final = 300.0
_MOST_REPLAYS: Final = 64
#: A graph that takes longer than this is timed less often.
_LONG_US: Final = 6000.0
_KERNEL_NODE: Final = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds per call over the rounds of a measurement: median, first and last decile, and how many rounds."""

    median: float
    p10: float
    p90: float
    rounds: int

    def to_json(self) -> dict[str, float]:
        """Return the figures with their unit in the names, rounded to a nanosecond."""
        return {
            "median_us": round(self.median, 3),
            "p10_us": round(self.p10, 3),
            "p90_us": round(self.p90, 3),
            "rounds": self.rounds,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """How often one arm fits into the time of another, round by round.

    Attributes:
        ratio: median of the ratios other / own: above 1 the own arm is faster.
        p10, p90: first and last decile of the ratios.
    """

    ratio: float
    p10: float
    p90: float

    @property
    def told(self) -> bool:
        """Whether the rounds tell the arms apart: the deciles lie on one side of 1."""
        return not self.p10 <= 1.0 <= self.p90

    @property
    def text(self) -> str:
        """The ratio, or what keeps it from being one."""
        if self.told:
            return f"{self.ratio:.2f}x"
        return f"not told apart ({self.p10:.2f} to {self.p90:.2f})"

    def to_json(self) -> dict[str, Any]:
        """Return the figures; `ratio` is None where the spread hides it."""
        return {
            "ratio": round(self.ratio, 3) if self.told else None,
            "p10": round(self.p10, 3),
            "p90": round(self.p90, 3),
        }


def spread(values: Iterable[float]) -> Spread:
    """Return the spread of the microseconds of at least two rounds.

    Raises:
        ValueError: there are fewer.
    """
    values = list(values)
    if len(values) < 2:
        raise ValueError(f"wanted at least two rounds, got {len(values)}")
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), deciles[0], deciles[-1], len(values))


def comparison(own: Samples, other: Samples) -> Comparison:
    """Return how two arms compare that took turns, over the rounds in which both did."""
    found = spread([other[number] / own[number] for number in own if number in other])
    return Comparison(found.median, found.p10, found.p90)


class CallGraph:
    """One CUDA graph of several calls, one after the other.

    Args:
        calls: what to capture, in order; the first is run once before, outside the graph. What they return is kept
            while the graph is captured, so that every call writes to memory of its own. The calls themselves are kept
            with the graph, since it goes on using the tensors that they own.

    Attributes:
        calls: how many.
        span_us: microseconds of one replay.
        launches: kernels of the graph, or None where the driver does not tell.
        other_nodes: copies and fills of the graph, or None.

    Raises:
        EvidenceError: a call cannot be captured; the text says what it did.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = len(calls)
        self._kept = tuple(calls)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            calls[0]()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        try:
            with captured_in(self._graph, stream=stream):
                kept = [call() for call in calls]
            self._graph.instantiate()
        except Exception as error:  # whatever a call raises under capture is the reason to give
            torch.cuda.synchronize()
            text = str(error).strip().partition("\n")[0]
            raise EvidenceError(f"cannot be captured in a graph: {type(error).__name__}: {text}") from error
        del kept
        self.launches, self.other_nodes = _nodes(self._graph.raw_cuda_graph())
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.replays = 1
        self.run()
        self.span_us = min(self.run() for _ in range(2)) * self.calls
        self.replays = max(1, min(_MOST_REPLAYS, round(_SPAN_US / max(self.span_us, 1.0))))

    def run(self) -> float:
        """Return the microseconds per call of one round: `replays` replays between two events."""
        self._begin.record()
        for _ in range(self.replays):
            self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e3 / (self.calls * self.replays)


def alternate(graphs: Mapping[str, CallGraph], rounds: int) -> dict[str, dict[int, float]]:
    """Return the microseconds per call of each graph, by round; the graphs take turns, forward and backward.

    A graph that takes milliseconds takes part in each fourth round only, and in the first two: its spread is small, and
    it would cost as much time as all others together.
    """
    samples: dict[str, dict[int, float]] = {name: {} for name in graphs}
    order = list(graphs)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            if number < 2 or number % 4 == 0 or graphs[name].span_us < _LONG_US:
                samples[name][number] = graphs[name].run()
    return samples


def _nodes(graph: int) -> tuple[int | None, int | None]:
    """Return the kernels and the other nodes of a captured graph, as the driver counts them."""
    if torch.version.hip is not None:
        return None, None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, None
    count = ctypes.c_size_t(0)
    if driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)):
        return None, None
    nodes = (ctypes.c_void_p * max(count.value, 1))()
    if driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)):
        return None, None
    kernels = 0
    for node in nodes[: count.value]:
        kind = ctypes.c_int(-1)
        if driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)):
            return None, None
        kernels += kind.value == _KERNEL_NODE
    return kernels, count.value - kernels

"""What can be put around bound functions: a counter, and what takes an operator out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.binding.observed import Place

__all__ = ["CallCounter", "KnockOut"]

Function = Callable[..., Any]


class CallCounter:
    """Counts the calls of every place, and the time inside them where calls return when they are done.

    Args:
        timed: keep times; on an accelerator a call returns before its work is done, so that its time means nothing.
    """

    def __init__(self, timed: bool) -> None:
        self._timed = timed
        self._calls: dict[Place, int] = {}
        self._seconds: dict[Place, float] = {}

    def around(self, place: Place, function: Function) -> Function:
        """Return `function`, counted."""
        self._calls.setdefault(place, 0)
        self._seconds.setdefault(place, 0.0)
        calls, seconds = self._calls, self._seconds

        def counted(*arguments: Any, **named: Any) -> Any:
            calls[place] += 1
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds[place] += time.perf_counter() - began

        return counted

    def rows(self) -> Iterator[tuple[Place, int, float | None, bool]]:
        """Yield each place, its calls, its seconds or None, and whether it is composed of others."""
        for place in sorted(self._calls, key=lambda place: (place.operator, place.kernel)):
            seconds = self._seconds[place] if self._timed else None
            yield place, self._calls[place], seconds, place.composed


class KnockOut:
    """Takes one operator out of the timed runs: the largest gain that a kernel for it could bring (R4.11).

    The first run is real, and the operator's outputs are kept. Later runs get them back, call by call, without a
    computation and without a launch: where an operator writes nothing but its outputs, everything behind it then sees
    what it would have seen, and tokens and acceptance are held. What an operator writes into its arguments, such as a
    cache, stays unwritten, so that tokens are garbage there.

    Args:
        operator: its name.
    """

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self._kept: dict[Any, list[Any]] = {}
        self._ready: dict[Any, Iterator[Any]] = {}
        self._recording = True
        self._runs = 0

    def begin_run(self) -> None:
        """Lay out the kept outputs for a run, outside its time: as copies, since a run may write into what it gets."""
        self._recording = self._runs == 0
        self._runs += 1
        self._ready = {key: cycle(list(map(_copy, outputs))) for key, outputs in self._kept.items()}

    def around(self, place: Place, function: Function) -> Function:
        """Return what stands in place of a function of the operator; functions of others stay as they are."""
        if place.operator != self.operator:
            return function

        def replayed(*arguments: Any, **named: Any) -> Any:
            key = (place, *map(_size, arguments), *((name, _size(value)) for name, value in named.items()))
            if self._recording:
                output = function(*arguments, **named)
                self._kept.setdefault(key, []).append(_copy(output))
                return output
            if key not in self._ready:  # sizes that the first run did not meet, once the tokens are others
                self._kept.setdefault(key, []).append(_copy(function(*arguments, **named)))
                self._ready[key] = cycle(list(map(_copy, self._kept[key])))
            return next(self._ready[key])

        return replayed


def _size(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    return value if isinstance(value, int | float | str | bool | None) else id(type(value))


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple):
        copies = [_copy(item) for item in value]
        return type(value)(*copies) if hasattr(value, "_fields") else tuple(copies)
    return value

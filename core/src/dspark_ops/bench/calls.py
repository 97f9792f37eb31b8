"""What can be put around bound functions: a counter, and a constant in their place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.binding.observed import Place

__all__ = ["CallCounter", "knocked_out"]

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


def knocked_out(operator: str) -> Callable[[Place, Function], Function]:
    """Return what replaces an operator by a constant: the largest gain that a kernel for it could bring (R4.11).

    The first call with arguments of some sizes is real, and its outputs are kept; later calls return copies of them
    without a computation, and write nothing that a real call would write. Outputs are garbage from then on. The copies
    cost a launch each, so that the ceiling is a little too low where an output is large.
    """

    def around(place: Place, function: Function) -> Function:
        if place.operator != operator:
            return function
        kept: dict[Any, Any] = {}

        def constant(*arguments: Any, **named: Any) -> Any:
            key = (*map(_size, arguments), *((name, _size(value)) for name, value in named.items()))
            if key not in kept:
                kept[key] = _copy(function(*arguments, **named))
            return _copy(kept[key])

        return constant

    return around


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

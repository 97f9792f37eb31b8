"""A step that is captured once and replayed: on a GPU a graph, elsewhere the function itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dspark_ops._lazy import torch
from dspark_ops.binding.capture import captured_in
from dspark_ops.errors import CaptureError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CaptureOps", "Replay"]

_T = TypeVar("_T")

#: CUDA's allocator hands out multiples of this many bytes.
_GRANULE = 512


class Replay(Generic[_T]):
    """One step over static tensors.

    Args:
        name: how errors call it.
        function: the step; it takes nothing, reads and writes tensors that stay where they are, and returns tensors.
        captured: capture it in a graph at `prepare`; else every call runs the function.
        pool: memory pool that the graphs of a run share, or None.

    A captured step returns the same tensors at every call; what they hold is that of the latest one.
    """

    def __init__(self, name: str, function: Callable[[], _T], captured: bool, pool: Any = None) -> None:
        self._name = name
        self._function = function
        self._captured = captured
        self._pool = pool
        self._graph: Any = None
        self._result: _T | None = None

    def prepare(self) -> None:
        """Run the step once outside a graph, so that everything is compiled, and capture it.

        Raises:
            CaptureError: something in it cannot be captured.
        """
        if not self._captured or self._graph is not None:
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with captured_in(graph, pool=self._pool):
                self._result = self._function()
        except RuntimeError as error:
            # A capture that was broken off fails once more at its end; what broke it says more.
            for cause in (error, error.__context__):
                if isinstance(cause, CaptureError):
                    raise cause from None
            raise CaptureError(
                f"{self._name} cannot be captured: {str(error).splitlines()[0]}; what it runs between operators must "
                "not wait for the host"
            ) from error
        self._graph = graph

    def __call__(self) -> _T:
        """Run or replay the step, and return its results.

        Raises:
            CaptureError: it is to be captured and has not been prepared.
        """
        if not self._captured:
            return self._function()
        if self._graph is None or self._result is None:
            raise CaptureError(f"{self._name} is not prepared: call prepare() of its runtime before the first step")
        self._graph.replay()
        return self._result


class CaptureOps:
    """Operators that, while a graph is being captured, name the one that cannot be.

    Args:
        ops: the operators; outside a capture they are called as they are.

    An operator that fails during capture, or that allocates more there than the tensors it returns, raises
    `CaptureError` with its name: a graph would keep the address of memory that belongs to nobody.
    """

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._ops, name)

        def guarded(*arguments: Any, **options: Any) -> Any:
            if not torch.cuda.is_current_stream_capturing():
                return function(*arguments, **options)
            with _named(name):
                before = torch.cuda.memory_allocated()
                result = function(*arguments, **options)
                held = torch.cuda.memory_allocated() - before
            returned = sum(_granules(item) for item in _tensors(result))
            if held > returned:
                raise CaptureError(
                    f"{name} keeps {held} bytes that it allocated inside a capture, and returns {returned}: its kernel "
                    "must allocate what it needs in prepare(); plan with another kernel for it, or report this one"
                )
            return result

        setattr(self, name, guarded)
        return guarded


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise CaptureError(
            f"{name} cannot be captured: {str(error).splitlines()[0]}; set policy.graphs = 'on', or plan with a kernel "
            "that is graph-safe for it"
        ) from error


def _tensors(result: Any) -> Iterator[Tensor]:
    """Yield one tensor per storage that a result holds."""
    found = [result] if isinstance(result, torch.Tensor) else [] if result is None else list(result)
    seen = set()
    for item in found:
        if isinstance(item, torch.Tensor) and item.untyped_storage().data_ptr() not in seen:
            seen.add(item.untyped_storage().data_ptr())
            yield item


def _granules(tensor: Tensor) -> int:
    size = tensor.untyped_storage().nbytes()
    return -(-size // _GRANULE) * _GRANULE

"""Capturing and watching calls on a real GPU: CUDA graphs and HIP graphs, through torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dspark_ops._lazy import torch
from dspark_ops.binding.capture import captured_in

__all__ = ["CudaHarness"]


class CudaHarness:
    """Captures calls in graphs; raises where a call waits for the device."""

    def capture(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
        """Return what a captured call returned, and what replays it and waits for the end."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()  # what is kept per stream is made outside the graph
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with captured_in(graph, stream=stream), _no_sync():
            returned = call()

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        return returned, replay

    def allocations(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """Return what a call returned and how many allocations it asked of torch's allocator."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        returned = call()
        return returned, torch.cuda.memory_stats()["allocation.all.allocated"] - before

    def unsynchronised(self, call: Callable[[], Any]) -> Any:
        """Return what a call returned; raise where torch saw it wait for the device."""
        with _no_sync():
            return call()


@contextmanager
def _no_sync() -> Iterator[None]:
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)

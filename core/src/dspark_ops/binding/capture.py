"""Capturing calls in a CUDA graph, in the one way in which nothing else in the process can break the capture."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dspark_ops._lazy import torch

__all__ = ["captured_in"]


@contextmanager
def captured_in(graph: Any, *, pool: Any = None, stream: Any = None) -> Iterator[None]:
    """Capture what is launched inside into a graph.

    Only this thread's calls belong to the capture: NCCL's watch over its events would break one that looks at all
    threads. And the garbage collector rests meanwhile: a graph that it destroyed would break the capture (since torch
    2.9 `torch.cuda.graph` does not collect before, pytorch/pytorch#161037), and the error would name whatever
    operator comes next.

    Args:
        graph: a ``torch.cuda.CUDAGraph``.
        pool: memory pool that several graphs share, or None.
        stream: stream to capture on, or None for one of torch's own.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
    finally:
        if collects:
            gc.enable()

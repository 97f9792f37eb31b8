"""Named ranges around the parts of a cycle, for a profiler; off by default."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from dspark_ops._lazy import torch
from dspark_ops.errors import ModelError

__all__ = ["Ranges", "ranges_for"]

Ranges = Callable[[str], AbstractContextManager[None]]
"""Gives a context that a profiler shows under a name."""


def ranges_for(nvtx: bool) -> Ranges:
    """Return ranges that NVTX shows, or ranges that do nothing.

    Raises:
        ModelError: NVTX is wanted where torch has none.
    """
    if not nvtx:
        return _nothing
    if not torch.cuda.is_available():
        raise ModelError("NVTX ranges need a CUDA device, and torch finds none here: leave nvtx out")
    ranges: Ranges = torch.cuda.nvtx.range
    return ranges


def _nothing(name: str) -> AbstractContextManager[None]:
    return nullcontext()

"""Portable ``accept_tail``: argmax, accept and finalise of a verify step in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.argmax import AMD_TILES, TILES, argmax_tiles
from dspark_ops_triton.blocks import verify_tail
from dspark_ops_triton.blocks.verify_tail import (
    AcceptTail,
    empty_outputs,
    launch_constants,
    launch_options,
    length_words,
    prepare_tail,
    tail_kernel,
    tail_once,
    warm_up,
)


def accept_tail(
    candidates: Tensor, logits: Tensor, prefix_lens: Tensor, verify_lens: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return all that follows from the logits of a greedy verify step, see `AcceptTail`.

    Without `prepare_accept_tail`, a launch that zeroes 32 bytes per row comes before the kernel.

    Source: N11.2 to N11.4.
    """
    return unprepared(logits.device)(candidates, logits, prefix_lens, verify_lens)


def unprepared(device: torch.device) -> AcceptTail:
    """Return the tail with nothing set aside: it zeroes memory at every call."""
    return tail_once(AMD_TILES if torch.version.hip else TILES, device)


def bound_tail(device: Any, site: Any, rows: Sequence[int]) -> AcceptTail:
    """Return the tail with memory for the largest number of requests, nothing compiled yet."""
    return verify_tail.bound_tail(argmax_tiles(device, site), device, site, rows)


def prepare_accept_tail(device: Any, site: Any, rows: Sequence[int]) -> AcceptTail:
    """Return `accept_tail` as one launch, compiled for the site's sizes and with its memory allocated."""
    return prepare_tail(argmax_tiles(device, site), device, site, rows)


__all__ = [
    "AcceptTail",
    "accept_tail",
    "bound_tail",
    "empty_outputs",
    "launch_constants",
    "launch_options",
    "length_words",
    "prepare_accept_tail",
    "tail_kernel",
    "unprepared",
    "warm_up",
]

"""Portable ``argmax_vocab_parallel_local``: one rank's share of a row argmax over all ranks, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.argmax import AMD_TILES, TILES
from dspark_ops_triton.blocks.local_argmax import LocalArgmax, local_argmax_once, prepare_local_argmax


def argmax_vocab_parallel_local(logits: Tensor, rank: int = 0, valid_cols: int = -1) -> Tensor:
    """Return what `LocalArgmax` returns; unprepared, a launch that zeroes 32 bytes per row comes before the kernel.

    Source: A11.
    """
    return local_argmax_once(AMD_TILES if torch.version.hip else TILES, logits, rank, valid_cols)


def prepare_argmax_vocab_parallel_local(device: Any, site: Any, rows: Sequence[int]) -> LocalArgmax:
    """Return `argmax_vocab_parallel_local` as one launch, compiled for the site's dtype, with its memory allocated."""
    return prepare_local_argmax(AMD_TILES if device.arch.vendor == "amd" else TILES, device, site, rows)


__all__ = ["LocalArgmax", "argmax_vocab_parallel_local", "prepare_argmax_vocab_parallel_local"]

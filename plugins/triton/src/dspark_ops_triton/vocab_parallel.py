"""Portable ``argmax_vocab_parallel_local``: one rank's share of a row argmax over all ranks, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.argmax import AMD_TILES
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.local_argmax import LocalArgmax, local_argmax_once, prepare_local_argmax
from dspark_ops_triton.blocks.row_argmax import Tiles

#: The fastest on an H200 of blocks of 1024 to 8192 with 4 to 16 warps, for 1 to 64 rows of 32320.
TILES = Tiles(block=1024, warps=8, programs_per_unit=4, early_per_unit=2)


def argmax_vocab_parallel_local(logits: Tensor, rank: int = 0, valid_cols: int = -1) -> Tensor:
    """Return what `LocalArgmax` returns; unprepared, a launch that zeroes 32 bytes per row comes before the kernel.

    Source: A11.
    """
    return local_argmax_once(AMD_TILES if torch.version.hip else TILES, logits, rank, valid_cols)


def prepare_argmax_vocab_parallel_local(device: Any, site: Any, rows: Sequence[int]) -> LocalArgmax:
    """Return `argmax_vocab_parallel_local` as one launch, compiled for the site's dtype, with its memory allocated."""
    tiles = AMD_TILES if device.arch.vendor == "amd" else TILES
    return prepare_local_argmax(replace(tiles, pdl=has_pdl(device)), device, site, rows)


__all__ = ["LocalArgmax", "argmax_vocab_parallel_local", "prepare_argmax_vocab_parallel_local"]

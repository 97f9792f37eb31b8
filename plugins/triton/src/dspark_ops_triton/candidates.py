"""Portable ``candidate_blocks``: one launch masks the logits and scores the blocks, one keeps the best ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.block_candidates import (
    CandidateBlocks,
    Tiles,
    consumer_constants,
    consumer_kernel,
    keep_constants,
    keep_kernel,
    launch_options,
    prepare_blocks,
    source_constants,
    source_kernel,
)
from dspark_ops_triton.blocks.dependent import has_pdl

#: The fastest on an H200 of 4 to 16 warps, for 1, 6 and 64 rows of 32768.
TILES = Tiles(entries=4096, warps=8)
#: More waves: what a lane keeps of 8192 scores would not fit its scalar registers.
AMD_TILES = Tiles(entries=4096, warps=16)


def candidate_blocks(
    logits: Tensor, seq_lens: Tensor, published: Tensor | None = None, topk_blocks: int = 2048, block_size: int = 8
) -> tuple[Tensor, Tensor | None]:
    """Return what `CandidateBlocks` returns, with memory of its own for the scores of this call.

    Source: N10.3, N10.4.
    """
    bound = CandidateBlocks(AMD_TILES if torch.version.hip else TILES)
    return bound(logits, seq_lens, published, topk_blocks, block_size)


def prepare_candidate_blocks(device: Any, site: Any, rows: Sequence[int]) -> CandidateBlocks:
    """Return `candidate_blocks`, compiled for the site's blocks in both forms."""
    tiles = AMD_TILES if device.arch.vendor == "amd" else TILES
    return prepare_blocks(replace(tiles, pdl=has_pdl(device)), device, site, rows)


__all__ = [
    "AMD_TILES",
    "TILES",
    "CandidateBlocks",
    "Tiles",
    "candidate_blocks",
    "consumer_constants",
    "consumer_kernel",
    "keep_constants",
    "keep_kernel",
    "launch_options",
    "prepare_candidate_blocks",
    "source_constants",
    "source_kernel",
]

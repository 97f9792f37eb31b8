"""``candidate_blocks`` for SM100 and SM103: set up early; it keeps the lowest of equal blocks, as torch does there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.block_candidates import CandidateBlocks, Tiles, prepare_blocks
from dspark_ops_triton.blocks.dependent import has_pdl

#: 6 rows of 65536 entries are then 192 programs, one to each multiprocessor and some to spare: the program of a row
#: that chooses alone begins the sooner. Reasoned, not measured.
TILES = Tiles(entries=2048, warps=8)


def candidate_blocks(
    logits: Tensor, seq_lens: Tensor, published: Tensor | None = None, topk_blocks: int = 2048, block_size: int = 8
) -> tuple[Tensor, Tensor | None]:
    """Return what `CandidateBlocks` returns, with memory of its own for the scores of this call.

    Source: N10.3, N10.4.
    """
    return CandidateBlocks(TILES)(logits, seq_lens, published, topk_blocks, block_size)


def prepare_candidate_blocks(device: Any, site: Any, rows: Sequence[int]) -> CandidateBlocks:
    """Return `candidate_blocks`, compiled for the site's blocks in both forms."""
    return prepare_blocks(replace(TILES, pdl=has_pdl(device)), device, site, rows)

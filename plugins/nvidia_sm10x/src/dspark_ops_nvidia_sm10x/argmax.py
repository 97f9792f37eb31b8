"""``argmax_rows`` for SM100 and SM103."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dspark_ops_triton.blocks.row_argmax import RowArgmax, Tiles, prepare_row_argmax, row_argmax_once

#: 64 programs cover a row of 129280 in one tile each: six rows are 384 programs of 4 warps, which 148 or 152
#: multiprocessors hold at once (16 warps of 64 each, at 72 registers), so every 16-byte load of a verify step's logits
#: is in flight together. Up to 7 per unit keeps rows split until the device is full, 28 of its 64 warps.
TILES = Tiles(block=2048, warps=4, programs_per_unit=7)


def argmax_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the index of each row's first NaN, else of its maximum, the lowest of equal ones.

    Args:
        x: [R, V] float32, bfloat16 or float16, last stride 1.

    Returns:
        [R] int64. Without `prepare_argmax_rows`, a launch that zeroes 32 bytes per row comes before the kernel.

    Source: N1.
    """
    return row_argmax_once(TILES, x)


def prepare_argmax_rows(device: Any, site: Any, rows: Sequence[int]) -> RowArgmax:
    """Return `argmax_rows` as one launch, compiled for the site's vocabulary and dtype."""
    return prepare_row_argmax(TILES, device, site, rows)

"""``argmax_rows`` for SM100 and SM103."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.row_argmax import RowArgmax, Tiles, prepare_row_argmax, row_argmax_once

#: A row of 129280 is 64 tiles of 2048. Six rows are then 384 programs of 256 threads; 148 or 152 multiprocessors hold
#: six each (40 registers by 256 threads, of 65536), so all loads of a verify step are in flight together, 16 bytes
#: wide. Not tuned on these parts: on an H200, the nearest that could be measured, 8 warps beat 4 by 1 % for 6 rows and
#: by 4 % for 64, and more than 4 programs per unit only cost time.
TILES = Tiles(block=2048, warps=8, programs_per_unit=4)


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
    """Return `argmax_rows` as one launch, set up early, compiled for the site's vocabulary and dtype."""
    return prepare_row_argmax(replace(TILES, pdl=has_pdl(device)), device, site, rows)

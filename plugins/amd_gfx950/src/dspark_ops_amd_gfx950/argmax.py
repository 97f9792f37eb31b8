"""``argmax_rows`` for gfx950."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dspark_ops_triton.blocks.row_argmax import RowArgmax, Tiles, prepare_row_argmax, row_argmax_once

#: Four waves of 64 lanes, one per SIMD of a compute unit, and two 16-byte loads per lane: six rows of 129280 are 384
#: programs over 256 compute units, so no unit has more than two. Four per unit is one wave per SIMD four times over,
#: enough to hide the longer way to memory behind eight L2 caches.
TILES = Tiles(block=2048, warps=4, programs_per_unit=4)


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

"""Portable ``argmax_rows``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dspark_ops_triton.blocks.row_argmax import RowArgmax, Tiles, prepare_row_argmax, row_argmax_once
from dspark_ops_triton.blocks.tile_table import tiles_for

#: The fastest on an H200 of blocks of 1024 to 8192 with 4 to 16 warps, for 1 to 64 rows of 129280. Two programs per
#: unit that are set up early beat four that are not, up to 32 rows, and four early ones at any number.
TILES = Tiles(block=2048, warps=8, programs_per_unit=4, early_per_unit=2)
#: The same tile for the 64 lanes of an AMD wave, so that a lane still loads 16 bytes at a time at 16 bits per value.
AMD_TILES = Tiles(block=2048, warps=4, programs_per_unit=4)


def argmax_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the index of each row's first NaN, else of its maximum, the lowest of equal ones.

    Args:
        x: [R, V] float32, bfloat16 or float16, last stride 1.

    Returns:
        [R] int64. Without `prepare_argmax_rows`, a launch that zeroes 32 bytes per row comes before the kernel.

    Source: N1.
    """
    return row_argmax_once(AMD_TILES if torch.version.hip else TILES, x)


def prepare_argmax_rows(device: Any, site: Any, rows: Sequence[int]) -> RowArgmax:
    """Return `argmax_rows` as one launch, compiled for the site's vocabulary and dtype."""
    return prepare_row_argmax(argmax_tiles(device, site), device, site, rows)


def argmax_tiles(device: Any, site: Any) -> Tiles:
    """Return how rows of logits are cut on a device, for every operator that reduces them."""
    return tiles_for("argmax_rows", device, site, AMD_TILES if device.arch.vendor == "amd" else TILES)

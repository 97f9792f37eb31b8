"""``main_projection`` for gfx950: stored codes and scales go to the matrix unit as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.grid_product import GridProduct, Tiles, prepare_grid_product

#: One matrix instruction, 16x16x128, for every number of rows, so that sums have one order. 80 tiles of the weight in 8
#: parts are 640 programs on 256 compute units, whose loads go to LDS directly, 16 bytes a lane. Reasoned, not measured.
TILES = (
    Tiles(rows=16, columns=64, depth=128, splits=8, warps=4, stages=2, codes=True, instruction=16),
    Tiles(rows=32, columns=64, depth=128, splits=8, warps=4, stages=2, codes=True, instruction=16),
    Tiles(rows=64, columns=64, depth=128, splits=8, warps=4, stages=2, codes=True, instruction=16),
)


def main_projection(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Return the drafter's projection of tapped hidden states, activations and weights in MXFP8: [M, N] bfloat16.

    It is a call of `GridProduct`, which states the arguments, with scratch memory of its own.

    Source: A10.
    """
    return GridProduct(TILES)(x, weight, scales)


def prepare_main_projection(device: Any, site: Any, rows: Sequence[int]) -> GridProduct:
    """Return `main_projection` with memory for the site's calls, compiled for its sizes and row counts."""
    return prepare_grid_product(TILES, device, site, rows)

"""``main_projection`` for SM100 and SM103: stored codes and scales go to the matrix unit as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.grid_product import GridProduct, Tiles, prepare_grid_product

#: The instruction with a scale per 32 takes 128 rows: they are columns of the weight, and the few rows of a step are
#: its other side. 40 tiles of the weight in 8 parts are 320 programs, two for most of 148 or 152 multiprocessors, each
#: with four tiles of 16 KB under way. Reasoned, not measured.
TILES = (
    Tiles(rows=16, columns=128, depth=128, splits=8, warps=4, stages=4, codes=True),
    Tiles(rows=32, columns=128, depth=128, splits=8, warps=4, stages=4, codes=True),
    Tiles(rows=64, columns=128, depth=128, splits=8, warps=4, stages=4, codes=True),
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

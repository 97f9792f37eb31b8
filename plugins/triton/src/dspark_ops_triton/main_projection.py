"""Portable ``main_projection``: both operands decoded to bfloat16, which holds them exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.grid_product import GridProduct, Tiles, prepare_grid_product

#: The weight of V4.1 is 79 MB and its rows are few: 160 tiles of 32 columns in 4 parts keep several tiles under way on
#: every multiprocessor. 32 columns share their scales, and are below the 64 rows from which Hopper multiplies by an
#: instruction of another order of sums.
TILES = (
    Tiles(rows=16, columns=32, depth=128, splits=4, warps=4, stages=4),
    Tiles(rows=32, columns=32, depth=128, splits=4, warps=4, stages=4),
    Tiles(rows=64, columns=32, depth=128, splits=4, warps=4, stages=3),
)
#: All lines use that instruction. 80 tiles of 64 columns in 6 parts read the rows half as often; four programs share a
#: multiprocessor, so that some decode while others wait.
HOPPER_TILES = (
    Tiles(rows=16, columns=64, depth=128, splits=6, warps=4, stages=4, words=True),
    Tiles(rows=32, columns=64, depth=128, splits=6, warps=4, stages=4, words=True),
    Tiles(rows=64, columns=64, depth=128, splits=6, warps=4, stages=3, words=True),
)
AMD_TILES = (
    Tiles(rows=16, columns=32, depth=128, splits=8, warps=2, stages=2, instruction=16),
    Tiles(rows=32, columns=32, depth=128, splits=8, warps=2, stages=2, instruction=16),
    Tiles(rows=64, columns=32, depth=128, splits=8, warps=4, stages=2, instruction=16),
)


def main_projection(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Return the drafter's projection of tapped hidden states, activations and weights in MXFP8: [M, N] bfloat16.

    It is a call of `GridProduct`, which states the arguments, with scratch memory of its own.

    Source: A10.
    """
    return GridProduct(tiles_of(arch_of(x.device)))(x, weight, scales)


def prepare_main_projection(device: Any, site: Any, rows: Sequence[int]) -> GridProduct:
    """Return `main_projection` with memory for the site's calls, compiled for its sizes and row counts."""
    return prepare_grid_product(tiles_of(device.arch.name), device, site, rows)


def tiles_of(arch: str) -> tuple[Tiles, ...]:
    """Return how the work is cut on an architecture, by name."""
    if not arch.startswith("gfx"):
        return HOPPER_TILES if arch == "sm_90" else TILES
    return tuple(replace(tiles, fnuz=arch == "gfx942") for tiles in AMD_TILES)


def arch_of(device: torch.device) -> str:
    """Return the name of the architecture of a GPU; of a CPU, where an interpreter runs kernels, an empty one."""
    if device.type == "cpu":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return properties.gcnArchName.partition(":")[0] if torch.version.hip else f"sm_{properties.major}{properties.minor}"


__all__ = [
    "AMD_TILES", "HOPPER_TILES", "TILES", "arch_of", "main_projection", "prepare_main_projection", "tiles_of",
]  # fmt: skip

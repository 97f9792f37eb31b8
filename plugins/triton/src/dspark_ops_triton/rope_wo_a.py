"""Portable ``rope_wo_a``: the low-rank output projection per group, with the inverse rotation on the way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.head_projection import HeadProjection, compile_head_projection, meetings
from dspark_ops_triton.blocks.head_slabs import Tiles
from dspark_ops_triton.blocks.head_slices import Slices
from dspark_ops_triton.blocks.tile_table import tiles_for

#: 64 programs of V4.1 on one of four ranks take 32 columns each, which share scales of MXFP8, and all of K: no program
#: waits for another. Larger tiles of tokens read the weight fewer times from the cache, smaller ones have less to load
#: and to turn. They need up to 160 KB of shared memory.
TILES = (Slices(most=8, tokens=8, stages=4), Slices(most=32, tokens=16, stages=3), Slices(most=64, tokens=32, stages=3))
#: Where shared memory is less, or not known.
SMALL_TILES = (Tiles(16, 2, 256), Tiles(32, 4, 256))
#: Of 8 waves, so that no registers are spilled. Reasoned, not measured.
AMD_TILES = (Tiles(16, 8, 256, 16), Tiles(32, 8, 256, 16))


def rope_wo_a(o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512) -> Tensor:
    """Return the low-rank projection of the attention output, its rotation undone first: [T, G*R] bfloat16.

    It is a call of `HeadProjection.plain`, which states the arguments; unprepared, on AMD GPUs, a launch that zeroes 32
    bytes per tile comes before the kernel.

    Source: N5, bfloat16 form.
    """
    return HeadProjection(table_of(arch_of(o.device)), ArrivalState(0, o.device)).plain(
        o, weight, freqs, positions, head_dim
    )


def prepare_rope_wo_a(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `rope_wo_a` with memory for its meetings, compiled for the site's sizes and both dtypes of positions."""
    return prepared("rope_wo_a", device, site, rows).plain


def prepared(operator: str, device: Any, site: Any, rows: Sequence[int]) -> HeadProjection:
    """Return the projection bound to a device, with what the table of tiles says for all of its lines.

    The method of the operator is compiled for the site's sizes.
    """
    axes = site.axes
    table = tuple(tiles_for(operator, device, site, line) for line in table_of(device.arch.name))
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    bound = HeadProjection(table, ArrivalState(meetings(table, axes["G"] * axes["R"], rows), target))
    if target.type == "cuda":
        compile_head_projection(bound.plain if operator == "rope_wo_a" else bound.mxfp8, table, site, rows)
    return bound


def table_of(arch: str) -> tuple[Tiles, ...] | tuple[Slices, ...]:
    """Return how the product is cut on an architecture, by name."""
    if arch.startswith("gfx"):
        return AMD_TILES
    return TILES if arch in ("sm_90", "sm_100", "sm_103", "cpu") else SMALL_TILES


def arch_of(device: torch.device) -> str:
    """Return the name of a device's architecture as `table_of` takes it: AMD's are all ``gfx``."""
    if device.type == "cpu":
        return "cpu"
    return "gfx" if torch.version.hip else "sm_{}{}".format(*torch.cuda.get_device_capability(device))


__all__ = [
    "AMD_TILES", "SMALL_TILES", "TILES", "arch_of", "prepare_rope_wo_a", "prepared", "rope_wo_a", "table_of",
]  # fmt: skip

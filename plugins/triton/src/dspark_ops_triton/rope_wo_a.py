"""Portable ``rope_wo_a``: the low-rank output projection per group, with the inverse rotation on the way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.head_slabs import Tiles
from dspark_ops_triton.blocks.slab_projection import HeadSlabs, compile_head_slabs, meetings
from dspark_ops_triton.blocks.tile_table import tiles_for

#: 64 tiles of columns by 16 slabs of V4.1 on one of four ranks are 1024 programs of 16 KB of the weight. On an H200, 2
#: warps take 8.7 us for one token where 4 take 10.2, and 32.6 us for 48 tokens where 4 take 30.8.
TILES = (Tiles(16, 2, 256), Tiles(32, 4, 256))
#: Of 8 waves, so that no registers are spilled. Reasoned, not measured.
AMD_TILES = (Tiles(16, 8, 256, 16), Tiles(32, 8, 256, 16))


def rope_wo_a(o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512) -> Tensor:
    """Return the low-rank projection of the attention output, its rotation undone first: [T, G*R] bfloat16.

    It is a call of `HeadSlabs.plain`, which states the arguments; unprepared, a launch that zeroes 32 bytes per tile
    comes before the kernel.

    Source: N5, bfloat16 form.
    """
    return HeadSlabs(table_of(torch.version.hip is not None), ArrivalState(0, o.device)).plain(
        o, weight, freqs, positions, head_dim
    )


def prepare_rope_wo_a(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `rope_wo_a` with memory for its meetings, compiled for the site's sizes and both dtypes of positions."""
    return prepared("rope_wo_a", device, site, rows).plain


def prepared(operator: str, device: Any, site: Any, rows: Sequence[int]) -> HeadSlabs:
    """Return the projection bound to a device, with what the table of tiles says for all of its lines.

    The method of the operator is compiled for the site's sizes.
    """
    axes = site.axes
    table = tuple(tiles_for(operator, device, site, line) for line in table_of(device.arch.vendor == "amd"))
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    bound = HeadSlabs(table, ArrivalState(meetings(table, axes["G"] * axes["R"], rows), target))
    if target.type == "cuda":
        compile_head_slabs(bound.plain if operator == "rope_wo_a" else bound.mxfp8, table, site, rows)
    return bound


def table_of(amd: bool) -> tuple[Tiles, ...]:
    """Return how the product is cut for one of the vendors."""
    return AMD_TILES if amd else TILES


__all__ = ["AMD_TILES", "TILES", "prepare_rope_wo_a", "prepared", "rope_wo_a", "table_of"]

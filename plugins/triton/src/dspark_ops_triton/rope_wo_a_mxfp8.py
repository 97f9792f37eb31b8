"""Portable ``rope_wo_a_mxfp8``: the low-rank output projection after undoing the rotation, and its MXFP8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.arrival import ArrivalState
from dspark_ops_triton.blocks.head_projection import HeadProjection
from dspark_ops_triton.rope_wo_a import arch_of, prepared, table_of


def rope_wo_a_mxfp8(
    o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `rope_wo_a` returns, its e4m3 codes and its scale bytes in the layout ``sf_128x4``, padding 0.

    It is a call of `HeadProjection.mxfp8`, which states the arguments; unprepared, on AMD GPUs, a launch that zeroes 32
    bytes per tile comes before the kernel.

    Source: N5, MXFP8 form.
    """
    return HeadProjection(table_of(arch_of(o.device)), ArrivalState(0, o.device)).mxfp8(
        o, weight, freqs, positions, head_dim
    )


def prepare_rope_wo_a_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `rope_wo_a_mxfp8` with memory for its meetings, compiled for the site's sizes."""
    return prepared("rope_wo_a_mxfp8", device, site, rows).mxfp8


__all__ = ["prepare_rope_wo_a_mxfp8", "rope_wo_a_mxfp8"]

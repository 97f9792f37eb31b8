"""Portable ``rope_wo_a_mxfp8``: the low-rank output projection after undoing the rotation, and its MXFP8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import rotated_product
from dspark_ops_triton.blocks.rotated_product import Tiles, compile_rope_wo_a_mxfp8

#: A program reads its 32 rows of the weight alone, 256 KB at 4096 lanes: few tokens leave room to read far ahead.
TILES = (Tiles(16, 256, 4, 4), Tiles(32, 128, 4, 4), Tiles(64, 128, 4, 3))
AMD_TILES = (Tiles(16, 128, 2, 2, 16), Tiles(32, 128, 4, 2, 16), Tiles(64, 128, 4, 2, 16))


def rope_wo_a_mxfp8(
    o: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, head_dim: int = 512
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the low-rank projection of the attention output, its rotation undone first, and that as MXFP8.

    Args:
        o: [T, G, K] bfloat16, last stride 1; K holds the heads of a group side by side. Not modified.
        weight: [G, R, K] bfloat16, contiguous; G*R is divisible by 32.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64, of the queries.
        head_dim: lanes of a head, a power of two of 16 or more; the last P of each are rotated backward.

    Returns:
        y [T, G*R] bfloat16; q [T, G*R] float8_e4m3fn and scales uint8 in the layout ``sf_128x4``, padding 0.

    Raises:
        ValueError: K is not a multiple of `head_dim`, which is no such power of two, P is above 64 or above it, or G*R
            is no multiple of 32.

    Bytes moved: ``2*G*R*K`` of weight once per 64 tokens, ``2*T*G*K`` per 32 columns, mostly from cache, ``3*T*G*R``
    out, and G*R / 32 per row, padded to 128. Where R is no multiple of 32, a program reads the lanes of every group of
    the weight that its columns belong to. Launches: 1, none for no tokens.

    Source: N5, MXFP8 form.
    """
    table = AMD_TILES if torch.version.hip else TILES
    return rotated_product.rope_wo_a_mxfp8(table, o, weight, freqs, positions, head_dim)


def prepare_rope_wo_a_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `rope_wo_a_mxfp8`, compiled for the site's sizes, its row counts' tiles and both dtypes of positions.

    Outputs of attention that do not begin at 16-byte boundaries are compiled at their first call.
    """
    if device.arch.vendor != "cpu":
        table = AMD_TILES if device.arch.vendor == "amd" else TILES
        compile_rope_wo_a_mxfp8(rope_wo_a_mxfp8, table, site, rows)
    return rope_wo_a_mxfp8


__all__ = ["AMD_TILES", "TILES", "prepare_rope_wo_a_mxfp8", "rope_wo_a_mxfp8"]

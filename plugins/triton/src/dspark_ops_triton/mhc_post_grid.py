"""Portable ``mhc_post_combine_norm_fp8_grid``: the stream's update, the next collapse, its norm, that on the grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.copy_tiles import Tiles
from dspark_ops_triton.blocks.launching import prepare_launch
from dspark_ops_triton.blocks.post_combine import compile_mhc_post_combine_norm
from dspark_ops_triton.blocks.stream_grid import post_combine_norm_grid
from dspark_ops_triton.blocks.tile_table import tiles_for

#: Threads share a token: ten values of each copy per thread at 5120.
TILES = Tiles(threads=512)


def mhc_post_combine_norm_fp8_grid(
    x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the new copies of the stream, their weighted sum, its RMS norm, and that rounded to the fp8 grid.

    Args:
        x: [T, H] bfloat16, contiguous as all arguments are; H is divisible by 32.
        residual: [T, N, H] bfloat16.
        post: [T, N] float32.
        comb: [T, N, N] float32, source copy first, destination copy last.
        pre: [T, N] float32, weights of the next collapse.
        weight: [H] bfloat16, of the next branch's norm.
        eps: added to the mean square, under the root.

    Returns:
        new_residual [T, N, H], combined [T, H], normed [T, H] and grid [T, H], all bfloat16; the first three to the bit
        what `mhc_post_combine_norm` of this plugin returns.

    Raises:
        ValueError: H is no multiple of 32.

    Bytes moved: ``T * (8*H + 4*N*H) + 2*H``. Launches: 1, none for no tokens.

    Source: A8, A0.2.
    """
    return post_combine_norm_grid(TILES, x, residual, post, comb, pre, weight, eps)


def prepare_mhc_post_combine_norm_fp8_grid(
    device: Any, site: Any, rows: Sequence[int]
) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_post_combine_norm_fp8_grid`, compiled for the site's sizes and tensors on 16 bytes, or not."""
    tiles = tiles_for("mhc_post_combine_norm_fp8_grid", device, site, TILES)
    public, compiled = mhc_post_combine_norm_fp8_grid, compile_mhc_post_combine_norm
    return prepare_launch(post_combine_norm_grid, tiles, public, compiled, device, site, rows)


__all__ = ["mhc_post_combine_norm_fp8_grid", "prepare_mhc_post_combine_norm_fp8_grid"]

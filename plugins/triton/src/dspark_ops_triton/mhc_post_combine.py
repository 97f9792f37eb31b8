"""Portable ``mhc_post_combine`` and ``mhc_post_combine_norm``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.copy_tiles import ColumnTiles, Tiles, prepare_columns
from dspark_ops_triton.blocks.launching import prepare_launch
from dspark_ops_triton.blocks.post_combine import (
    column_constants,
    compile_mhc_post_combine,
    compile_mhc_post_combine_norm,
    launch_constants,
    post_combine_kernel,
    post_combine_norm_kernel,
)
from dspark_ops_triton.blocks.post_combine import mhc_post_combine as _post_combine
from dspark_ops_triton.blocks.post_combine import mhc_post_combine_norm as _post_combine_norm
from dspark_ops_triton.blocks.tile_table import tiles_for

#: 8 values of each copy per thread, 16 bytes.
TILES = ColumnTiles(block=512, threads=64)
#: With the norm, threads share a token: ten values of each copy per thread at 5120.
NORM_TILES = Tiles(threads=512)


def mhc_post_combine(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new copies of the stream and their weighted sum, which the next branch normalises.

    Args:
        x: [T, H] bfloat16.
        residual: [T, N, H] bfloat16.
        post: [T, N] float32.
        comb: [T, N, N] float32, source copy first, destination copy last.
        pre: [T, N] float32, weights of the next collapse.

    Returns:
        new_residual [T, N, H] and combined [T, H], bfloat16.

    Bytes moved: ``T * (4*H + 4*N*H)``. Launches: 1, none for no tokens.

    Source: A8.
    """
    return _post_combine(TILES, x, residual, post, comb, pre)


def mhc_post_combine_norm(
    x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `mhc_post_combine` returns, and the RMS-normalised sum.

    Args:
        x: [T, H] bfloat16.
        residual: [T, N, H] bfloat16.
        post: [T, N] float32.
        comb: [T, N, N] float32, source copy first, destination copy last.
        pre: [T, N] float32, weights of the next collapse.
        weight: [H] bfloat16, of the next branch's norm.
        eps: added to the mean square, under the root.

    Returns:
        new_residual [T, N, H], combined [T, H] and normed [T, H], all bfloat16.

    Bytes moved: ``T * (6*H + 4*N*H) + 2*H``. Launches: 1, none for no tokens.

    Source: A8.
    """
    return _post_combine_norm(NORM_TILES, x, residual, post, comb, pre, weight, eps)


def prepare_mhc_post_combine(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_post_combine`, compiled for the site's sizes and for tensors that begin on 16 bytes, or not."""
    tiles, compiled = tiles_for("mhc_post_combine", device, site, TILES), compile_mhc_post_combine
    return prepare_columns(_post_combine, tiles, mhc_post_combine, compiled, device, site, rows)


def prepare_mhc_post_combine_norm(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_post_combine_norm`, compiled as `prepare_mhc_post_combine` does."""
    tiles, compiled = tiles_for("mhc_post_combine_norm", device, site, NORM_TILES), compile_mhc_post_combine_norm
    return prepare_launch(_post_combine_norm, tiles, mhc_post_combine_norm, compiled, device, site, rows)


__all__ = [
    "NORM_TILES",
    "TILES",
    "column_constants",
    "launch_constants",
    "mhc_post_combine",
    "mhc_post_combine_norm",
    "post_combine_kernel",
    "post_combine_norm_kernel",
    "prepare_mhc_post_combine",
    "prepare_mhc_post_combine_norm",
]

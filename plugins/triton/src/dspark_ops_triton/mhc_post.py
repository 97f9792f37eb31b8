"""Portable ``mhc_post``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dspark_ops_triton.blocks.copy_tiles import prepare_columns
from dspark_ops_triton.blocks.copy_update import Tiles, compile_mhc_post, launch_constants, launch_options, post_kernel
from dspark_ops_triton.blocks.copy_update import mhc_post as _post
from dspark_ops_triton.blocks.tile_table import tiles_for

#: 8 values of each copy per thread, 16 bytes.
TILES = Tiles(block=512, threads=64)


def mhc_post(x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
    """Return the new copies of the stream: each is its share of the branch output plus a mix of the old copies.

    Args:
        x: [T, H] bfloat16.
        residual: [T, N, H] bfloat16.
        post: [T, N] float32.
        comb: [T, N, N] float32, source copy first, destination copy last.

    Returns:
        [T, N, H] bfloat16, every bit as the contract orders the roundings.

    Bytes moved: ``T * (2*H + 4*N*H)`` and 80 per token for the weights. Launches: 1, none for no tokens.

    Source: N3.5.
    """
    return _post(TILES, x, residual, post, comb)


def prepare_mhc_post(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
    """Return `mhc_post`, compiled for the site's sizes and for tensors that begin on 16 bytes, or not."""
    tiles = tiles_for("mhc_post", device, site, TILES)
    return prepare_columns(_post, tiles, mhc_post, compile_mhc_post, device, site, rows)


__all__ = ["TILES", "Tiles", "launch_constants", "launch_options", "mhc_post", "post_kernel", "prepare_mhc_post"]

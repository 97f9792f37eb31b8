"""Portable ``mhc_combine_norm_mxfp8``: the combine and its norm, and their MXFP8 in the same launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.launching import prepare_launch
from dspark_ops_triton.blocks.norm_mxfp8 import compile_mhc_combine_norm_mxfp8
from dspark_ops_triton.blocks.norm_mxfp8 import mhc_combine_norm_mxfp8 as _combine_norm_mxfp8
from dspark_ops_triton.blocks.tile_table import tiles_for
from dspark_ops_triton.mhc import TILES


def mhc_combine_norm_mxfp8(x: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised weighted sum of each token's copies, and its MXFP8 codes and scale bytes.

    Args:
        x: [T, N*H] bfloat16, last stride 1; H is divisible by 32.
        pre: [T, N] float32 or bfloat16, last stride 1.
        weight: [H] bfloat16.
        eps: added to the mean square, under the root.

    Returns:
        y [T, H] bfloat16, q [T, H] float8_e4m3fn and scales uint8 in the layout ``sf_128x4``, padding 0.

    Bytes moved: ``T * (2*N*H + 3*H) + 2*H``, and H / 32 per row, padded to 128. Launches: 1, none for no tokens.

    Source: N3.4.
    """
    return _combine_norm_mxfp8(TILES, x, pre, weight, eps)


def prepare_mhc_combine_norm_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_combine_norm_mxfp8`, compiled for the site's sizes and the dtype of its weights of the copies."""
    tiles, compiled = tiles_for("mhc_combine_norm_mxfp8", device, site, TILES), compile_mhc_combine_norm_mxfp8
    return prepare_launch(_combine_norm_mxfp8, tiles, mhc_combine_norm_mxfp8, compiled, device, site, rows)


__all__ = ["mhc_combine_norm_mxfp8", "prepare_mhc_combine_norm_mxfp8"]

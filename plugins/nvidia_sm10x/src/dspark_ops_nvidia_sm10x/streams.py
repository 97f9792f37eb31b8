"""``mhc_combine_norm_mxfp8`` and ``mhc_post_combine_norm`` for SM100 and SM103: threads of a token as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks import norm_mxfp8, post_combine
from dspark_ops_triton.blocks.copy_tiles import Tiles
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.launching import prepare_launch

#: 20 values of each copy per thread at 5120: a token's four copies are 40 KB, all of it under way at once. Not tuned on
#: these parts; on an H200 clusters of four programs are faster still (tiles.json of plugins/triton).
NORM_TILES = Tiles(threads=256)
#: The update writes four copies and reads five rows: more threads keep a token in fewer registers each. Reasoned.
POST_TILES = Tiles(threads=512)


def mhc_combine_norm_mxfp8(x: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised weighted sum of each token's copies, and its MXFP8 codes and scale bytes.

    Arguments are those of the contract. Launches: 1, none for no tokens.

    Source: N3.4.
    """
    return norm_mxfp8.mhc_combine_norm_mxfp8(NORM_TILES, x, pre, weight, eps)


def mhc_post_combine_norm(
    x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new copies of the stream, their weighted sum and its norm.

    Arguments are those of the contract. Launches: 1, none for no tokens.

    Source: A8.
    """
    return post_combine.mhc_post_combine_norm(POST_TILES, x, residual, post, comb, pre, weight, eps)


def prepare_mhc_combine_norm_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_combine_norm_mxfp8`, set up early, compiled for the site's sizes."""
    body, compiled = norm_mxfp8.mhc_combine_norm_mxfp8, norm_mxfp8.compile_mhc_combine_norm_mxfp8
    tiles = replace(NORM_TILES, pdl=has_pdl(device))
    return prepare_launch(body, tiles, mhc_combine_norm_mxfp8, compiled, device, site, rows)


def prepare_mhc_post_combine_norm(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_post_combine_norm`, set up early, compiled for the site's sizes."""
    body, compiled = post_combine.mhc_post_combine_norm, post_combine.compile_mhc_post_combine_norm
    tiles = replace(POST_TILES, pdl=has_pdl(device))
    return prepare_launch(body, tiles, mhc_post_combine_norm, compiled, device, site, rows)

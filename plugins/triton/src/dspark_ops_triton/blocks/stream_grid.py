"""A launch for the update of the stream, the next collapse, its norm, and that on the fp8 grid (A8, A0.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark_ops_triton.blocks.launching import RowTiles, row_options
from dspark_ops_triton.blocks.post_combine import launch_constants, post_combine_norm_kernel

#: Lanes of a group, which no block parts.
GROUP = 32


def post_combine_norm_grid(
    tiles: RowTiles, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return all of a site: ``mhc_post_combine_norm_fp8_grid`` (A8, A0.2), arguments as in its contract."""
    tokens, copies, hidden = residual.shape
    if hidden % GROUP:
        raise ValueError(f"mhc_post_combine_norm_fp8_grid: wanted H in whole groups of {GROUP}, got {hidden}")
    new_residual = torch.empty_like(residual)
    combined, normed, grid = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    if tokens and hidden:
        post_combine_norm_kernel[(tokens,)](
            x, residual, post, comb, pre, weight, new_residual, combined, normed, grid, float(eps),
            **launch_constants(tiles, copies, hidden, GROUP), **row_options(tiles),
        )  # fmt: skip
    return new_residual, combined, normed, grid


__all__ = ["GROUP", "post_combine_norm_grid"]

"""A launch for the update of the stream, the next collapse, its norm, and that on the fp8 grid (A8, A0.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark_ops_triton.blocks.copy_tiles import Tiles, shared_options
from dspark_ops_triton.blocks.post_combine import launch_constants, post_combine_norm_kernel
from dspark_ops_triton.blocks.ptx import takes_ptx

#: Lanes of a group, which no block parts.
GROUP = 32


def post_combine_norm_grid(
    tiles: Tiles, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return all of a site: ``mhc_post_combine_norm_fp8_grid`` (A8, A0.2), arguments as in its contract."""
    tokens, copies, hidden = residual.shape
    if hidden % GROUP:
        raise ValueError(f"mhc_post_combine_norm_fp8_grid: wanted H in whole groups of {GROUP}, got {hidden}")
    new_residual = torch.empty_like(residual)
    combined, normed, grid = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    if tokens and hidden:
        aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (x, residual, weight))
        constants = launch_constants(tiles, copies, hidden, takes_ptx(post_combine_norm_kernel), aligned)
        post_combine_norm_kernel[(tokens,)](
            x, residual, post, comb, pre, weight, new_residual, combined, normed, grid, float(eps),
            **constants, **shared_options(tiles, torch.version.hip is not None, constants["PROGRAMS"]),
        )  # fmt: skip
    return new_residual, combined, normed, grid


__all__ = ["GROUP", "post_combine_norm_grid"]

"""A launch for the update of the stream, the next collapse, its norm, and that on the fp8 grid (A8, A0.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.fp8_grid import grid_values
from dspark_ops_triton.blocks.hyper import load_copies, load_weights, update_and_sum
from dspark_ops_triton.blocks.launching import RowTiles, row_options
from dspark_ops_triton.blocks.norm import inverse_rms, inverse_rms_of_two, two_blocks


@triton.jit
def store_normed(value, inverse, gain, normed, grid, lanes, mask):
    """Store (value * inverse) * gain of float32 lanes as bfloat16 at `normed`, and what that is on the grid at `grid`.

    A block has whole groups of 32 lanes.
    """
    count: tl.constexpr = value.shape[0] // 32
    rounded = (value * inverse * gain.to(tl.float32)).to(tl.bfloat16)
    tl.store(normed + lanes, rounded, mask=mask)
    on_grid = grid_values(tl.reshape(rounded.to(tl.float32), (count, 32)))
    tl.store(grid + lanes, tl.reshape(on_grid, (32 * count,)).to(tl.bfloat16), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["post", "comb", "pre"])
def post_combine_norm_grid_kernel(
    x, residual, post, comb, pre, weight, new_residual, combined, normed, grid, eps,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, MORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write one token's new copies, their sum, its norm and that on the grid.

    Its lanes lie in a block of BLOCK and, unless MORE is 0, one of MORE.
    """
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    x += token * HIDDEN
    combined += token * HIDDEN
    normed += token * HIDDEN
    grid += token * HIDDEN
    residual += token * COPIES * HIDDEN
    out = new_residual + token * COPIES * HIDDEN
    lanes = tl.arange(0, BLOCK)
    mask = lanes < HIDDEN
    # All loads come before the first store, which would hold up those behind it.
    branch = tl.load(x + lanes, mask=mask, other=0.0)
    old = load_copies(residual, lanes, mask, COPIES, HIDDEN)
    gain = tl.load(weight + lanes, mask=mask, other=0.0)
    if MORE:
        more = BLOCK + tl.arange(0, MORE)
        more_mask = more < HIDDEN
        more_branch = tl.load(x + more, mask=more_mask, other=0.0)
        more_old = load_copies(residual, more, more_mask, COPIES, HIDDEN)
        more_gain = tl.load(weight + more, mask=more_mask, other=0.0)
    posts, pres = load_weights(post + token * COPIES, COPIES), load_weights(pre + token * COPIES, COPIES)
    combs = load_weights(comb + token * COPIES * COPIES, COPIES * COPIES)
    rounded = update_and_sum(branch, old, posts, combs, pres, out, lanes, mask, COPIES, HIDDEN).to(tl.bfloat16)
    tl.store(combined + lanes, rounded, mask=mask)
    value = rounded.to(tl.float32)
    if MORE:
        total = update_and_sum(more_branch, more_old, posts, combs, pres, out, more, more_mask, COPIES, HIDDEN)
        more_rounded = total.to(tl.bfloat16)
        tl.store(combined + more, more_rounded, mask=more_mask)
        more_value = more_rounded.to(tl.float32)
        inverse = inverse_rms_of_two(value, more_value, HIDDEN, eps)
        store_normed(more_value, inverse, more_gain, normed, grid, more, more_mask)
    else:
        inverse = inverse_rms(value, HIDDEN, eps)
    store_normed(value, inverse, gain, normed, grid, lanes, mask)


def post_combine_norm_grid(
    tiles: RowTiles, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return all of a site: ``mhc_post_combine_norm_fp8_grid`` (A8, A0.2), arguments as in its contract."""
    tokens, copies, hidden = residual.shape
    if hidden % 32:
        raise ValueError(f"mhc_post_combine_norm_fp8_grid: wanted H in whole groups of 32, got {hidden}")
    new_residual = torch.empty_like(residual)
    combined, normed, grid = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    if tokens and hidden:
        post_combine_norm_grid_kernel[(tokens,)](
            x, residual, post, comb, pre, weight, new_residual, combined, normed, grid, float(eps),
            **launch_constants(tiles, copies, hidden), **row_options(tiles),
        )  # fmt: skip
    return new_residual, combined, normed, grid


def compile_post_combine_norm_grid(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator, cut somehow, once per build that a site needs: tensors on 16 bytes, or not."""
    copies, hidden = site.axes["N"], site.axes["H"]
    post, comb = torch.zeros(1, copies, device="cuda"), torch.zeros(1, copies, copies, device="cuda")
    weight = torch.zeros(hidden, dtype=torch.bfloat16, device="cuda")
    buffer = torch.zeros(copies * hidden + 1, dtype=torch.bfloat16, device="cuda")
    for start in (0, 1):
        x = buffer[start : start + hidden].view(1, hidden)
        call(x, buffer[start : start + copies * hidden].view(1, copies, hidden), post, comb, post, weight)


def launch_constants(tiles: RowTiles, copies: int, hidden: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch; blocks hold whole groups of 32 lanes."""
    block, more = two_blocks(hidden, 32)
    return {"COPIES": copies, "HIDDEN": hidden, "BLOCK": block, "MORE": more, "PDL": tiles.pdl}


__all__ = [
    "compile_post_combine_norm_grid",
    "launch_constants",
    "post_combine_norm_grid",
    "post_combine_norm_grid_kernel",
    "store_normed",
]

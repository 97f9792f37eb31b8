"""New copies of the stream with their sum, its norm, and that on the fp8 grid; what a program takes is data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.copy_tiles import ColumnTiles, Tiles, launch_options
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.fp8_grid import grid_values
from dspark_ops_triton.blocks.hyper import load_copies, load_weights, update_and_sum
from dspark_ops_triton.blocks.launching import RowTiles
from dspark_ops_triton.blocks.norm import inverse_rms, inverse_rms_of_two, two_blocks


@triton.jit(do_not_specialize_on_alignment=["post", "comb", "pre"])
def post_combine_kernel(
    x, residual, post, comb, pre, new_residual, combined,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write BLOCK columns of one token's new copies and of their sum."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < HIDDEN
    branch = tl.load(x + token * HIDDEN + lanes, mask=mask, other=0.0)
    old = load_copies(residual + token * COPIES * HIDDEN, lanes, mask, COPIES, HIDDEN)
    posts, pres = load_weights(post + token * COPIES, COPIES), load_weights(pre + token * COPIES, COPIES)
    combs = load_weights(comb + token * COPIES * COPIES, COPIES * COPIES)
    out = new_residual + token * COPIES * HIDDEN
    total = update_and_sum(branch, old, posts, combs, pres, out, lanes, mask, COPIES, HIDDEN)
    tl.store(combined + token * HIDDEN + lanes, total.to(tl.bfloat16), mask=mask)


@triton.jit
def store_normed(value, inverse, gain, normed, grid, lanes, mask):
    """Store (value * inverse) * gain of float32 lanes as bfloat16 at `normed`, and what that is on the grid at `grid`.

    Without a grid, that is None; with one, a block has whole groups of 32 lanes.
    """
    rounded = (value * inverse * gain.to(tl.float32)).to(tl.bfloat16)
    tl.store(normed + lanes, rounded, mask=mask)
    if grid is not None:
        count: tl.constexpr = value.shape[0] // 32
        on_grid = grid_values(tl.reshape(rounded.to(tl.float32), (count, 32)))
        tl.store(grid + lanes, tl.reshape(on_grid, (32 * count,)).to(tl.bfloat16), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["post", "comb", "pre"])
def post_combine_norm_kernel(
    x, residual, post, comb, pre, weight, new_residual, combined, normed, grid, eps,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, MORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write one token's new copies, their sum, its norm and, unless `grid` is None, that on the grid.

    Its lanes lie in a block of BLOCK and, unless MORE is 0, one of MORE.
    """
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    x += token * HIDDEN
    combined += token * HIDDEN
    normed += token * HIDDEN
    if grid is not None:
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


def mhc_post_combine(
    tiles: ColumnTiles, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor
) -> tuple[Tensor, Tensor]:
    """Return new copies and their sum: ``mhc_post_combine`` (A8), arguments as in its contract."""
    tokens, copies, hidden = residual.shape
    tiles = tiles.at(tokens)
    new_residual, combined = torch.empty_like(residual), torch.empty_like(x)
    if tokens:
        post_combine_kernel[(tokens, triton.cdiv(hidden, tiles.block))](
            x, residual, post, comb, pre, new_residual, combined, **column_constants(tiles, copies, hidden),
            **launch_options(tiles, torch.version.hip is not None),
        )  # fmt: skip
    return new_residual, combined


def mhc_post_combine_norm(
    tiles: Tiles, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return new copies, sum and norm: ``mhc_post_combine_norm`` (A8), arguments as in its contract."""
    tokens, copies, hidden = residual.shape
    new_residual, combined, normed = torch.empty_like(residual), torch.empty_like(x), torch.empty_like(x)
    if tokens:
        post_combine_norm_kernel[(tokens,)](
            x, residual, post, comb, pre, weight, new_residual, combined, normed, None, float(eps),
            **launch_constants(tiles, copies, hidden), **launch_options(tiles, torch.version.hip is not None),
        )  # fmt: skip
    return new_residual, combined, normed


def launch_constants(tiles: Tiles | RowTiles, copies: int, hidden: int, least: int = 1) -> dict[str, Any]:
    """Return the compile-time arguments of a launch with the norm; blocks hold `least` lanes or more."""
    block, more = two_blocks(hidden, least)
    return {"COPIES": copies, "HIDDEN": hidden, "BLOCK": block, "MORE": more, "PDL": tiles.pdl}


def column_constants(tiles: ColumnTiles, copies: int, hidden: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch without the norm."""
    return {"COPIES": copies, "HIDDEN": hidden, "BLOCK": tiles.block, "PDL": tiles.pdl}


def compile_mhc_post_combine(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator once per build that a site needs: tensors that begin on 16 bytes, or not."""
    for inputs in _sample_inputs(site):
        call(*inputs)


def compile_mhc_post_combine_norm(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator once per build that a site needs: tensors that begin on 16 bytes, or not."""
    weight = torch.zeros(site.axes["H"], dtype=torch.bfloat16, device="cuda")
    for inputs in _sample_inputs(site):
        call(*inputs, weight)


def _sample_inputs(site: Any) -> Iterator[tuple[Tensor, ...]]:
    copies, hidden = site.axes["N"], site.axes["H"]
    post = torch.zeros(1, copies, device="cuda")
    comb = torch.zeros(1, copies, copies, device="cuda")
    buffer = torch.zeros(copies * hidden + 1, dtype=torch.bfloat16, device="cuda")
    for start in (0, 1):
        x = buffer[start : start + hidden].view(1, hidden)
        yield x, buffer[start : start + copies * hidden].view(1, copies, hidden), post, comb, post

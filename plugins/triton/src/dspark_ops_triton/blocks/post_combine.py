"""New copies of the stream with their sum, its norm, and that on the fp8 grid; what a program takes is data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.bf16_pairs import rounded, widened
from dspark_ops_triton.blocks.copy_tiles import ColumnTiles, Tiles, launch_options, shared_options
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.fp8_grid import grid_values
from dspark_ops_triton.blocks.hyper import load_copies, load_weights, updated_copy
from dspark_ops_triton.blocks.ptx import takes_ptx
from dspark_ops_triton.blocks.row_blocks import (
    block_lanes,
    load_lanes,
    loads_stay_before,
    programs_of,
    row_blocks,
    store_lanes,
)
from dspark_ops_triton.blocks.row_sums import open_row, row_sum, slot_index


@triton.jit(do_not_specialize_on_alignment=["post", "comb", "pre"])
def post_combine_kernel(
    x, residual, post, comb, pre, new_residual, combined,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write BLOCK columns of one token's new copies and of their sum."""
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < HIDDEN
    begin(PDL)
    branch = tl.load(x + token * HIDDEN + lanes, mask=mask, other=0.0)
    old = load_copies(residual + token * COPIES * HIDDEN, lanes, mask, COPIES, HIDDEN)
    posts, pres = load_weights(post + token * COPIES, COPIES), load_weights(pre + token * COPIES, COPIES)
    combs = load_weights(comb + token * COPIES * COPIES, COPIES * COPIES)
    out = new_residual + token * COPIES * HIDDEN
    branch, old = widened(branch, PTX), widened_copies(old, COPIES, PTX)
    total = tl.zeros(branch.shape, tl.float32)
    for copy in tl.static_range(COPIES):
        value = rounded(updated_copy(branch, old, posts, combs, copy, COPIES), PTX)
        tl.store(out + copy * HIDDEN + lanes, value, mask=mask)
        total = with_copy(total, value, pres[copy], PTX)
    tl.store(combined + token * HIDDEN + lanes, rounded(total, PTX), mask=mask)


@triton.jit
def widened_copies(copies, COPIES: tl.constexpr, PTX: tl.constexpr):
    """Return blocks of a tuple as float32."""
    wide = ()
    for copy in tl.static_range(COPIES):
        wide = wide + (widened(copies[copy], PTX),)  # noqa: RUF005
    return wide


@triton.jit
def with_copy(total, value, weight, PTX: tl.constexpr):
    """Return a weighted sum with a new copy added: its product and the sum are rounded (A8)."""
    return total + weight * widened(value, PTX)


@triton.jit(do_not_specialize_on_alignment=["post", "comb", "pre"])
def post_combine_norm_kernel(
    x, residual, post, comb, pre, weight, new_residual, combined, normed, grid, eps,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, MORE: tl.constexpr,
    PROGRAMS: tl.constexpr, WARPS: tl.constexpr, SLOT: tl.constexpr, PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write one token's new copies, their sum, its norm and, unless `grid` is None, that on the grid.

    The PROGRAMS of a cluster share the token. The norm's weight, which no kernel of a step writes, is read before the
    wait for the kernels before this one.
    """
    parts: tl.constexpr = BLOCKS + (1 if MORE else 0)
    room = open_row(PROGRAMS, SLOT)
    token = tl.program_id(0).to(tl.int64)
    gains = ()
    for part in tl.static_range(parts):
        lane = block_lanes(part, HIDDEN, PROGRAMS, BLOCK, BLOCKS, MORE)
        gains = gains + (load_lanes(weight, lane, part, HIDDEN, BLOCK, BLOCKS, MORE),)  # noqa: RUF005
    x += token * HIDDEN
    combined += token * HIDDEN
    normed += token * HIDDEN
    residual += token * COPIES * HIDDEN
    new_residual += token * COPIES * HIDDEN
    if grid is not None:
        grid += token * HIDDEN
    begin(PDL)
    posts, pres = load_weights(post + token * COPIES, COPIES), load_weights(pre + token * COPIES, COPIES)
    combs = load_weights(comb + token * COPIES * COPIES, COPIES * COPIES)
    branches, olds = (), ()
    for part in tl.static_range(parts):
        lane = block_lanes(part, HIDDEN, PROGRAMS, BLOCK, BLOCKS, MORE)
        branches = branches + (load_lanes(x, lane, part, HIDDEN, BLOCK, BLOCKS, MORE),)  # noqa: RUF005
        for copy in tl.static_range(COPIES):
            old = load_lanes(residual + copy * HIDDEN, lane, part, HIDDEN, BLOCK, BLOCKS, MORE)
            olds = olds + (old,)  # noqa: RUF005
    loads_stay_before(PDL)
    sums = ()
    for part in tl.static_range(parts):
        lane = block_lanes(part, HIDDEN, PROGRAMS, BLOCK, BLOCKS, MORE)
        branch, old = widened(branches[part], PTX), ()
        for copy in tl.static_range(COPIES):
            old = old + (widened(olds[part * COPIES + copy], PTX),)  # noqa: RUF005
        total = tl.zeros(branch.shape, tl.float32)
        for copy in tl.static_range(COPIES):
            value = rounded(updated_copy(branch, old, posts, combs, copy, COPIES), PTX)
            store_lanes(new_residual + copy * HIDDEN, lane, value, part, HIDDEN, BLOCK, BLOCKS, MORE)
            total = with_copy(total, value, pres[copy], PTX)
        value = rounded(total, PTX)
        store_lanes(combined, lane, value, part, HIDDEN, BLOCK, BLOCKS, MORE)
        sums = sums + (widened(value, PTX),)  # noqa: RUF005
    squares = tl.zeros((PROGRAMS * BLOCK,), tl.float32)
    for part in tl.static_range(BLOCKS):
        squares = tl.fma(sums[part], sums[part], squares)
    more = sums[BLOCKS] * sums[BLOCKS] if MORE else None
    inverse = tl.rsqrt(row_sum(squares, more, room, PROGRAMS, WARPS, SLOT) * (1.0 / HIDDEN) + eps)
    for part in tl.static_range(parts):
        lane = block_lanes(part, HIDDEN, PROGRAMS, BLOCK, BLOCKS, MORE)
        value = rounded(sums[part] * inverse * widened(gains[part], PTX), PTX)
        store_lanes(normed, lane, value, part, HIDDEN, BLOCK, BLOCKS, MORE)
        if grid is not None:
            groups = tl.reshape(widened(value, PTX), (value.shape[0] // 32, 32))
            on_grid = rounded(tl.reshape(grid_values(groups), value.shape), PTX)
            store_lanes(grid, lane, on_grid, part, HIDDEN, BLOCK, BLOCKS, MORE)


def mhc_post_combine(
    tiles: ColumnTiles, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor
) -> tuple[Tensor, Tensor]:
    """Return new copies and their sum: ``mhc_post_combine`` (A8), arguments as in its contract."""
    tokens, copies, hidden = residual.shape
    tiles = tiles.at(tokens)
    new_residual, combined = torch.empty_like(residual), torch.empty_like(x)
    if tokens:
        post_combine_kernel[(tokens, triton.cdiv(hidden, tiles.block))](
            x, residual, post, comb, pre, new_residual, combined,
            **column_constants(tiles, copies, hidden, takes_ptx(post_combine_kernel)),
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
        aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (x, residual, weight))
        constants = launch_constants(tiles, copies, hidden, takes_ptx(post_combine_norm_kernel), aligned)
        post_combine_norm_kernel[(tokens,)](
            x, residual, post, comb, pre, weight, new_residual, combined, normed, None, float(eps),
            **constants, **shared_options(tiles, torch.version.hip is not None, constants["PROGRAMS"]),
        )  # fmt: skip
    return new_residual, combined, normed


def launch_constants(tiles: Tiles, copies: int, hidden: int, ptx: bool, aligned: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch with the norm; `aligned`: all tensors begin on 16 bytes."""
    programs = programs_of(tiles.programs, hidden, tiles.threads, ptx and aligned and hidden % 8 == 0)
    warps = tiles.threads // 32
    return {
        "COPIES": copies, "HIDDEN": hidden, **row_blocks(hidden, tiles.threads, programs), "PROGRAMS": programs,
        "WARPS": warps, "SLOT": slot_index(warps, programs, ptx), "PTX": ptx, "PDL": tiles.pdl,
    }  # fmt: skip


def column_constants(tiles: ColumnTiles, copies: int, hidden: int, ptx: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch without the norm."""
    return {"COPIES": copies, "HIDDEN": hidden, "BLOCK": tiles.block, "PTX": ptx, "PDL": tiles.pdl}


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

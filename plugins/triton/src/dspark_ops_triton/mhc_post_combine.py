"""Portable ``mhc_post_combine`` and ``mhc_post_combine_norm``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.hyper import load_copies, load_weights, update_and_sum
from dspark_ops_triton.blocks.launching import bind_launch
from dspark_ops_triton.blocks.norm import inverse_rms, inverse_rms_of_two, two_blocks
from dspark_ops_triton.blocks.tile_table import tiles_for
from dspark_ops_triton.mhc import Tiles, launch_options

#: Columns of a program without the norm: 8 values of each copy per thread, 16 bytes.
BLOCK = 512
TILES = Tiles(threads=64)
#: With the norm, threads share a token: ten values of each copy per thread at 5120.
NORM_TILES = Tiles(threads=512)


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


@triton.jit(do_not_specialize_on_alignment=["post", "comb", "pre"])
def post_combine_norm_kernel(
    x, residual, post, comb, pre, weight, new_residual, combined, normed, eps,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, MORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write one token's new copies, their sum and its norm, in a block of BLOCK lanes and, unless 0, one of MORE."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    x += token * HIDDEN
    combined += token * HIDDEN
    normed += token * HIDDEN
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
        tl.store(normed + more, (more_value * inverse * more_gain.to(tl.float32)).to(tl.bfloat16), mask=more_mask)
    else:
        inverse = inverse_rms(value, HIDDEN, eps)
    tl.store(normed + lanes, (value * inverse * gain.to(tl.float32)).to(tl.bfloat16), mask=mask)


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


def _post_combine(
    tiles: Tiles, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor
) -> tuple[Tensor, Tensor]:
    tokens, copies, hidden = residual.shape
    new_residual, combined = torch.empty_like(residual), torch.empty_like(x)
    if tokens:
        post_combine_kernel[(tokens, triton.cdiv(hidden, BLOCK))](
            x, residual, post, comb, pre, new_residual, combined, **column_constants(tiles, copies, hidden),
            **launch_options(tiles, torch.version.hip is not None),
        )  # fmt: skip
    return new_residual, combined


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


def _post_combine_norm(
    tiles: Tiles, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, pre: Tensor, weight: Tensor,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tokens, copies, hidden = residual.shape
    new_residual, combined, normed = torch.empty_like(residual), torch.empty_like(x), torch.empty_like(x)
    if tokens:
        post_combine_norm_kernel[(tokens,)](
            x, residual, post, comb, pre, weight, new_residual, combined, normed, float(eps),
            **launch_constants(tiles, copies, hidden), **launch_options(tiles, torch.version.hip is not None),
        )  # fmt: skip
    return new_residual, combined, normed


def launch_constants(tiles: Tiles, copies: int, hidden: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch with the norm."""
    block, more = two_blocks(hidden)
    return {"COPIES": copies, "HIDDEN": hidden, "BLOCK": block, "MORE": more, "PDL": tiles.pdl}


def column_constants(tiles: Tiles, copies: int, hidden: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch without the norm."""
    return {"COPIES": copies, "HIDDEN": hidden, "BLOCK": BLOCK, "PDL": tiles.pdl}


def prepare_mhc_post_combine(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_post_combine`, compiled for the site's sizes and for tensors that begin on 16 bytes, or not."""
    if device.arch.vendor == "cpu":
        return mhc_post_combine
    bound = bind_launch(_post_combine, tiles_for("mhc_post_combine", device, site, TILES), mhc_post_combine)
    for inputs in _sample_inputs(site):
        bound(*inputs)
    return bound


def prepare_mhc_post_combine_norm(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_post_combine_norm`, compiled as `prepare_mhc_post_combine` does."""
    if device.arch.vendor == "cpu":
        return mhc_post_combine_norm
    tiles = tiles_for("mhc_post_combine_norm", device, site, NORM_TILES)
    bound = bind_launch(_post_combine_norm, tiles, mhc_post_combine_norm)
    weight = torch.zeros(site.axes["H"], dtype=torch.bfloat16, device="cuda")
    for inputs in _sample_inputs(site):
        bound(*inputs, weight)
    return bound


def _sample_inputs(site: Any) -> Iterator[tuple[Tensor, ...]]:
    copies, hidden = site.axes["N"], site.axes["H"]
    post = torch.zeros(1, copies, device="cuda")
    comb = torch.zeros(1, copies, copies, device="cuda")
    buffer = torch.zeros(copies * hidden + 1, dtype=torch.bfloat16, device="cuda")
    for start in (0, 1):
        x = buffer[start : start + hidden].view(1, hidden)
        yield x, buffer[start : start + copies * hidden].view(1, copies, hidden), post, comb, post

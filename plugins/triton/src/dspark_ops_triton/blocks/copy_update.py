"""The update of the stream, a copy at a time, with the tile sizes as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from dspark_ops_triton.blocks.copy_tiles import ColumnTiles as Tiles
from dspark_ops_triton.blocks.copy_tiles import launch_options
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.hyper import load_weights, updated_copy


@triton.jit(do_not_specialize_on_alignment=["post", "comb"])
def post_kernel(
    x, residual, post, comb, out, COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write BLOCK columns of one token's new copies."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # what is loaded outside is not stored
    mask = None if HIDDEN % BLOCK == 0 else lanes < HIDDEN
    branch = tl.load(x + token * HIDDEN + lanes, mask=mask)
    old = ()
    # all copies before any is stored: a store in between would hold up the loads behind it
    for copy in tl.static_range(COPIES):
        old = old + (tl.load(residual + (token * COPIES + copy) * HIDDEN + lanes, mask=mask),)  # noqa: RUF005
    posts = load_weights(post + token * COPIES, COPIES)
    combs = load_weights(comb + token * COPIES * COPIES, COPIES * COPIES)
    for copy in tl.static_range(COPIES):
        value = updated_copy(branch, old, posts, combs, copy, COPIES)
        tl.store(out + (token * COPIES + copy) * HIDDEN + lanes, value.to(tl.bfloat16), mask=mask)


def mhc_post(
    tiles: Tiles, x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """Return the new copies of the stream: ``mhc_post`` (N3.5), arguments as in its contract."""
    tokens, copies, hidden = residual.shape
    out = torch.empty_like(residual)
    if tokens:
        tiles = tiles.at(tokens)
        post_kernel[(tokens, triton.cdiv(hidden, tiles.block))](
            x, residual, post, comb, out, **launch_constants(tiles, copies, hidden),
            **launch_options(tiles, torch.version.hip is not None),
        )  # fmt: skip
    return out


def launch_constants(tiles: Tiles, copies: int, hidden: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"COPIES": copies, "HIDDEN": hidden, "BLOCK": tiles.block, "PDL": tiles.pdl}


def compile_mhc_post(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator, cut somehow, once per build that a site needs: tensors that begin on 16 bytes, or not."""
    copies, hidden = site.axes["N"], site.axes["H"]
    post, comb = torch.zeros(1, copies, device="cuda"), torch.zeros(1, copies, copies, device="cuda")
    buffer = torch.zeros(copies * hidden + 1, dtype=torch.bfloat16, device="cuda")
    for start in (0, 1):
        x = buffer[start : start + hidden].view(1, hidden)
        call(x, buffer[start : start + copies * hidden].view(1, copies, hidden), post, comb)


__all__ = ["Tiles", "compile_mhc_post", "launch_constants", "launch_options", "mhc_post", "post_kernel"]

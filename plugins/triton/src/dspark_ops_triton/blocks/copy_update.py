"""The update of the stream, a copy at a time, with the tile sizes as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.hyper import load_copies, load_weights, updated_copy


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a token is cut.

    Attributes:
        block: columns of a program, a power of two.
        threads: threads of a program.
        doubled_from: tokens from which on programs are twice as large, 0 for never. Each column is computed by itself,
            so its bits do not depend on that.
        pdl: the kernel is set up while the one before it runs.
    """

    block: int
    threads: int
    doubled_from: int = 0
    pdl: bool = False

    def at(self, tokens: int) -> Tiles:
        """Return the tiles of a launch over `tokens`."""
        if not 0 < self.doubled_from <= tokens:
            return self
        return replace(self, block=2 * self.block, threads=2 * self.threads)


@triton.jit(do_not_specialize_on_alignment=["post", "comb"])
def post_kernel(
    x, residual, post, comb, out, COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write BLOCK columns of one token's new copies."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lanes < HIDDEN
    branch = tl.load(x + token * HIDDEN + lanes, mask=mask, other=0.0)
    old = load_copies(residual + token * COPIES * HIDDEN, lanes, mask, COPIES, HIDDEN)
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


def launch_options(tiles: Tiles, amd: bool) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": tiles.threads // (64 if amd else 32), "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def prepare_update(
    tiles: Tiles, bound: Callable[..., torch.Tensor], site: Any, rows: Sequence[int]
) -> Callable[..., torch.Tensor]:
    """Return `bound`, after compiling what it launches at a site: tensors that begin on 16 bytes, or not."""
    copies, hidden = site.axes["N"], site.axes["H"]
    post = torch.zeros(1, copies, device="cuda")
    buffer = torch.zeros(copies * hidden + 1, dtype=torch.bfloat16, device="cuda")
    for start in (0, 1):
        x = buffer[start : start + hidden].view(1, hidden)
        residual = buffer[start : start + copies * hidden].view(1, copies, hidden)
        for each in {tiles, tiles.at(max(rows, default=1))}:
            launch = partial(mhc_post, replace(each, doubled_from=0))
            launch(x, residual, post, torch.zeros(1, copies, copies, device="cuda"))
    return bound

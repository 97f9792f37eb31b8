"""Portable ``mhc_mix_sinkhorn`` in one launch: programs share the projection, the last to finish normalises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.arrival import WORDS, ArrivalState
from dspark_ops_triton.blocks.meeting import is_last_to_arrive
from dspark_ops_triton.blocks.sinkhorn import sigmoid, sinkhorn4, split_columns
from dspark_ops_triton.blocks.split_products import dot_three_parts

STATE_WORDS = tl.constexpr(WORDS)
#: Copies of the stream, rows of the projection, and tokens of a program: the smallest tile of matrix units.
COPIES, ROWS, TOKENS = 4, 24, 16
#: Columns of a tile of sums: those of the projection, then the sum of squares.
COLUMN_BITS = 5
#: Captured calls for which words are set aside: 32 bytes each and 16 tokens.
CAPTURES = 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the projection is cut for one family of devices. It decides the order of sums: it may not depend on tokens.

    Attributes:
        span: columns of `x` that a program takes.
        block: columns at a time, a power of two.
        warps: warps (waves on AMD) of a program.
        chunk: partial sums that the last program reads at a time, a power of two.
    """

    span: int
    block: int
    warps: int
    chunk: int

    def splits(self, width: int) -> int:
        """Return over how many programs the columns of `x` are spread."""
        return triton.cdiv(width, self.span)


TILES = Tiles(span=512, block=128, warps=4, chunk=8)


@triton.jit(
    do_not_specialize=["tokens", "iterations"], do_not_specialize_on_alignment=["scale", "base", "pre", "post", "comb"]
)
def mix_kernel(
    x, fn, scale, base, partial, state, pre, post, comb, tokens, rms_eps, hc_eps, iterations,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, CHUNK: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, COLUMN_BITS: tl.constexpr,
):  # fmt: skip
    """Project SPAN columns of TOKENS tokens; the last program of these tokens adds up and normalises."""
    columns: tl.constexpr = 2**COLUMN_BITS
    group = tl.program_id(0)
    split = tl.program_id(1)
    token = group * TOKENS + tl.arange(0, TOKENS)
    live = token < tokens
    column = tl.arange(0, columns)
    start = x + token.to(tl.int64)[:, None] * WIDTH
    total = tl.zeros((TOKENS, columns), tl.float32)
    squares = tl.zeros((TOKENS,), tl.float32)
    for tile in tl.static_range(0, SPAN, BLOCK):
        lane = split * SPAN + tile + tl.arange(0, BLOCK)
        value = tl.load(start + lane[None, :], mask=live[:, None] & (lane < WIDTH)[None, :], other=0.0)
        weight_mask = (lane < WIDTH)[:, None] & (column < ROWS)[None, :]
        weight = tl.load(fn + column[None, :] * WIDTH + lane[:, None], mask=weight_mask, other=0.0)
        total = dot_three_parts(value, weight, total)
        single = value.to(tl.float32)
        squares += tl.sum(single * single, axis=1)
    total = tl.where((column == ROWS)[None, :], squares[:, None], total)
    cell = tl.arange(0, TOKENS)[:, None] * columns + column[None, :]
    sums = partial + group.to(tl.int64) * (SPLITS * TOKENS * columns)
    tl.store(sums + split * (TOKENS * columns) + cell, total, mask=live[:, None])

    if is_last_to_arrive(state + group * STATE_WORDS, SPLITS):
        total = tl.zeros((TOKENS, columns), tl.float32)
        for first in tl.static_range(0, SPLITS, CHUNK):
            part = first + tl.arange(0, CHUNK)
            mask = (part < SPLITS)[:, None, None] & live[None, :, None]
            place = part[:, None, None] * (TOKENS * columns) + cell[None, :, :]
            total += tl.sum(tl.load(sums + place, mask=mask, other=0.0), axis=0)
        mixed = split_columns(total, COLUMN_BITS)
        inverse = 1.0 / tl.sqrt_rn(mixed[ROWS] / WIDTH + rms_eps)
        pre_scale, post_scale, comb_scale = tl.load(scale), tl.load(scale + 1), tl.load(scale + 2)
        for copy in tl.static_range(4):
            share = sigmoid(mixed[copy] * inverse * pre_scale + tl.load(base + copy))
            tl.store(pre + token * 4 + copy, share + hc_eps, mask=live)
            share = sigmoid(mixed[4 + copy] * inverse * post_scale + tl.load(base + 4 + copy))
            tl.store(post + token * 4 + copy, 2.0 * share, mask=live)
        logits = ()
        for index in tl.static_range(16):
            logit = mixed[8 + index] * inverse * comb_scale + tl.load(base + 8 + index)
            logits = logits + (logit,)  # noqa: RUF005
        matrix = sinkhorn4(logits, hc_eps, iterations)
        for index in tl.static_range(16):
            tl.store(comb + token.to(tl.int64) * 16 + index, matrix[index], mask=live)


class MixSinkhorn:
    """``mhc_mix_sinkhorn`` bound to one device: one launch per call, safe to capture, on any number of streams at once.

    The programs that share tokens meet at words that this object owns (`ArrivalState`): keep it alive as long as graphs
    that captured it. Their partial sums lie in memory of the call, 128 bytes per token and program.
    """

    __slots__ = ("_arrivals", "_tiles")

    def __init__(self, tiles: Tiles, arrivals: ArrivalState) -> None:
        self._tiles = tiles
        self._arrivals = arrivals

    def __call__(
        self, x: Tensor, fn: Tensor, scale: Tensor, base: Tensor,
        rms_eps: float = 1e-20, hc_eps: float = 1e-6, iterations: int = 20,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the mixing weights of one site per token: `pre`, `post` and `comb`.

        Args:
            x: [T, 4*H] bfloat16, the copies of the stream side by side.
            fn: [24, 4*H] float32.
            scale: [3] float32.
            base: [24] float32.
            rms_eps: added to the mean square of a token.
            hc_eps: added to pre, and used in the Sinkhorn steps.
            iterations: column steps.

        Returns:
            pre [T, 4], post [T, 4], comb [T, 4, 4], all float32.

        Bytes moved: `fn` once for each 16 tokens (from cache but for the first), `x` once, partial sums twice.
        Launches: 1, none for no tokens.

        Source: N3.2, C5.1.
        """
        tokens, width = x.shape
        pre, post = (torch.empty(tokens, COPIES, dtype=torch.float32, device=x.device) for _ in range(2))
        comb = torch.empty(tokens, COPIES, COPIES, dtype=torch.float32, device=x.device)
        if tokens:
            groups, splits = triton.cdiv(tokens, TOKENS), self._tiles.splits(width)
            state = self._arrivals.take(groups, x)
            cells = groups * splits * TOKENS << COLUMN_BITS
            partial = torch.empty(cells, dtype=torch.float32, device=x.device)
            mix_kernel[(groups, splits)](
                x, fn, scale, base, partial, state, pre, post, comb, tokens, float(rms_eps), float(hc_eps), iterations,
                **launch_constants(self._tiles, width), **launch_options(self._tiles),
            )  # fmt: skip
        return pre, post, comb


def mhc_mix_sinkhorn(
    x: Tensor, fn: Tensor, scale: Tensor, base: Tensor,
    rms_eps: float = 1e-20, hc_eps: float = 1e-6, iterations: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the mixing weights of one site per token, as `MixSinkhorn` does.

    Without `prepare_mhc_mix_sinkhorn`, a launch that zeroes 32 bytes per 16 tokens comes before the kernel.

    Source: N3.2, C5.1.
    """
    return MixSinkhorn(TILES, ArrivalState(0, x.device))(x, fn, scale, base, rms_eps, hc_eps, iterations)


def launch_constants(tiles: Tiles, width: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "WIDTH": width, "SPAN": tiles.span, "BLOCK": tiles.block, "SPLITS": tiles.splits(width), "CHUNK": tiles.chunk,
        "ROWS": ROWS, "TOKENS": TOKENS, "COLUMN_BITS": COLUMN_BITS,
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False}


def prepare_mhc_mix_sinkhorn(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_mix_sinkhorn` as one launch, compiled for the site's sizes and with its memory allocated."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    bound = MixSinkhorn(TILES, ArrivalState(triton.cdiv(max(rows, default=0), TOKENS), target, CAPTURES))
    if target.type == "cuda":
        width = site.axes["J"]
        fn, base = torch.zeros(ROWS, width, device=target), torch.zeros(ROWS, device=target)
        buffer = torch.zeros(width + 1, dtype=torch.bfloat16, device=target)
        for x in (buffer[None, :width], buffer[None, 1:]):
            bound(x, fn, base[:3], base)
    return bound

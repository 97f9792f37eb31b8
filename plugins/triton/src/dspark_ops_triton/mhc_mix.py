"""Portable ``mhc_mix_sinkhorn`` in one launch: programs share the projection, the last to finish normalises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.arrival import WORDS, ArrivalState
from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.meeting import is_last_to_arrive
from dspark_ops_triton.blocks.sinkhorn import sigmoid, sinkhorn4
from dspark_ops_triton.blocks.split_products import dot_three_parts
from dspark_ops_triton.blocks.tile_table import tiles_for

STATE_WORDS = tl.constexpr(WORDS)
#: Copies of the stream, rows of the projection, and tokens of a program: the smallest tile of matrix units.
COPIES, ROWS, TOKENS = 4, 24, 16
#: Columns of a tile of sums: those of the projection, then the sum of squares.
COLUMNS = 32
#: A thread of the last program holds four numbers of each program's sums.
MOST_SPLITS = 128
#: Captured calls for which words are set aside: 32 bytes each and 16 tokens.
CAPTURES = 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the projection is cut for one family of devices. It decides the order of sums: it may not depend on tokens.

    Attributes:
        span: columns of `x` that a program takes.
        block: columns at a time, a power of two.
        warps: warps (waves on AMD) of a program.
        pdl: the kernel is set up while the one before it runs.
    """

    span: int
    block: int
    warps: int
    pdl: bool = False

    def at(self, width: int) -> Tiles:
        """Return these tiles with a span that leaves the last program no more than MOST_SPLITS sums to read."""
        span = self.span
        while triton.cdiv(width, span) > MOST_SPLITS:
            span *= 2
        return replace(self, span=span)

    def splits(self, width: int) -> int:
        """Return over how many programs the columns of `x` are spread."""
        return triton.cdiv(width, self.span)


TILES = Tiles(span=256, block=128, warps=4)
#: Half of the tile at a time: more would not fit the registers of CDNA3.
AMD_TILES = Tiles(span=256, block=64, warps=4)


@triton.jit(
    do_not_specialize=["tokens", "iterations"], do_not_specialize_on_alignment=["scale", "base", "pre", "post", "comb"]
)
def mix_kernel(
    x, fn, scale, base, partial, state, pre, post, comb, tokens, rms_eps, hc_eps, iterations,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Project SPAN columns of TOKENS tokens; the last program of these tokens adds up and normalises."""
    begin(PDL)
    group = tl.program_id(0)
    split = tl.program_id(1)
    token = group * TOKENS + tl.arange(0, TOKENS)
    live = token < tokens
    column = tl.arange(0, COLUMNS)
    start = x + token.to(tl.int64)[:, None] * WIDTH
    # All loads come before the first product, behind whose barriers none could move: they are under way together.
    values, weights = (), ()
    for tile in tl.static_range(0, SPAN, BLOCK):
        lane = split * SPAN + tile + tl.arange(0, BLOCK)
        inside = lane < WIDTH
        weight_mask = inside[:, None] & (column < ROWS)[None, :]
        weight = tl.load(fn + column[None, :] * WIDTH + lane[:, None], mask=weight_mask, other=0.0)
        weights = weights + (weight,)  # noqa: RUF005
        values = values + (tl.load(start + lane[None, :], mask=live[:, None] & inside[None, :], other=0.0),)  # noqa: RUF005
    # Of scale and bias, too, though only one program needs them: then they do not keep it waiting.
    factor = tl.load(scale + (column >= 4).to(tl.int32) + (column >= 8).to(tl.int32))
    bias = tl.load(base + column, mask=column < ROWS, other=0.0)
    low, middle, high = (tl.zeros((TOKENS, COLUMNS), tl.float32),) * 3
    squares = tl.zeros((TOKENS, BLOCK), tl.float32)
    for tile in tl.static_range(SPAN // BLOCK):
        low, middle, high = dot_three_parts(values[tile], weights[tile], low, middle, high)
        single = values[tile].to(tl.float32)
        squares += single * single
    total = tl.where((column == ROWS)[None, :], tl.sum(squares, axis=1)[:, None], (low + middle) + high)
    cell = tl.arange(0, TOKENS)[:, None] * COLUMNS + column[None, :]
    # The sums of each program, and behind them those of all.
    sums = partial + group.to(tl.int64) * ((SPLITS + 1) * TOKENS * COLUMNS)
    tl.store(sums + split * (TOKENS * COLUMNS) + cell, total, mask=live[:, None])

    if is_last_to_arrive(state + group * STATE_WORDS, SPLITS):
        # One load per part: a thread adds up its own cells, without the others.
        parts = ()
        for part in tl.static_range(SPLITS):
            loaded = tl.load(sums + part * (TOKENS * COLUMNS) + cell, mask=live[:, None], other=0.0)
            parts = parts + (loaded,)  # noqa: RUF005
        total = tl.zeros((TOKENS, COLUMNS), tl.float32)
        for part in tl.static_range(SPLITS):
            total += parts[part]
        square = tl.sum(tl.where((column == ROWS)[None, :], total, 0.0), axis=1)
        inverse = 1.0 / tl.sqrt_rn(square / WIDTH + rms_eps)
        logit = total * inverse[:, None] * factor[None, :] + bias[None, :]
        share = sigmoid(logit)
        place = token[:, None] * 4 + column[None, :]
        tl.store(pre + place, share + hc_eps, mask=live[:, None] & (column < 4)[None, :])
        tl.store(post + place - 4, 2.0 * share, mask=live[:, None] & (column >= 4)[None, :] & (column < 8)[None, :])
        # Through memory, each thread gets all elements of a token's matrix.
        matrices = sums + SPLITS * (TOKENS * COLUMNS)
        tl.store(matrices + cell, logit)
        tl.debug_barrier()
        matrices += tl.arange(0, TOKENS) * COLUMNS + 8
        logits = ()
        for index in tl.static_range(16):
            logits = logits + (tl.load(matrices + index),)  # noqa: RUF005
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
            tiles = self._tiles.at(width)
            groups, splits = triton.cdiv(tokens, TOKENS), tiles.splits(width)
            state = self._arrivals.take(groups, x)
            cells = groups * (splits + 1) * TOKENS * COLUMNS
            partial = torch.empty(cells, dtype=torch.float32, device=x.device)
            mix_kernel[(groups, splits)](
                x, fn, scale, base, partial, state, pre, post, comb, tokens, float(rms_eps), float(hc_eps), iterations,
                **launch_constants(tiles, width), **launch_options(tiles),
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
    tiles = AMD_TILES if torch.version.hip else TILES
    return MixSinkhorn(tiles, ArrivalState(0, x.device))(x, fn, scale, base, rms_eps, hc_eps, iterations)


def launch_constants(tiles: Tiles, width: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "WIDTH": width, "SPAN": tiles.span, "BLOCK": tiles.block, "SPLITS": tiles.splits(width),
        "ROWS": ROWS, "TOKENS": TOKENS, "COLUMNS": COLUMNS, "PDL": tiles.pdl,
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def prepare_mhc_mix_sinkhorn(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_mix_sinkhorn` as one launch, compiled for the site's sizes and with its memory allocated."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    tiles = tiles_for("mhc_mix_sinkhorn", device, site, AMD_TILES if device.arch.vendor == "amd" else TILES)
    bound = MixSinkhorn(tiles, ArrivalState(triton.cdiv(max(rows, default=0), TOKENS), target, CAPTURES))
    if target.type == "cuda":
        width = site.axes["J"]
        fn, base = torch.zeros(ROWS, width, device=target), torch.zeros(ROWS, device=target)
        buffer = torch.zeros(width + 1, dtype=torch.bfloat16, device=target)
        for x in (buffer[None, :width], buffer[None, 1:]):
            bound(x, fn, base[:3], base)
    return bound

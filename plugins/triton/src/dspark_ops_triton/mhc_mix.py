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
from dspark_ops_triton.blocks.ptx import takes_ptx
from dspark_ops_triton.blocks.sinkhorn import reciprocal, sigmoid, sinkhorn_factors
from dspark_ops_triton.blocks.split_products import dot_three_parts, three_parts
from dspark_ops_triton.blocks.split_sums import add_splits
from dspark_ops_triton.blocks.tile_table import tiles_for

STATE_WORDS = tl.constexpr(WORDS)
#: Copies of the stream, rows of the projection, and tokens of the smallest tile of matrix units.
COPIES, ROWS, TOKENS = 4, 24, 16
#: Tokens that share programs, by the most tokens of a call; TOKENS in larger ones.
SMALL_GROUPS = {8: 4, 24: 8}
#: Columns of a tile of sums: those of the projection, then the sum of squares.
COLUMNS = 32
#: A thread of the last program holds four numbers of a quarter of the sums.
MOST_SPLITS = 128
#: Captured calls for which words are set aside: 32 bytes each and group of tokens.
CAPTURES = 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the projection is cut for one family of devices. It decides the order of sums: it may not depend on tokens.

    Attributes:
        span: columns of `x` that a program takes.
        block: columns at a time, a power of two.
        warps: warps (waves on AMD) of a program.
        pdl: the kernel is set up while the one before it runs, and reads `fn` then: the kernel just before it must not
            be what writes that.
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


TILES = Tiles(span=256, block=256, warps=4)
#: A quarter of the tile at a time: more would not fit the registers of CDNA3.
AMD_TILES = Tiles(span=256, block=64, warps=4)


@triton.jit(do_not_specialize=["tokens", "iterations"], do_not_specialize_on_alignment=["scale", "base"])
def mix_kernel(
    x, fn, scale, base, partial, state, pre, post, comb, tokens, rms_eps, hc_eps, iterations,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Project SPAN columns of GROUP tokens; the last program of these tokens adds up and normalises."""
    group = tl.program_id(0)
    split = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    # No kernel of a step writes weights: they are read and cut while the one before may still be running.
    weights = ()
    for tile in tl.static_range(0, SPAN, BLOCK):
        lane = split * SPAN + tile + tl.arange(0, BLOCK)
        weight_mask = (lane < WIDTH)[:, None] & (column < ROWS)[None, :]
        weight = tl.load(fn + column[None, :] * WIDTH + lane[:, None], mask=weight_mask, other=0.0)
        weights = weights + (weight,)  # noqa: RUF005
    parts = ()
    for tile in tl.static_range(SPAN // BLOCK if PDL else 0):
        parts = parts + (three_parts(weights[tile]),)  # noqa: RUF005
    begin(PDL)
    row = tl.arange(0, TOKENS)
    token = group * GROUP + row
    live = (row < GROUP) & (token < tokens)
    start = x + token.to(tl.int64)[:, None] * WIDTH
    # All loads come before the first product, behind whose barriers none could move: they are under way together.
    values = ()
    for tile in tl.static_range(0, SPAN, BLOCK):
        lane = split * SPAN + tile + tl.arange(0, BLOCK)
        mask = live[:, None] & (lane < WIDTH)[None, :]
        values = values + (tl.load(start + lane[None, :], mask=mask, other=0.0),)  # noqa: RUF005
    # Of scale and bias, too, though only one program needs them: then they do not keep it waiting.
    factor = tl.load(scale + (column >= 4).to(tl.int32) + (column >= 8).to(tl.int32))
    bias = tl.load(base + column, mask=column < ROWS, other=0.0)
    product = tl.zeros((TOKENS, COLUMNS), tl.float32)
    squares = tl.zeros((TOKENS, BLOCK), tl.float32)
    for tile in tl.static_range(SPAN // BLOCK):
        # Without that wait, their parts are formed here: they take more registers than they do.
        lower, centre, upper = parts[tile] if PDL else three_parts(weights[tile])
        product += dot_three_parts(values[tile], lower, centre, upper)
    for tile in tl.static_range(SPAN // BLOCK):
        single = values[tile].to(tl.float32)
        squares += single * single
    sums = partial + group.to(tl.int64) * (SPLITS * GROUP * COLUMNS)
    mine = sums + split * (GROUP * COLUMNS) + row * COLUMNS
    # With zeros beside it: four columns are read at a time.
    four = tl.arange(0, 4)[None, :]
    square = tl.where(four == 0, tl.sum(squares, axis=1)[:, None], 0.0)
    tl.store(mine[:, None] + ROWS + four, square, mask=live[:, None])
    tl.store(mine[:, None] + column[None, :], product, mask=live[:, None] & (column < ROWS)[None, :])

    if is_last_to_arrive(state + group * STATE_WORDS, SPLITS):
        here = group * GROUP + tl.arange(0, GROUP)
        known = here < tokens
        total = add_splits(sums, known, SPLITS, ROWS, GROUP, COLUMNS, LOOP=PTX)
        whole = tl.sum(tl.where((column == ROWS)[None, :], total, 0.0), axis=1)
        inverse = tl.rsqrt(whole * (1.0 / WIDTH) + rms_eps)
        logit = total * inverse[:, None] * factor[None, :] + bias[None, :]
        share = sigmoid(logit, PTX)
        place = here[:, None] * 4 + column[None, :]
        tl.store(pre + place, share + hc_eps, mask=known[:, None] & (column < 4)[None, :])
        tl.store(post + place - 4, 2.0 * share, mask=known[:, None] & (column >= 4)[None, :] & (column < 8)[None, :])
        # A row of a matrix is a line of four columns, in one thread; lines that are none are computed and dropped.
        logits = tl.reshape(logit, (GROUP, COLUMNS // 4, 4))
        line, end = tl.arange(0, COLUMNS // 4)[None, :, None], tl.arange(0, 4)[None, None, :]
        power = tl.exp(logits - tl.max(logits, axis=2, keep_dims=True))
        matrix = power * reciprocal(tl.sum(power, axis=2, keep_dims=True), PTX) + hc_eps
        # Each thread gets all elements of its token's matrix: sums of one element and zeros, which turn in registers.
        elements = ()
        for source in tl.static_range(4):
            line_sums = tl.sum(tl.where(line == source + 2, matrix, 0.0), axis=1)
            for index in tl.static_range(4):
                alone = tl.where(tl.arange(0, 4)[None, :] == index, line_sums, 0.0)
                elements = elements + (tl.sum(alone, axis=1),)  # noqa: RUF005
        u0, u1, u2, u3, v0, v1, v2, v3 = sinkhorn_factors(elements, hc_eps, iterations, PTX)
        matrix *= one_of_four(line - 2, u0, u1, u2, u3)
        matrix *= one_of_four(end, v0, v1, v2, v3)
        target = here.to(tl.int64)[:, None, None] * 16 + (line * 4 + end - 8)
        tl.store(comb + target, matrix, mask=known[:, None, None] & (line >= 2) & (line < 6))


@triton.jit
def one_of_four(index, a, b, c, d):
    """Return, in place of an index [1, ?, ?], the value of its number for each token."""
    a, b, c, d = a[:, None, None], b[:, None, None], c[:, None, None], d[:, None, None]
    return tl.where(index == 0, a, tl.where(index == 1, b, tl.where(index == 2, c, d)))


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

        Bytes moved: `fn` once for each group of 4 tokens of up to 8, 8 of up to 24, or 16 (from cache but for the
        first), `x` once, partial sums twice.
        Launches: 1, none for no tokens.

        Source: N3.2, C5.1.
        """
        tokens, width = x.shape
        pre, post = (torch.empty(tokens, COPIES, dtype=torch.float32, device=x.device) for _ in range(2))
        comb = torch.empty(tokens, COPIES, COPIES, dtype=torch.float32, device=x.device)
        if tokens:
            tiles = self._tiles.at(width)
            groups, splits = groups_of(tokens), tiles.splits(width)
            state = self._arrivals.take(groups, x)
            cells = groups * splits * tokens_of_group(tokens) * COLUMNS
            partial = torch.empty(cells, dtype=torch.float32, device=x.device)
            mix_kernel[(groups, splits)](
                x, fn, scale, base, partial, state, pre, post, comb, tokens, float(rms_eps), float(hc_eps), iterations,
                **launch_constants(tiles, width, tokens_of_group(tokens), takes_ptx(mix_kernel)),
                **launch_options(tiles),
            )  # fmt: skip
        return pre, post, comb


def mhc_mix_sinkhorn(
    x: Tensor, fn: Tensor, scale: Tensor, base: Tensor,
    rms_eps: float = 1e-20, hc_eps: float = 1e-6, iterations: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the mixing weights of one site per token, as `MixSinkhorn` does.

    Without `prepare_mhc_mix_sinkhorn`, a launch that zeroes 32 bytes per group of tokens comes before the kernel.

    Source: N3.2, C5.1.
    """
    tiles = AMD_TILES if torch.version.hip else TILES
    return MixSinkhorn(tiles, ArrivalState(0, x.device))(x, fn, scale, base, rms_eps, hc_eps, iterations)


def tokens_of_group(tokens: int) -> int:
    """Return how many tokens share programs in a call of `tokens` tokens.

    Each group has a last program of its own, so small groups wait less for it; but each reads `fn` once more, and
    programs of many groups do not fit a device at once.
    """
    return next((group for most, group in SMALL_GROUPS.items() if tokens <= most), TOKENS)


def groups_of(tokens: int) -> int:
    """Return into how many groups a call of `tokens` tokens is cut."""
    return triton.cdiv(tokens, tokens_of_group(tokens))


def launch_constants(tiles: Tiles, width: int, group: int, ptx: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch: groups of `group` tokens, and whether the device takes PTX."""
    return {
        "WIDTH": width, "SPAN": tiles.span, "BLOCK": tiles.block, "SPLITS": tiles.splits(width),
        "ROWS": ROWS, "TOKENS": TOKENS, "COLUMNS": COLUMNS, "GROUP": group, "PTX": ptx, "PDL": tiles.pdl,
    }  # fmt: skip


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def prepare_mhc_mix_sinkhorn(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_mix_sinkhorn` as one launch, compiled for the site's sizes and with its memory allocated."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    tiles = tiles_for("mhc_mix_sinkhorn", device, site, AMD_TILES if device.arch.vendor == "amd" else TILES)
    most = max(rows, default=0)
    groups = max(groups_of(min(count, most)) for count in (*SMALL_GROUPS, most))
    bound = MixSinkhorn(tiles, ArrivalState(groups, target, CAPTURES))
    if target.type == "cuda":
        width = site.axes["J"]
        fn, base = torch.zeros(ROWS, width, device=target), torch.zeros(ROWS, device=target)
        for tokens in (1, *(count + 1 for count in SMALL_GROUPS if count < most)):  # the fewest of each size of group
            buffer = torch.zeros(tokens * width + 1, dtype=torch.bfloat16, device=target)
            for x in (buffer[:-1], buffer[1:]):
                bound(x.view(tokens, width), fn, base[:3], base)
    return bound

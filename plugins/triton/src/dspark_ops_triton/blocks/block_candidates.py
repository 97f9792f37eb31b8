"""Masked logits and scores of blocks in one launch, the blocks kept in another; how rows are cut is data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.scratch import ScratchMemory
from dspark_ops_triton.blocks.selecting import (
    ALL_TIES,
    HIDDEN,
    INFINITE_KEY,
    LOWEST_KEY,
    NAN_KEY,
    narrowed,
    score_key,
    threshold_of,
    two_probes,
)

#: Scores of blocks that the program which keeps the best ones holds, or reads again and again if a row has more.
SCORES = 8192


#: Entries of a block: a program has whole blocks.
MOST_ENTRIES = 2048


#: Widest row: its programs are the grid's second dimension, which has 16 bits.
MOST_COLUMNS = 2**27


@dataclass(frozen=True, slots=True)
class Tiles:
    """How rows of scores are cut.

    Attributes:
        entries: entries that a program masks, a power of two of `MOST_ENTRIES` or more.
        warps: warps (waves on AMD) of a program.
        pdl: the kernel is set up while the one before it runs.
    """

    entries: int
    warps: int
    pdl: bool = False


@triton.jit
def count_from(scores, lower, upper, blocks, SCORES: tl.constexpr):
    """Return how many of a row's block scores are `lower` or more, and how many `upper` or more."""
    from_lower = tl.zeros((SCORES,), tl.int32)
    from_upper = tl.zeros((SCORES,), tl.int32)
    for first in range(0, blocks, SCORES):
        block = first + tl.arange(0, SCORES)
        key = tl.load(scores + block, mask=block < blocks, other=HIDDEN)
        from_lower += (key >= lower).to(tl.int32)
        from_upper += (key >= upper).to(tl.int32)
    return tl.sum(from_lower, axis=0), tl.sum(from_upper, axis=0)


@triton.jit
def wide_threshold(scores, blocks, wanted, SCORES: tl.constexpr):
    """Return what `threshold_of` does, for the scores above -inf of a row of which a program holds a part at a time."""
    count, _ = count_from(scores, LOWEST_KEY + 1, NAN_KEY, blocks, SCORES)
    low = tl.full((), LOWEST_KEY, tl.int32)
    room = tl.full((), ALL_TIES, tl.int32)
    if count > wanted:
        low = low + 1
        high = tl.full((), NAN_KEY, tl.int32)
        above = tl.full((), 0, tl.int32)
        while (count > wanted) & (low < high):
            lower, upper = two_probes(low, high)
            from_lower, from_upper = count_from(scores, lower, upper, blocks, SCORES)
            low, high, above, count = narrowed(low, high, above, count, lower, upper, from_lower, from_upper, wanted)
        room = tl.where(count > wanted, wanted - above, room)
    return low, room


@triton.jit(do_not_specialize=["blocks", "units", "topk_blocks"], do_not_specialize_on_alignment=["keep"])
def keep_kernel(
    scores, keep, blocks, units, topk_blocks,
    SCORES: tl.constexpr, UNITS: tl.constexpr, KEPT: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write which entries of a row lie in kept blocks: of the best `topk_blocks` those above -inf that are no NaN.

    `keep` has `units` words per row, UNITS per block, each KEPT or 0.
    """
    begin(PDL)
    scores += tl.program_id(0).to(tl.int64) * blocks
    keep += tl.program_id(0).to(tl.int64) * units
    lane = tl.arange(0, SCORES)
    # Blocks of -inf are not kept, so that how many of them are chosen does not matter.
    if WIDE:
        threshold, room = wide_threshold(scores, blocks, topk_blocks, SCORES)
    else:
        held = tl.load(scores + lane, mask=lane < blocks, other=HIDDEN)
        finite = held > LOWEST_KEY
        count = tl.sum(finite.to(tl.int32), axis=0)
        threshold, room = threshold_of(tl.where(finite, held, HIDDEN), count, topk_blocks)
        threshold = tl.maximum(threshold, LOWEST_KEY)
    # the last block that is kept of those whose score equals the threshold
    limit = blocks
    if room < ALL_TIES:
        limit = -1
        for first in range(0, blocks, SCORES):
            key = tl.load(scores + first + lane, mask=first + lane < blocks, other=HIDDEN)
            equal = key == threshold
            ties = tl.cumsum(equal.to(tl.int32), axis=0)
            limit = tl.maximum(limit, tl.max(tl.where(equal & (ties <= room), first + lane, -1), axis=0))
            room -= tl.sum(equal.to(tl.int32), axis=0)
    for first in range(0, units, SCORES):
        unit = first + lane
        block = unit // UNITS
        key = tl.load(scores + block, mask=unit < units, other=HIDDEN)
        kept = (key > threshold) | ((key == threshold) & (key > LOWEST_KEY) & (block <= limit))
        tl.store(keep + unit, tl.where(kept & (key < NAN_KEY), KEPT, 0).to(keep.dtype.element_ty), mask=unit < units)


@triton.jit(do_not_specialize=["width", "logit_stride", "blocks"], do_not_specialize_on_alignment=["seq_lens"])
def source_kernel(
    logits, seq_lens, masked, scores, width, logit_stride, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, STRIDE_UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Mask and score BLOCKS blocks of BLOCK entries of one row.

    The width and the row stride of the logits count groups of STRIDE_UNIT entries.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    length = tl.load(seq_lens + row)
    block = split * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    source = logits + row * logit_stride * STRIDE_UNIT + column
    width = width * STRIDE_UNIT
    target = masked + row * width + column
    visible = tl.minimum(length, width)
    if (split + 1) * BLOCKS * BLOCK <= visible:
        # without masks, which would break accesses of 16 bytes into four
        logit = tl.load(source).to(tl.float32)
        tl.store(target, logit)
    else:
        logit = tl.load(source, mask=column < visible, other=float("-inf")).to(tl.float32)
        tl.store(target, logit, mask=column < width)
    key = tl.max(score_key(logit), axis=1)
    newest = (block == (length - 1) // BLOCK) & (block < tl.cdiv(length, BLOCK))
    tl.store(scores + row * blocks + block, tl.where(newest, INFINITE_KEY, key), mask=block < blocks)


@triton.jit(
    do_not_specialize=["width", "logit_stride", "published_stride"],
    do_not_specialize_on_alignment=["logits", "seq_lens", "published", "masked"],
)
def consumer_kernel(
    logits, seq_lens, published, masked, width, logit_stride, published_stride, TILE: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Mask TILE entries of one row that are not visible, or not published."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    visible = column < tl.minimum(tl.load(seq_lens + row), width)
    open_ = tl.load(published + row * published_stride + column, mask=visible, other=0) != 0
    logit = tl.load(logits + row * logit_stride + column, mask=visible & open_, other=float("-inf")).to(tl.float32)
    tl.store(masked + row * width + column, logit, mask=column < width)


class CandidateBlocks:
    """``candidate_blocks`` with memory for the scores of blocks, safe to capture, on any number of streams at once.

    Bytes moved: the visible logits once, 4 per entry out, and in a source layer 1 more and 8 per block. Launches: 2 in
    a source layer, 1 in a consumer.
    """

    __slots__ = ("_scratch", "_tiles")

    def __init__(self, tiles: Tiles) -> None:
        self._tiles = tiles
        self._scratch = ScratchMemory()

    def __call__(
        self,
        logits: Tensor,
        seq_lens: Tensor,
        published: Tensor | None = None,
        topk_blocks: int = 2048,
        block_size: int = 8,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits that a row may use, and in a source layer which entries it publishes to later layers.

        Args:
            logits: [R, W] float32, bfloat16 or float16, last stride 1, W up to `MOST_COLUMNS`.
            seq_lens: [R] int32, visible entries of each row.
            published: [R, W] bool, last stride 1, of a consumer.
            topk_blocks: blocks that a row keeps at most; the lowest of equal ones.
            block_size: entries of a block, a power of two up to `MOST_ENTRIES`.

        Returns:
            masked [R, W] float32, and keep [R, W] bool, None for a consumer.

        Raises:
            ValueError: another size of blocks, no block to keep, `published` of another shape, or columns apart.

        Source: N10.3, N10.4.
        """
        rows, width = logits.shape
        fits = published is None or published.shape == logits.shape
        power = 1 <= block_size <= MOST_ENTRIES and block_size & (block_size - 1) == 0
        apart = (logits.stride(1) != 1 and width > 1) or width > MOST_COLUMNS
        if not fits or not power or topk_blocks < 1 or apart:
            shape = None if published is None else list(published.shape)
            got = f"{topk_blocks} blocks of {block_size}, {width} columns of stride {logits.stride(1)}, {shape}"
            raise ValueError(
                f"candidate_blocks: wanted positive topk_blocks, a block_size that is a power of two up to "
                f"{MOST_ENTRIES}, up to {MOST_COLUMNS} columns of stride 1 and published like logits, got {got}"
            )
        masked = torch.empty(rows, width, dtype=torch.float32, device=logits.device)
        if published is not None:
            if masked.numel():
                consumer_kernel[(rows, triton.cdiv(width, self._tiles.entries))](
                    logits, seq_lens, published.view(torch.uint8), masked, width, logits.stride(0),
                    published.stride(0), **consumer_constants(self._tiles), **launch_options(self._tiles),
                )  # fmt: skip
            return masked, None
        keep = torch.empty(rows, width, dtype=torch.bool, device=logits.device)
        if masked.numel():
            blocks = triton.cdiv(width, block_size)
            words = block_size % 8 == 0 and width % 8 == 0
            unit = stride_unit(logits)
            unit = 1 if width % unit else unit
            constants = source_constants(self._tiles, block_size, unit)
            scores = self._scratch.take(rows * blocks, logits).view(torch.int32)
            source_kernel[(rows, triton.cdiv(blocks, constants["BLOCKS"]))](
                logits, seq_lens, masked, scores, width // unit, logits.stride(0) // unit, blocks,
                **constants, **launch_options(self._tiles),
            )  # fmt: skip
            keep_kernel[(rows,)](
                scores, keep.view(torch.int64 if words else torch.uint8), blocks, width // 8 if words else width,
                topk_blocks, **keep_constants(self._tiles, block_size, blocks, words), **launch_options(self._tiles),
            )  # fmt: skip
        return masked, keep


def source_constants(tiles: Tiles, block_size: int, stride_unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a source layer's first launch."""
    return {
        "BLOCK": block_size, "BLOCKS": tiles.entries // block_size, "STRIDE_UNIT": stride_unit, "PDL": tiles.pdl,
    }  # fmt: skip


def keep_constants(tiles: Tiles, block_size: int, blocks: int, words: bool) -> dict[str, Any]:
    """Return the compile-time arguments of its second launch; `words`: entries are kept or not by 8 at a time."""
    return {
        "SCORES": SCORES if blocks > SCORES // 2 else SCORES // 2,
        "UNITS": block_size // 8 if words else block_size, "KEPT": 0x0101010101010101 if words else 1,
        "WIDE": blocks > SCORES, "PDL": tiles.pdl,
    }  # fmt: skip


def consumer_constants(tiles: Tiles) -> dict[str, Any]:
    """Return the compile-time arguments of a consumer."""
    return {"TILE": tiles.entries, "PDL": tiles.pdl}


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


def prepare_blocks(tiles: Tiles, device: Any, site: Any, rows: Sequence[int]) -> CandidateBlocks:
    """Return `candidate_blocks`, compiled for the site's blocks in both forms."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    bound = CandidateBlocks(tiles)
    if target.type == "cuda":
        block_size = site.options["block_size"]
        dtype = getattr(torch, site.dtypes.get("logits", "float32"))
        one = torch.ones(1, dtype=torch.int32, device=target)
        for blocks in (1, SCORES // 2 + 1, SCORES + 1):
            width = triton.cdiv(blocks * block_size, 16) * 16
            buffer = torch.zeros(2, width + 16, dtype=dtype, device=target)
            # rows on boundaries of 16 bytes, only the first one, none
            for logits in (buffer[:1, :width], buffer.view(-1)[: 2 * width + 2].view(2, -1)[:, :width], buffer[:, 1:]):
                _, keep = bound(logits[:1, :width], one, None, 1, block_size)
                bound(logits[:1, :width], one, keep, 1, block_size)
    return bound

"""Portable ``accept_sampled``: one launch adds up the rows of both laws that can matter, one accepts and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.accept_tail import length_words
from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.dependent import begin, has_pdl, pdl_option
from dspark_ops_triton.blocks.law_sums import (
    ANY_ALIGNMENT,
    NOT_SPECIALIZED,
    RECORD,
    law_tile,
    rows_that_matter,
    sums_kernel,
)
from dspark_ops_triton.blocks.sampled import (
    block_length,
    first_above,
    is_finite,
    largest_finite,
    leading,
    of_slot,
    ratios,
    residual,
)
from dspark_ops_triton.blocks.scratch import ScratchMemory

#: Tokens of a tile, of 512 to 2048 the fastest on an H200 for 1, 6 and 64 requests, unless a request would then have
#: more than MOST_SUMS tiles in all its rows: twice as many, and so on, up to MOST_BLOCK.
BLOCK = 2048
MOST_BLOCK = 4096
MOST_SUMS = 2048
MOST_TOKENS = 2**20
#: A factor of most vocabularies.
VOCAB_UNIT = 16
#: Tokens per warp (wave on AMD).
WARP_TOKENS = 512
FLOOR = tl.constexpr(1e-8)


@triton.jit(do_not_specialize=NOT_SPECIALIZED, do_not_specialize_on_alignment=ANY_ALIGNMENT)
def accept_kernel(
    candidates, target_probs, draft_probs, accept_uniforms, final_uniforms, verify_lens,
    correct_len, bonus_out, cap_trim, sums,
    candidate_stride, target_request, target_row, draft_request, draft_row, vocab_groups, lens_words,
    DRAFTS: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr,
    VOCAB_UNIT: tl.constexpr, BLOCKWISE: tl.constexpr, BOUNDARY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Accept the drafts of one request and draw its final token, from the sums that `sums_kernel` stored.

    TILES is a power of two, at least the tiles of a row.
    """
    begin(PDL)
    vocab = vocab_groups * VOCAB_UNIT
    request = tl.program_id(0).to(tl.int64)
    tiles = tl.cdiv(vocab, BLOCK)
    slot = tl.arange(0, WIDTH)
    lane = tl.arange(0, TILES)
    target = target_probs + request * target_request * STRIDE_UNIT
    draft = draft_probs + request * draft_request * STRIDE_UNIT
    target_row = target_row * STRIDE_UNIT
    draft_row = draft_row * STRIDE_UNIT
    coin = tl.load(final_uniforms + request)
    # sums of rows that were not added up are anything: they are on their way before it is known which these are
    record = sums + ((request * (DRAFTS + 1) + slot[:, None]) * tiles + lane[None, :]) * RECORD
    stored = (slot <= DRAFTS)[:, None] & (lane < tiles)[None, :]
    law = tl.load(record, mask=stored, other=0.0)
    rest = tl.load(record + 1, mask=stored, other=0.0)
    drafts = tl.load(record + 2, mask=stored, other=0.0)
    token, p, q, uniform, allowed, last = rows_that_matter(
        candidates + request * candidate_stride, target, draft, accept_uniforms, verify_lens, request, target_row,
        draft_row, vocab, lens_words, slot, DRAFTS, WIDTH, BLOCKWISE,
    )  # fmt: skip
    known = (slot <= last)[:, None] & (lane < tiles)[None, :]
    law = tl.where(known, law, 0.0)
    rest = tl.where(known, rest, 0.0)
    drafts = tl.where(known, drafts, 0.0)
    # float64 sums of float32 values are finite if and only if all values are
    finite = is_finite(tl.sum(law, axis=1))
    drafted = is_finite(tl.sum(drafts, axis=1))

    testable_here = (token >= 0) & (token < vocab) & finite & drafted
    testable = leading(testable_here, slot, DRAFTS)
    run = leading(testable_here & (uniform * q < p), slot, DRAFTS)
    tested = tl.minimum(tl.maximum(allowed, 0), testable)
    if BLOCKWISE:
        correct, reach = block_length(tl.sum(rest, axis=1), ratios(p, q), uniform, tested, slot, DRAFTS)
        trimmed = tested * 0
    else:
        correct, reach = tl.minimum(run, tested), tl.full((), 1.0, tl.float64)
        trimmed = run - tl.minimum(run, allowed)

    # whether the draft at the cut takes part: never in the fresh form
    cut = allowed if BOUNDARY else DRAFTS
    bound = (correct == cut) & (cut < testable)
    here = (slot == correct)[:, None]
    law = tl.sum(tl.where(here, law, 0.0), axis=0)
    rest = tl.sum(tl.where(here, rest, 0.0), axis=0)
    from_residual = ((correct < tested) | bound) & (tl.sum(rest, axis=0) > FLOOR)
    row = target + correct.to(tl.int64) * target_row
    drawn = draw(
        row, draft + tl.minimum(correct, DRAFTS - 1).to(tl.int64) * draft_row, tl.where(from_residual, rest, law),
        from_residual, reach, coin, lane, vocab, TILES, BLOCK,
    )  # fmt: skip
    if of_slot(finite.to(tl.int32), slot, correct) == 0:
        drawn = largest_finite(row, vocab, BLOCK)
    drawn = tl.where(bound & (run > correct), of_slot(token, slot, correct), drawn)
    tl.store(correct_len + request, tl.where(allowed < 0, -1, correct))
    tl.store(bonus_out + request, drawn)
    tl.store(cap_trim + request, trimmed)


@triton.jit
def draw(row, draft_row, masses, from_residual, reach, coin, lane, vocab, TILES: tl.constexpr, BLOCK: tl.constexpr):
    """Return a token, int64, drawn from a law whose tiles have these `masses`: the running sum that passes the coin."""
    goal = coin.to(tl.float64) * tl.sum(masses, axis=0)
    tile = first_above(masses, lane, 0.0, goal, TILES)
    before = tl.sum(tl.where(lane < tile, masses, 0.0), axis=0)
    column = tile * BLOCK + tl.arange(0, BLOCK)
    p = law_tile(row, tile * BLOCK, vocab, BLOCK)
    q = law_tile(draft_row, tile * BLOCK, vocab * from_residual.to(tl.int32), BLOCK)
    weights = tl.where(from_residual, residual(p, q, reach), p.to(tl.float64))
    found = first_above(weights, column, before, goal, 0x7FFFFFFF)
    return tl.where(found == 0x7FFFFFFF, 0, found).to(tl.int64)


class AcceptSampled:
    """``accept_sampled`` with memory for its sums: two launches per call, safe to capture, on any number of streams.

    Bytes moved: of both laws the rows up to the first draft that its coin rejects (``block``: all that are tested),
    the tiles of the final draw once more, 24 per tile through scratch memory.
    """

    __slots__ = ("_pdl", "_scratch")

    def __init__(self, pdl: bool = False) -> None:
        self._pdl = pdl
        self._scratch = ScratchMemory()

    def __call__(
        self,
        candidates: Tensor,
        target_probs: Tensor,
        draft_probs: Tensor,
        accept_uniforms: Tensor,
        final_uniforms: Tensor,
        verify_lens: Tensor | None = None,
        variant: str = "token",
        trim: str = "fresh",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return how many drafts each request keeps and the token after them, so that the target's law is kept.

        Args:
            candidates: [B, W] int64, last stride 1: the anchor and the W - 1 = G drafts.
            target_probs: [B, W, V] float32, last stride 1, the target law after each candidate.
            draft_probs: [B, G, V] float32, last stride 1, the laws that the drafts were drawn from.
            accept_uniforms: [B, G] float32, contiguous.
            final_uniforms: [B] float32.
            verify_lens: [B] int32 or int64, rows verified; 0 marks a padded request. None: W.
            variant: ``token`` or ``block``.
            trim: ``fresh`` or ``boundary`` (for ``token`` only).

        Returns:
            correct_len [B] int32, bonus [B] int64 and cap_trim [B] int32.

        Raises:
            ValueError: unknown variant or trim, ``boundary`` with ``block``, no draft, or too large a vocabulary.

        Source: C2.3, C2.4.
        """
        requests, width = candidates.shape
        vocab = target_probs.shape[2]
        known = variant in ("token", "block") and trim in ("fresh", "boundary")
        sized = 2 <= width <= 64 and 1 <= vocab <= MOST_TOKENS
        if not known or (variant, trim) == ("block", "boundary") or not sized:
            got = f"variant {variant!r}, trim {trim!r}, {width - 1} drafts and {vocab} tokens"
            raise ValueError(
                "accept_sampled: wanted variant token or block, trim fresh or, for token, boundary, 1 to 63 drafts and "
                f"up to {MOST_TOKENS} tokens, got {got}"
            )
        correct, trimmed = (torch.empty(requests, dtype=torch.int32, device=candidates.device) for _ in range(2))
        bonus = torch.empty(requests, dtype=torch.int64, device=candidates.device)
        if requests:
            unit = common_stride_unit(target_probs, draft_probs)
            constants = launch_constants(width, vocab, unit, variant, self._pdl)
            options = launch_options(constants)
            tiles = triton.cdiv(vocab, constants["BLOCK"])
            words, lens = length_words(verify_lens, correct)
            sums = self._scratch.take(2 * requests * width * tiles * RECORD.value, target_probs).view(torch.float64)
            sizes = (
                candidates.stride(0), target_probs.stride(0) // unit, target_probs.stride(1) // unit,
                draft_probs.stride(0) // unit, draft_probs.stride(1) // unit, vocab // constants["VOCAB_UNIT"],
                words,
            )  # fmt: skip
            sums_kernel[(requests, tiles)](
                candidates, target_probs, draft_probs, accept_uniforms, lens, sums, *sizes, **constants, **options
            )  # fmt: skip
            accept_kernel[(requests,)](
                candidates, target_probs, draft_probs, accept_uniforms, final_uniforms, lens, correct, bonus, trimmed,
                sums, *sizes, **constants, **accept_constants(tiles, trim), **options,
            )  # fmt: skip
        return correct, bonus, trimmed


def launch_constants(width: int, vocab: int, unit: int, variant: str, pdl: bool) -> dict[str, Any]:
    """Return the compile-time arguments of both launches."""
    slots, block = max(8, triton.next_power_of_2(width)), BLOCK
    while triton.cdiv(vocab, block) * slots > MOST_SUMS and block < MOST_BLOCK:
        block *= 2
    return {
        "DRAFTS": width - 1, "WIDTH": slots, "BLOCK": block, "STRIDE_UNIT": unit,
        "VOCAB_UNIT": 1 if vocab % VOCAB_UNIT else VOCAB_UNIT, "BLOCKWISE": variant == "block", "PDL": pdl,
    }  # fmt: skip


def accept_constants(tiles: int, trim: str) -> dict[str, Any]:
    """Return the further compile-time arguments of the second launch."""
    return {"TILES": max(16, triton.next_power_of_2(tiles)), "BOUNDARY": trim == "boundary"}


def launch_options(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: a product is rounded before it is compared."""
    warps = max(4, constants["BLOCK"] // WARP_TOKENS)
    return {"num_warps": warps, "enable_fp_fusion": False, **pdl_option(constants["PDL"])}


def accept_sampled(
    candidates: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    accept_uniforms: Tensor,
    final_uniforms: Tensor,
    verify_lens: Tensor | None = None,
    variant: str = "token",
    trim: str = "fresh",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `AcceptSampled` returns, with memory of its own for the sums of this call.

    Source: C2.3, C2.4.
    """
    return AcceptSampled()(
        candidates, target_probs, draft_probs, accept_uniforms, final_uniforms, verify_lens, variant, trim
    )  # fmt: skip


def prepare_accept_sampled(device: Any, site: Any, rows: Sequence[int]) -> AcceptSampled:
    """Return `accept_sampled`, compiled for the site's sizes and options."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    bound = AcceptSampled(has_pdl(device))
    if target.type == "cuda":
        width, vocab = site.axes["W"], site.axes["V"]
        row = triton.cdiv(vocab, 16) * 16
        buffer = torch.zeros(width * (row + 1) + 1, device=target)
        candidates = torch.zeros(1, width, dtype=torch.int64, device=target)
        uniforms = torch.zeros(1, width - 1, device=target)
        variant, trim = site.options["variant"], site.options["trim"]
        # rows on boundaries of 16 bytes, only the first one, none
        for law in (buffer[: width * row].view(1, width, row), *(part.view(1, width, row + 1) for part in (
            buffer[:-1], buffer[1:],
        ))):  # fmt: skip
            law = law[..., :vocab]
            bound(candidates, law, law[:, : width - 1], uniforms, uniforms[:, 0], None, variant, trim)
    return bound


__all__ = ["AcceptSampled", "accept_kernel", "accept_sampled", "prepare_accept_sampled", "sums_kernel"]

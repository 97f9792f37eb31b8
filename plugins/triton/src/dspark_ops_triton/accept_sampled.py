"""Portable ``accept_sampled``: one launch reads both laws, and the last program of a request accepts and draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.accept_tail import length_words
from dspark_ops_triton.blocks.accepting import row_limit
from dspark_ops_triton.blocks.arrival import WORDS, ArrivalState
from dspark_ops_triton.blocks.meeting import is_last_to_arrive
from dspark_ops_triton.blocks.sampled import (
    block_length,
    first_above,
    is_finite,
    largest_finite,
    leading,
    of_slot,
    ratios,
    reach_after,
    residual,
)
from dspark_ops_triton.blocks.scratch import ScratchMemory

STATE_WORDS = tl.constexpr(WORDS)
#: Tokens of a tile; a law has at most MOST_TILES of them.
BLOCK = 4096
MOST_TILES = 256
WARPS = 8
#: float64 words of a tile: the sum of the target law, that of the residual, and how many draft values are not finite.
RECORD = tl.constexpr(3)
FLOOR = tl.constexpr(1e-8)

_NOT_SPECIALIZED = [
    "candidate_stride", "target_request", "target_row", "draft_request", "draft_row", "vocab", "lens_words",
]  # fmt: skip
_ANY_ALIGNMENT = ["candidates", "accept_uniforms", "final_uniforms", "verify_lens"]


@triton.jit
def chosen(target, draft, candidates, target_row, draft_row, vocab, slot, DRAFTS: tl.constexpr):
    """Return the token of each draft, and its probability under both laws: of one request, one per slot."""
    token = tl.load(candidates + 1 + slot, mask=slot < DRAFTS, other=-1)
    place = tl.minimum(tl.maximum(token, 0), vocab - 1)
    row = slot.to(tl.int64)
    p = tl.load(target + row * target_row + place, mask=slot < DRAFTS, other=0.0)
    q = tl.load(draft + row * draft_row + place, mask=slot < DRAFTS, other=0.0)
    return token, p, q


@triton.jit(do_not_specialize=_NOT_SPECIALIZED, do_not_specialize_on_alignment=_ANY_ALIGNMENT)
def sampled_kernel(
    candidates, target_probs, draft_probs, accept_uniforms, final_uniforms, verify_lens,
    correct_len, bonus_out, cap_trim, sums, state,
    candidate_stride, target_request, target_row, draft_request, draft_row, vocab, lens_words,
    DRAFTS: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCKWISE: tl.constexpr,
    BOUNDARY: tl.constexpr,
):  # fmt: skip
    """Add up one tile of one row of a request; its last program accepts drafts and draws the final token.

    `sums` holds RECORD words per tile. WIDTH is a power of two above DRAFTS, TILES one of at least the tiles.
    """
    request = (tl.program_id(0) // (DRAFTS + 1)).to(tl.int64)
    row = tl.program_id(0) % (DRAFTS + 1)
    tile = tl.program_id(1)
    tiles = tl.num_programs(1)
    slot = tl.arange(0, WIDTH)
    target = target_probs + request * target_request
    draft = draft_probs + request * draft_request
    held = candidates + request * candidate_stride

    column = tile * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(target + row.to(tl.int64) * target_row + column, mask=column < vocab, other=0.0)
    drafted = column < tl.where(row < DRAFTS, vocab, 0)  # the last row has no draft
    q = tl.load(draft + row.to(tl.int64) * draft_row + column, mask=drafted, other=0.0)
    reach = tl.full((), 1.0, tl.float64)
    if BLOCKWISE:
        _, likely, proposed = chosen(target, draft, held, target_row, draft_row, vocab, slot, DRAFTS)
        reach = reach_after(ratios(likely, proposed), slot, row)
    record = sums + (request * (DRAFTS + 1) + row) * tiles * RECORD + tile * RECORD
    tl.store(record, tl.sum(p.to(tl.float64), axis=0))
    tl.store(record + 1, tl.sum(residual(p, q, reach), axis=0))
    tl.store(record + 2, tl.sum((~is_finite(q)).to(tl.int32), axis=0).to(tl.float64))
    if is_last_to_arrive(state + request * STATE_WORDS, (DRAFTS + 1) * tiles):
        accept_and_draw(
            target, draft, held, accept_uniforms + request * DRAFTS, final_uniforms, verify_lens, correct_len,
            bonus_out, cap_trim, sums + request * (DRAFTS + 1) * tiles * RECORD, request, tiles, target_row, draft_row,
            vocab, lens_words, DRAFTS, WIDTH, TILES, BLOCK, BLOCKWISE, BOUNDARY,
        )  # fmt: skip


@triton.jit
def accept_and_draw(
    target, draft, candidates, accept_uniforms, final_uniforms, verify_lens, correct_len, bonus_out, cap_trim, sums,
    request, tiles, target_row, draft_row, vocab, lens_words,
    DRAFTS: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCKWISE: tl.constexpr,
    BOUNDARY: tl.constexpr,
):  # fmt: skip
    """Finish one request: its pointers point to it, but for those of lengths, coins and results."""
    slot = tl.arange(0, WIDTH)
    lane = tl.arange(0, TILES)
    record = sums + (slot[:, None] * tiles + lane[None, :]) * RECORD
    known = (slot <= DRAFTS)[:, None] & (lane < tiles)[None, :]
    law = tl.load(record, mask=known, other=0.0)
    rest = tl.load(record + 1, mask=known, other=0.0)
    strange = tl.sum(tl.load(record + 2, mask=known, other=0.0), axis=1)
    finite = is_finite(tl.sum(law, axis=1))

    token, p, q = chosen(target, draft, candidates, target_row, draft_row, vocab, slot, DRAFTS)
    uniform = tl.load(accept_uniforms + slot, mask=slot < DRAFTS, other=0.0)
    testable_here = (token >= 0) & (token < vocab) & finite & (strange == 0)
    testable = leading(testable_here, slot, DRAFTS)
    run = leading(testable_here & (uniform * q < p), slot, DRAFTS)
    one = request + tl.arange(0, 1)
    limit = row_limit(verify_lens, lens_words, one, one >= 0, WIDTH)
    allowed = tl.minimum(tl.maximum(tl.sum(limit, axis=0), -1), DRAFTS)
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
        from_residual, reach, tl.load(final_uniforms + request), lane, vocab, TILES, BLOCK,
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
    p = tl.load(row + column, mask=column < vocab, other=0.0)
    q = tl.load(draft_row + column, mask=column < tl.where(from_residual, vocab, 0), other=0.0)
    weights = tl.where(from_residual, residual(p, q, reach), p.to(tl.float64))
    found = first_above(weights, column, before, goal, 0x7FFFFFFF)
    return tl.where(found == 0x7FFFFFFF, 0, found).to(tl.int64)


class AcceptSampled:
    """``accept_sampled`` bound to one device: one launch per call, safe to capture, on any number of streams at once.

    The programs of a request meet at memory that this object owns: keep it alive as long as graphs that captured it.

    Bytes moved: both laws once, the tiles of the final draw once more, 24 per tile through scratch memory.
    """

    __slots__ = ("_arrivals", "_scratch")

    def __init__(self, arrivals: ArrivalState) -> None:
        self._arrivals = arrivals
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
        sized = 2 <= width <= 64 and 1 <= vocab <= BLOCK * MOST_TILES
        if not known or (variant, trim) == ("block", "boundary") or not sized:
            got = f"variant {variant!r}, trim {trim!r}, {width - 1} drafts and {vocab} tokens"
            raise ValueError(
                "accept_sampled: wanted variant token or block, trim fresh or, for token, boundary, 1 to 63 drafts and "
                f"up to {BLOCK * MOST_TILES} tokens, got {got}"
            )
        correct, trimmed = (torch.empty(requests, dtype=torch.int32, device=candidates.device) for _ in range(2))
        bonus = torch.empty(requests, dtype=torch.int64, device=candidates.device)
        if requests:
            tiles = triton.cdiv(vocab, BLOCK)
            words, lens = length_words(verify_lens, correct)
            sums = self._scratch.take(2 * requests * width * tiles * RECORD.value, target_probs).view(torch.float64)
            sampled_kernel[(requests * width, tiles)](
                candidates, target_probs, draft_probs, accept_uniforms, final_uniforms, lens, correct, bonus, trimmed,
                sums, self._arrivals.take(requests, candidates), candidates.stride(0),
                target_probs.stride(0), target_probs.stride(1), draft_probs.stride(0), draft_probs.stride(1),
                vocab, words, **launch_constants(width, vocab, variant, trim), **launch_options(),
            )  # fmt: skip
        return correct, bonus, trimmed


def launch_constants(width: int, vocab: int, variant: str, trim: str) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "DRAFTS": width - 1, "WIDTH": max(8, triton.next_power_of_2(width)),
        "TILES": max(16, triton.next_power_of_2(triton.cdiv(vocab, BLOCK))), "BLOCK": BLOCK,
        "BLOCKWISE": variant == "block", "BOUNDARY": trim == "boundary",
    }  # fmt: skip


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: a product is rounded before it is compared."""
    return {"num_warps": WARPS, "enable_fp_fusion": False}


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
    """Return what `AcceptSampled` returns; unprepared, a launch that zeroes 32 bytes per request comes before.

    Source: C2.3, C2.4.
    """
    bound = AcceptSampled(ArrivalState(0, candidates.device))
    return bound(
        candidates, target_probs, draft_probs, accept_uniforms, final_uniforms, verify_lens, variant, trim
    )  # fmt: skip


def prepare_accept_sampled(device: Any, site: Any, rows: Sequence[int]) -> AcceptSampled:
    """Return `accept_sampled` with memory for the planned requests, compiled for the site's sizes and options."""
    target = torch.device("cpu" if device.arch.vendor == "cpu" else "cuda")
    bound = AcceptSampled(ArrivalState(max(rows, default=0), target))
    if target.type == "cuda":
        width, vocab = site.axes["W"], site.axes["V"]
        law = torch.zeros(1, width, vocab, device=target)
        candidates = torch.zeros(1, width, dtype=torch.int64, device=target)
        uniforms = torch.zeros(1, width - 1, device=target)
        bound(
            candidates, law, law[:, 1:], uniforms, uniforms[:, 0], None, site.options["variant"], site.options["trim"]
        )  # fmt: skip
    return bound


__all__ = ["AcceptSampled", "accept_sampled", "prepare_accept_sampled", "sampled_kernel"]

"""The laws of sampled requests, tile by tile: which of their rows decide anything, and what those add up to."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.accepting import row_limit
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.sampled import leading, ratios, reach_after, residual

#: float64 words of a tile: the sums of the target law, of the residual, and of the draft law.
RECORD = tl.constexpr(3)
#: Arguments of every launch that reads laws: no build depends on them, and on where these begin.
NOT_SPECIALIZED = [
    "candidate_stride", "target_request", "target_row", "draft_request", "draft_row", "vocab_groups", "lens_words",
]  # fmt: skip
ANY_ALIGNMENT = ["candidates", "accept_uniforms", "final_uniforms", "verify_lens"]


@triton.jit
def chosen(target, draft, candidates, target_row, draft_row, vocab, slot, DRAFTS: tl.constexpr):
    """Return the token of each draft, and its probability under both laws: of one request, one per slot."""
    token = tl.load(candidates + 1 + slot, mask=slot < DRAFTS, other=-1)
    place = tl.minimum(tl.maximum(token, 0), vocab - 1)
    row = slot.to(tl.int64)
    p = tl.load(target + row * target_row + place, mask=slot < DRAFTS, other=0.0)
    q = tl.load(draft + row * draft_row + place, mask=slot < DRAFTS, other=0.0)
    return token, p, q


@triton.jit
def law_tile(law, first, columns, BLOCK: tl.constexpr):
    """Return BLOCK probabilities of a row from column `first` on, 0 from `columns` on."""
    column = first + tl.arange(0, BLOCK)
    return tl.load(law + column, mask=column < columns, other=0.0)


@triton.jit
def add_three(a, b, c, x, y, z):
    """Return three sums."""
    return a + x, b + y, c + z


@triton.jit
def rows_that_matter(
    candidates, target, draft, accept_uniforms, verify_lens, request, target_row, draft_row, vocab, lens_words, slot,
    DRAFTS: tl.constexpr, WIDTH: tl.constexpr, BLOCKWISE: tl.constexpr,
):  # fmt: skip
    """Return what is known of a request's drafts before its laws are added up, and the last row that decides anything.

    That is, one per slot, the token, its two probabilities and its coin; the drafts that may be kept at most, -1 for
    padding; and the row: one behind the first draft that its coin rejects decides nothing. Pointers to candidates and
    laws point to the request.
    """
    token, p, q = chosen(target, draft, candidates, target_row, draft_row, vocab, slot, DRAFTS)
    uniform = tl.load(accept_uniforms + request * DRAFTS + slot, mask=slot < DRAFTS, other=0.0)
    one = request + tl.arange(0, 1)
    limit = row_limit(verify_lens, lens_words, one, one >= 0, WIDTH)
    allowed = tl.minimum(tl.maximum(tl.sum(limit, axis=0), -1), DRAFTS)
    possible = (token >= 0) & (token < vocab)
    if BLOCKWISE:
        last = tl.minimum(leading(possible, slot, DRAFTS), tl.maximum(allowed, 0))
    else:
        last = leading(possible & (uniform * q < p), slot, DRAFTS)
    return token, p, q, uniform, allowed, last


@triton.jit(do_not_specialize=NOT_SPECIALIZED, do_not_specialize_on_alignment=ANY_ALIGNMENT)
def sums_kernel(
    candidates, target_probs, draft_probs, accept_uniforms, verify_lens, sums,
    candidate_stride, target_request, target_row, draft_request, draft_row, vocab_groups, lens_words,
    DRAFTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr,
    VOCAB_UNIT: tl.constexpr, BLOCKWISE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add up one tile of the rows of a request that decide anything.

    `sums` holds RECORD words per row and tile. WIDTH is a power of two above DRAFTS. Strides of the laws count groups
    of STRIDE_UNIT, the vocabulary groups of VOCAB_UNIT: known factors let the compiler load 16 bytes under a mask.
    """
    begin(PDL)
    vocab = vocab_groups * VOCAB_UNIT
    request = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    slot = tl.arange(0, WIDTH)
    target = target_probs + request * target_request * STRIDE_UNIT
    draft = draft_probs + request * draft_request * STRIDE_UNIT
    target_row = target_row * STRIDE_UNIT
    draft_row = draft_row * STRIDE_UNIT
    # the first row decides in any case: it is on its way while the drafts are looked at
    share = law_tile(target, tile * BLOCK, vocab, BLOCK)
    other = law_tile(draft, tile * BLOCK, vocab, BLOCK)
    _, p, q, _, _, last = rows_that_matter(
        candidates + request * candidate_stride, target, draft, accept_uniforms, verify_lens, request, target_row,
        draft_row, vocab, lens_words, slot, DRAFTS, WIDTH, BLOCKWISE,
    )  # fmt: skip
    for number in range(0, last + 1):
        row = tl.full((), 0, tl.int64) + number
        # so is the next one while this one is added up; the last row of all has no draft
        following = row + 1
        there = vocab * (following <= last).to(tl.int32)
        drafted = there * (following < DRAFTS).to(tl.int32)
        next_share = law_tile(target + following * target_row, tile * BLOCK, there, BLOCK)
        next_other = law_tile(draft + following * draft_row, tile * BLOCK, drafted, BLOCK)
        reach = tl.full((), 1.0, tl.float64)
        if BLOCKWISE:
            reach = reach_after(ratios(p, q), slot, row)
        law, rest, drafts = tl.reduce(
            (share.to(tl.float64), residual(share, other, reach), other.to(tl.float64)), 0, add_three
        )
        record = sums + ((request * (DRAFTS + 1) + row) * tl.num_programs(1) + tile) * RECORD
        tl.store(record, law)
        tl.store(record + 1, rest)
        tl.store(record + 2, drafts)
        share, other = next_share, next_other

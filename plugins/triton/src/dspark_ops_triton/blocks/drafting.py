"""Kernels of one slot of a draft block: logits with the Markov bias and their argmax, and a draw from their law."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.arrival import WORDS
from dspark_ops_triton.blocks.ordering import pack, packed_column

STATE_WORDS = tl.constexpr(WORDS)


@triton.jit
def embedding(embed, token, live, first, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr, EXACT: tl.constexpr):
    """Return columns `first` on of the embeddings of some tokens, [RANK_BLOCK, tokens]; float32 if EXACT."""
    rank = first + tl.arange(0, RANK_BLOCK)
    inside = live[:, None] & (rank < RANK)[None, :]
    # loaded with the columns along the last axis, in which they follow each other in memory
    feature = tl.trans(tl.load(embed + token[:, None] * RANK + rank[None, :], mask=inside, other=0.0))
    return feature.to(tl.float32) if EXACT else feature


@triton.jit
def head_product(
    head, column, inside, feature, first, total, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr, EXACT: tl.constexpr
):
    """Return `total` plus the product of columns `first` on of the head's rows `column` with `feature`, in float32."""
    rank = first + tl.arange(0, RANK_BLOCK)
    mask = inside[:, None] & (rank < RANK)[None, :]
    weight = tl.load(head + column.to(tl.int64)[:, None] * RANK + rank[None, :], mask=mask, other=0.0)
    if EXACT:
        return tl.dot(weight.to(tl.float32), feature, total, input_precision="ieee")
    return tl.dot(weight, feature, total)


@triton.jit(
    do_not_specialize=["rows", "base_row", "previous_stride", "draft_stride", "logit_row", "last_token", "backward"],
    do_not_specialize_on_alignment=["base", "previous", "drafts", "logits"],
)
def slot_kernel(
    base, previous, embed, head, drafts, logits, state,
    rows, base_row, previous_stride, draft_stride, logit_row, last_token, backward,
    VOCAB: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr, EXACT: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Take tiles of TOKENS tokens for ROWS rows; the last program to arrive at a row writes its draft.

    With `backward` the last tiles of the head come first: what the slot before has read last is still in the cache.

    `state` holds STATE_WORDS int64 words per row, 0 at rest: the row's best pair, and the number of programs that have
    merged theirs. KEEP also stores the logits.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    place = row.to(tl.int64)
    programs = tl.num_programs(0)
    count = tl.cdiv(tl.cdiv(VOCAB, TOKENS) - tl.program_id(0), programs)
    tile = tl.program_id(0)
    step = programs
    if backward != 0:
        tile += (count - 1) * programs
        step = -programs
    token = tl.load(previous + place * previous_stride, mask=live, other=0)
    token = tl.minimum(tl.maximum(token, 0), last_token)
    if RANK_BLOCK >= RANK:
        feature = embedding(embed, token, live, 0, RANK, RANK_BLOCK, EXACT)
    lane = tl.arange(0, TOKENS)
    best = tl.zeros((TOKENS, ROWS), tl.int64)
    for _ in range(count):
        column = tile * TOKENS + lane
        inside = column < VOCAB
        taken = inside[:, None] & live[None, :]
        value = tl.load(base + place[None, :] * base_row + column[:, None], mask=taken, other=float("-inf"))
        bias = tl.zeros((TOKENS, ROWS), tl.float32)
        if RANK_BLOCK >= RANK:
            bias = head_product(head, column, inside, feature, 0, bias, RANK, RANK_BLOCK, EXACT)
        else:
            for first in range(0, RANK, RANK_BLOCK):
                part = embedding(embed, token, live, first, RANK, RANK_BLOCK, EXACT)
                bias = head_product(head, column, inside, part, first, bias, RANK, RANK_BLOCK, EXACT)
        # The bias has the head's dtype, the sum the step's: each is rounded to it.
        total = (value + bias.to(head.dtype.element_ty).to(tl.float32)).to(STEP).to(tl.float32)
        if KEEP:
            tl.store(logits + place[None, :] * logit_row + column[:, None], total, mask=taken)
        # Pairs can be compared in any order. A column beyond the vocabulary holds -inf, and loses every tie.
        best = tl.maximum(best, pack(total, tl.zeros((TOKENS, ROWS), tl.int32) + column[:, None]))
        tile += step
    pair = tl.max(best, axis=0)
    words = state + place * STATE_WORDS
    # Lane by lane one thread merges the maximum and counts the arrival: the counting releases its own maximum.
    tl.atomic_max(words, pair, mask=live, sem="relaxed")
    arrived = tl.atomic_add(words + 1, tl.full((ROWS,), 1, tl.int64), mask=live, sem="acq_rel")
    last = live & (arrived == tl.num_programs(0) - 1)
    pair = tl.atomic_xchg(words, tl.zeros((ROWS,), tl.int64), mask=last, sem="relaxed")
    tl.store(words + 1, tl.zeros((ROWS,), tl.int64), mask=last)
    tl.store(drafts + place * draft_stride, packed_column(pair), mask=last)


@triton.jit(
    do_not_specialize=["law_row", "draft_stride", "coin_stride"],
    do_not_specialize_on_alignment=["law", "drafts", "uniforms", "temperature"],
)
def draw_kernel(
    law, drafts, uniforms, temperature, law_row, draft_stride, coin_stride, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Turn one row's logits into its law, in place, and its greedy draft into one drawn from that law.

    The draft stays where the row is cold, or where its logits have no softmax: where the largest is no finite number.
    The running sum is that of the law as stored, in float64.
    """
    row = tl.program_id(0).to(tl.int64)
    values = law + row * law_row
    greedy = tl.load(drafts + row * draft_stride)
    top = tl.load(values + greedy)
    heat = tl.load(temperature + row)
    pointed = ~(heat >= 1e-5) | ~(tl.abs(top) < float("inf"))
    heat = tl.where(pointed, 1.0, heat)
    top = tl.where(pointed, 0.0, top)
    lane = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, VOCAB, BLOCK):
        value = tl.load(values + first + lane, mask=first + lane < VOCAB, other=float("-inf"))
        sums += tl.exp((tl.where(pointed, 0.0, value) - top) / heat)
    total = tl.sum(sums, axis=0)
    exact = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, VOCAB, BLOCK):
        column = first + lane
        value = tl.load(values + column, mask=column < VOCAB, other=float("-inf"))
        share = tl.exp((tl.where(pointed, 0.0, value) - top) / heat) / total
        share = tl.where(pointed, tl.where(column == greedy, 1.0, 0.0), share)
        exact += share.to(tl.float64)
        tl.store(values + column, share, mask=column < VOCAB)
    tl.debug_barrier()  # the law is read back below
    goal = tl.load(uniforms + row * coin_stride).to(tl.float64) * tl.sum(exact, axis=0)
    running = tl.sum(exact, axis=0) * 0.0
    drawn = VOCAB
    positive = 0
    for first in range(0, VOCAB, BLOCK):
        column = first + lane
        share = tl.load(values + column, mask=column < VOCAB, other=0.0)
        reached = running + tl.cumsum(share.to(tl.float64), axis=0)
        hit = (reached > goal) & (column < VOCAB)
        drawn = tl.minimum(drawn, tl.min(tl.where(hit, column, VOCAB), axis=0))
        positive = tl.maximum(positive, tl.max(tl.where(share > 0, column, 0), axis=0))
        running += tl.sum(share.to(tl.float64), axis=0)
    drawn = tl.where(drawn < VOCAB, drawn, positive)
    tl.store(drafts + row * draft_stride, tl.where(pointed, greedy, drawn.to(tl.int64)))

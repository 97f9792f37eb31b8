"""Device functions of the verify tail: confirmed prefixes, and what a step commits and emits.

All work on tiles [requests, WIDTH] with one column per verify row; WIDTH is a power of two of at least the W rows.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def leading_run(matched, column, LAST: tl.constexpr):
    """Return per request, int32, how many of its first LAST columns are `matched` before the first one that is not."""
    stop = tl.where(matched & (column < LAST), LAST, tl.minimum(column, LAST))
    return tl.min(stop, axis=1)


@triton.jit
def matches(draft, target):
    """Return which drafts are the target's token; -1, "no draft", matches nothing."""
    return (draft == target) & (draft >= 0)


@triton.jit
def token_at(tokens, column, place):
    """Return per request the token in column `place`, that of column 0 where `place` is below it."""
    return tl.sum(tl.where(column == tl.maximum(place, 0)[:, None], tokens, 0), axis=1)


@triton.jit
def row_limit(verify_lens, lens_words, row, live, WIDTH: tl.constexpr):
    """Return per request, int32, the drafts that were verified at most: -1 for padding, WIDTH without lengths.

    `verify_lens` points to int32 words, `lens_words` per length: 1, 2 (int64, the low word first) or 0 (no lengths).
    """
    words = tl.zeros(row.shape, tl.int32) + lens_words
    return tl.load(verify_lens + row.to(tl.int64) * words, mask=live & (words > 0), other=WIDTH + 1) - 1


@triton.jit
def commit(
    correct, bonus, draft, prefix_lens, commit_lens, new_seq_lens, out_tokens, row, live, column, LAST: tl.constexpr
):
    """Store what requests commit and emit: lengths, then LAST + 1 tokens each (N11.3, N11.4).

    `draft` holds the drafts from column 0 on, 0 in column LAST; `correct` is -1 for a padded request.
    """
    count = correct + 1
    prefix = tl.load(prefix_lens + row, mask=live, other=0)
    tl.store(commit_lens + row, count, mask=live)
    tl.store(new_seq_lens + row, prefix + count.to(prefix.dtype), mask=live)
    token = tl.where(column == correct[:, None], bonus[:, None], draft)
    token = tl.where(count[:, None] > 0, token, 0)
    place = row[:, None].to(tl.int64) * (LAST + 1) + column
    tl.store(out_tokens + place, token, mask=live[:, None] & (column <= LAST))

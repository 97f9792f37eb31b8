"""Portable ``accept_greedy``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.accept_tail import length_words
from dspark_ops_triton.blocks.accepting import leading_run, matches, row_limit, token_at
from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent_stages import begin_at

#: Requests of a program, and tokens that it holds at most: wide steps share a program among fewer requests.
CUT = Cut(items=4, warps=1)
TOKENS = 256


@triton.jit(
    do_not_specialize=["requests", "candidate_stride", "lens_words"],
    do_not_specialize_on_alignment=["candidates", "target_ids", "verify_lens"],
)
def greedy_kernel(
    candidates, target_ids, verify_lens, correct_len, bonus, cap_trim, requests, candidate_stride, lens_words,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Accept ROWS requests; WIDTH is a power of two of at least COLUMNS."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < requests
    column = tl.arange(0, WIDTH)[None, :]
    place = row[:, None].to(tl.int64)
    begin_at((candidates, target_ids, correct_len, bonus, cap_trim, candidate_stride), PDL)
    draft = tl.load(
        candidates + place * candidate_stride + 1 + column, mask=live[:, None] & (column < COLUMNS - 1), other=0
    )
    target = tl.load(target_ids + place * COLUMNS + column, mask=live[:, None] & (column < COLUMNS), other=0)
    limit = row_limit(verify_lens, lens_words, row, live, WIDTH)
    run = leading_run(matches(draft, target), column, COLUMNS - 1)
    correct = tl.minimum(run, limit)
    tl.store(correct_len + row, correct, mask=live)
    tl.store(bonus + row, token_at(target, column, correct), mask=live)
    tl.store(cap_trim + row, run - correct, mask=live)


def accept_greedy(
    candidates: Tensor, target_ids: Tensor, verify_lens: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the length of each request's confirmed prefix and the target's token after it.

    Args:
        candidates: [B, W] int64, last stride 1; -1 = no draft.
        target_ids: [B, W] int64, contiguous.
        verify_lens: [B] int32 or int64 or None; 0 = padded request.

    Returns:
        correct_len [B] int32 (-1 for padding), bonus [B] int64, cap_trim [B] int32.

    Bytes moved: 16 per row, about 24 per request. Launches: 1, none for no requests.

    Source: N11.2, A13, C2.2.
    """
    return _greedy(CUT, candidates, target_ids, verify_lens)


def _greedy(
    cut: Cut, candidates: Tensor, target_ids: Tensor, verify_lens: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    requests, width = candidates.shape
    correct_len = torch.empty(requests, dtype=torch.int32, device=candidates.device)
    bonus = torch.empty(requests, dtype=torch.int64, device=candidates.device)
    cap_trim = torch.empty_like(correct_len)
    if requests:
        words, lens = length_words(verify_lens, correct_len)
        constants = launch_constants(cut, width)
        greedy_kernel[(triton.cdiv(requests, constants["ROWS"]),)](
            candidates, target_ids, lens, correct_len, bonus, cap_trim, requests, candidates.stride(0), words,
            **constants, **cut_options(cut),
        )  # fmt: skip
    return correct_len, bonus, cap_trim


def launch_constants(cut: Cut, width: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    held = triton.next_power_of_2(width)
    return {"COLUMNS": width, "WIDTH": held, "ROWS": min(cut.items, TOKENS // held), "PDL": cut.pdl}


def prepare_accept_greedy(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `accept_greedy`, compiled for the site's width."""
    return prepare_cut(_greedy, CUT, accept_greedy, _compile, device, site, rows)


def _compile(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    ids = torch.zeros(1, site.axes["W"], dtype=torch.int64, device="cuda")
    call(ids, ids)

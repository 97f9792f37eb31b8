"""Portable ``accept_finalize``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent_stages import begin_at

#: Requests of a program, and tokens that it holds at most: wide steps share a program among fewer requests.
CUT = Cut(items=4, warps=1)
TOKENS = 256


@triton.jit(
    do_not_specialize=["requests", "draft_stride"],
    do_not_specialize_on_alignment=["correct_len", "bonus", "drafts", "prefix_lens"],
)
def finalize_kernel(
    correct_len, bonus, drafts, prefix_lens, commit_lens, new_seq_lens, out_tokens, requests, draft_stride,
    DRAFTS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the lengths and emitted tokens of ROWS requests; WIDTH is a power of two above DRAFTS."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < requests
    begin_at((correct_len, bonus, drafts, prefix_lens, commit_lens, new_seq_lens, out_tokens, draft_stride), PDL)
    column = tl.arange(0, WIDTH)[None, :]
    has_draft = live[:, None] & (column < DRAFTS)
    # All loads come before the first store, which would hold up those behind it.
    correct = tl.load(correct_len + row, mask=live, other=-1).to(tl.int32)
    prefix = tl.load(prefix_lens + row, mask=live, other=0)
    token = tl.load(drafts + row[:, None].to(tl.int64) * draft_stride + column, mask=has_draft, other=0)
    last = tl.load(bonus + row, mask=live, other=0)
    commit = correct + 1
    tl.store(commit_lens + row, commit, mask=live)
    tl.store(new_seq_lens + row, prefix + commit.to(prefix.dtype), mask=live)
    token = tl.where(column == correct[:, None], last[:, None], token)
    token = tl.where(commit[:, None] > 0, token, 0)
    place = row[:, None].to(tl.int64) * (DRAFTS + 1) + column
    tl.store(out_tokens + place, token, mask=live[:, None] & (column <= DRAFTS))


def accept_finalize(
    correct_len: Tensor, bonus: Tensor, cap_trim: Tensor, drafts: Tensor, prefix_lens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a verify step commits and emits, given the accepted lengths.

    Args:
        correct_len: [B] int32, accepted drafts; -1 for a padded request.
        bonus: [B] int64, token after the accepted drafts.
        cap_trim: [B] int32, not read.
        drafts: [B, G] int64, last stride 1.
        prefix_lens: [B] int32 or int64.

    Returns:
        commit_lens [B] int32, new_seq_lens [B] of `prefix_lens`' dtype, out_tokens [B, G + 1] int64.

    Bytes moved: about 30 per request and 16 per draft. Launches: 1, none for no requests.

    Source: N11.3, N11.4, A13.
    """
    return _finalize(CUT, correct_len, bonus, cap_trim, drafts, prefix_lens)


def _finalize(
    cut: Cut, correct_len: Tensor, bonus: Tensor, cap_trim: Tensor, drafts: Tensor, prefix_lens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    requests, gamma = drafts.shape
    commit_lens = torch.empty_like(correct_len, dtype=torch.int32)
    new_seq_lens = torch.empty_like(prefix_lens)
    out_tokens = torch.empty(requests, gamma + 1, dtype=torch.int64, device=drafts.device)
    if requests:
        constants = launch_constants(cut, gamma)
        finalize_kernel[(triton.cdiv(requests, constants["ROWS"]),)](
            correct_len, bonus, drafts, prefix_lens, commit_lens, new_seq_lens, out_tokens, requests, drafts.stride(0),
            **constants, **cut_options(cut),
        )  # fmt: skip
    return commit_lens, new_seq_lens, out_tokens


def launch_constants(cut: Cut, gamma: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    width = triton.next_power_of_2(gamma + 1)
    return {"DRAFTS": gamma, "WIDTH": width, "ROWS": min(cut.items, TOKENS // width), "PDL": cut.pdl}


def prepare_accept_finalize(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `accept_finalize`, compiled for the site's draft count and both dtypes of the prefix lengths."""
    return prepare_cut(_finalize, CUT, accept_finalize, _compile, device, site, rows)


def _compile(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    one = torch.zeros(1, dtype=torch.int32, device="cuda")
    drafts = torch.zeros(1, site.axes["G"], dtype=torch.int64, device="cuda")
    for prefix_lens in (one, one.long()):
        call(one, one.long(), one, drafts, prefix_lens)

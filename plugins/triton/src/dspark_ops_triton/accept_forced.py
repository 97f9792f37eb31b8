"""Portable ``accept_forced``: the tail of a verify step with drawn accepted lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.accept_tail import AcceptTail, bound_tail, empty_outputs, length_words, unprepared, warm_up
from dspark_ops_triton.blocks.accepting import commit, leading_run, row_limit

#: Requests of a program, and tokens that it holds at most: wide steps share a program among fewer requests.
ROWS = 16
TOKENS = 256
WARPS = 1

_NOT_SPECIALIZED = ["requests", "candidate_stride", "length_stride", "lens_words"]
_ANY_ALIGNMENT = ["candidates", "prefix_lens", "verify_lens", "accept_lens", "bonus"]


@triton.jit(do_not_specialize=_NOT_SPECIALIZED, do_not_specialize_on_alignment=_ANY_ALIGNMENT)
def forced_kernel(
    candidates, prefix_lens, verify_lens, accept_lens, bonus,
    correct_len, bonus_out, cap_trim, commit_lens, new_seq_lens, out_tokens,
    requests, candidate_stride, length_stride, lens_words,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Finish ROWS requests whose final token is given; WIDTH is a power of two of at least COLUMNS."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < requests
    column = tl.arange(0, WIDTH)[None, :]
    has_draft = live[:, None] & (column < COLUMNS - 1)
    held = candidates + row[:, None].to(tl.int64) * candidate_stride
    draft = tl.load(held + 1 + column, mask=has_draft, other=0)
    drawn = tl.load(accept_lens + row.to(tl.int64) * length_stride, mask=live, other=1)
    drawn = tl.minimum(tl.maximum(drawn, 1), COLUMNS) - 1
    run = tl.minimum(drawn, leading_run(draft >= 0, column, COLUMNS - 1))
    correct = tl.minimum(run, row_limit(verify_lens, lens_words, row, live, WIDTH))
    token = tl.load(bonus + row, mask=live, other=0)
    tl.store(correct_len + row, correct, mask=live)
    tl.store(bonus_out + row, token, mask=live)
    tl.store(cap_trim + row, run - correct, mask=live)
    commit(
        correct, token, draft, prefix_lens, commit_lens, new_seq_lens, out_tokens, row, live, column, COLUMNS - 1
    )  # fmt: skip


class AcceptForced:
    """``accept_forced`` bound to one device: one launch per call, on the memory of an `AcceptTail`.

    Bytes moved: as `AcceptTail`; with a given bonus the logits are not read.
    """

    __slots__ = ("_tail",)

    def __init__(self, tail: AcceptTail) -> None:
        self._tail = tail

    def __call__(
        self,
        candidates: Tensor,
        logits: Tensor,
        prefix_lens: Tensor,
        accept_lens: Tensor,
        verify_lens: Tensor | None = None,
        bonus: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return what `accept_tail` returns, as if each request had accepted the length that was drawn for it.

        Args:
            candidates: [B, W] int64, last stride 1.
            logits: [B * W, V] float32, last stride 1; not read if `bonus` is given.
            prefix_lens: [B] int32 or int64.
            accept_lens: [B] int32, any stride; counts as the nearer end of 1 to W outside.
            verify_lens: [B] int32 or int64 or None.
            bonus: [B] int64 or None; the final token to use instead of the real one. It is copied.

        Source: C3.1, C3.5, N11.7.
        """
        if bonus is None:
            return self._tail.launch(candidates, logits, prefix_lens, verify_lens, accept_lens)
        return forced_with_bonus(candidates, prefix_lens, accept_lens, verify_lens, bonus)


def forced_with_bonus(
    candidates: Tensor, prefix_lens: Tensor, accept_lens: Tensor, verify_lens: Tensor | None, bonus: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the six outputs where the final token is known, in one launch; none for no requests."""
    requests, width = candidates.shape
    outputs = empty_outputs(requests, width, prefix_lens)
    if requests:
        words, lens = length_words(verify_lens, outputs[0])
        constants = launch_constants(width)
        forced_kernel[(triton.cdiv(requests, constants["ROWS"]),)](
            candidates, prefix_lens, lens, accept_lens, bonus, *outputs,
            requests, candidates.stride(0), accept_lens.stride(0), words,
            **constants, **launch_options(),
        )  # fmt: skip
    return outputs


def launch_constants(width: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch with a given bonus."""
    held = triton.next_power_of_2(width)
    return {"COLUMNS": width, "WIDTH": held, "ROWS": min(ROWS, TOKENS // held)}


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch with a given bonus."""
    return {"num_warps": WARPS, "enable_fp_fusion": False}


def accept_forced(
    candidates: Tensor,
    logits: Tensor,
    prefix_lens: Tensor,
    accept_lens: Tensor,
    verify_lens: Tensor | None = None,
    bonus: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return what `AcceptForced` returns; unprepared, a launch that zeroes 32 bytes per row comes before the kernel.

    Source: C3.1, C3.5, N11.7.
    """
    tail = AcceptForced(unprepared(logits.device))
    return tail(candidates, logits, prefix_lens, accept_lens, verify_lens, bonus)


def prepare_accept_forced(device: Any, site: Any, rows: Sequence[int]) -> AcceptForced:
    """Return `accept_forced` as one launch, compiled for the site's sizes and with its memory allocated."""
    tail = bound_tail(device, site, rows)
    if device.arch.vendor != "cpu":
        width = site.axes["W"]
        warm_up(tail, width, site.axes["V"], True)
        one = torch.zeros(1, dtype=torch.int64, device="cuda")
        for prefix in (one, one.int()):
            forced_with_bonus(one.new_zeros(1, width), prefix, one.int(), None, one)
    return AcceptForced(tail)

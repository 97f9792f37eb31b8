"""Portable ``varctx_schedule``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks import varctx_records
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: One warp holds the requests of a decode step; more of them are shared as `varctx_records.widened` says.
CUT = Cut(items=64, warps=1)


def varctx_schedule(
    context_lens: Tensor, block_k: int, programs: int, max_seq_len: int, next_n: int = 1
) -> tuple[Tensor, Tensor]:
    """Return how many chunks a program computes at most, and the chunks of each program.

    Args:
        context_lens: [B] int32, tokens of each request; up to `MOST_REQUESTS` requests.
        block_k: tokens of a chunk.
        programs: number of programs, a multiple of `next_n`, at least ``B * next_n``.
        max_seq_len: tokens of the longest context, an upper bound that the host knows.
        next_n: query rows of a request.

    Returns:
        safe [1] int32, and cta_info [P, 4] int32: query row, first chunk, chunks, and tokens of each program;
        ``[0, 0, 1, 0]`` for one without work.

    Raises:
        ValueError: `programs` is too small or no multiple of `next_n`, a size is not positive, or too many requests.

    Bytes moved: 16 per program, 4 per request and 64 programs. Launches: 1.

    Source: A17a.
    """
    return varctx_records.varctx_schedule(CUT, context_lens, block_k, programs, max_seq_len, next_n)


def prepare_varctx_schedule(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `varctx_schedule`, compiled for the planned numbers of requests."""
    compiled = varctx_records.compile_varctx_schedule
    return prepare_cut(varctx_records.varctx_schedule, CUT, varctx_schedule, compiled, device, site, rows)

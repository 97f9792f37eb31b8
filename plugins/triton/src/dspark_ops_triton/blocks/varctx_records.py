"""The chunks that each program of a ragged launch takes, cut as data; items are records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent import begin

#: Requests that every program holds.
MOST_REQUESTS = 4095


@triton.jit
def slots_needed(chunks, most):
    """Return how many slots requests of `chunks` take at `most` chunks a slot, in all, as int64."""
    return tl.sum(((chunks + (most - 1)) // most).to(tl.int64), axis=0)


@triton.jit
def least_that_fits(chunks, slots, most):
    """Return the least chunks of a slot, 1 to `most`, with which requests fit the slots, else those of the longest.

    All chunks together take at least their number over `m` slots at `m` chunks a slot, and less than that and one slot
    more per request: few candidates lie between the two, none for a single request.
    """
    total = tl.sum(chunks.to(tl.int64), axis=0)
    spare = (slots - tl.sum((chunks > 0).to(tl.int32), axis=0)).to(tl.int64)
    least = tl.minimum((total + slots - 1) // slots, most.to(tl.int64)).to(tl.int32)
    plenty = tl.minimum((total + spare - 1) // tl.maximum(spare, 1), most.to(tl.int64)).to(tl.int32)
    low = tl.maximum(least, 1)
    high = tl.maximum(tl.where(spare > 0, plenty, most), low)
    while low < high:
        middle = low + (high - low) // 2
        enough = slots_needed(chunks, middle) <= slots
        low = tl.where(enough, low, middle + 1)
        high = tl.where(enough, middle, high)
    return tl.where(slots_needed(chunks, high) <= slots, high, tl.maximum(tl.max(chunks, axis=0), 1))


@triton.jit(
    do_not_specialize=["requests", "block_k", "programs", "most", "next_n"],
    do_not_specialize_on_alignment=["context_lens", "safe_out", "records"],
)
def varctx_kernel(
    context_lens, safe_out, records, requests, block_k, programs, most, next_n,
    REQUESTS: tl.constexpr, LEVELS: tl.constexpr, RECORDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write RECORDS records; every program finds the most chunks of a slot by itself.

    REQUESTS is 2**LEVELS, above the number of requests: one more takes no slot.
    """
    begin(PDL)
    request = tl.arange(0, REQUESTS)
    context = tl.load(context_lens + request, mask=request < requests, other=0)
    chunks = tl.where(context > 0, (context - 1) // block_k + 1, 0)
    safe = least_that_fits(chunks, programs // next_n, most)
    taken = tl.where(chunks > 0, (chunks - 1) // safe + 1, 0)
    end = tl.cumsum(taken, axis=0)
    start = end - taken

    record = tl.program_id(0) * RECORDS + tl.arange(0, RECORDS)
    slot = record // next_n
    # the request of a slot is the number of requests that end at or before it
    mine = tl.zeros((RECORDS,), tl.int32)
    for level in tl.static_range(LEVELS):
        last = mine + ((REQUESTS >> (level + 1)) - 1)
        mine = tl.where(tl.gather(end, last, 0) <= slot, last + 1, mine)
    busy = mine < requests
    first = tl.where(busy, (slot - tl.gather(start, mine, 0)) * safe, 0)
    count = tl.where(busy, tl.minimum(tl.gather(chunks, mine, 0) - first, safe), 1)
    row = tl.where(busy, mine * next_n + record % next_n, 0)
    tokens = tl.where(busy, tl.gather(context, mine, 0), 0)
    word = records + record.to(tl.int64) * 4
    inside = record < programs
    tl.store(word, row, mask=inside)
    tl.store(word + 1, first, mask=inside)
    tl.store(word + 2, count, mask=inside)
    tl.store(word + 3, tokens, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(safe_out, safe)


def varctx_schedule(
    cut: Cut, context_lens: Tensor, block_k: int, programs: int, max_seq_len: int, next_n: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the chunks of each program: ``varctx_schedule`` (A17a), arguments as in its contract."""
    batch = context_lens.shape[0]
    sizes = min(block_k, next_n, programs) >= 1 and batch <= MOST_REQUESTS and programs < 2**31 - cut.items
    if not sizes or programs % next_n or programs < batch * next_n:
        got = f"{batch} requests of {next_n} rows, {programs} programs, chunks of {block_k}"
        raise ValueError(
            f"varctx_schedule: wanted positive sizes, up to {MOST_REQUESTS} requests, and programs in multiples of the "
            f"rows of a request, enough for one each, got {got}"
        )
    safe = torch.empty(1, dtype=torch.int32, device=context_lens.device)
    records = torch.empty(programs, 4, dtype=torch.int32, device=context_lens.device)
    most = max(1, -(-max_seq_len // block_k))
    cut = widened(cut, batch)
    varctx_kernel[(triton.cdiv(programs, cut.items),)](
        context_lens, safe, records, batch, block_k, programs, most, next_n,
        **launch_constants(cut, batch), **cut_options(cut),
    )  # fmt: skip
    return safe, records


def widened(cut: Cut, requests: int) -> Cut:
    """Return a cut with as many warps for a number of requests as keeps 16 or fewer in a thread."""
    return replace(cut, warps=max(cut.warps, padded_requests(requests) // 512))


def padded_requests(requests: int) -> int:
    """Return the requests that a program holds, a power of two above `requests`."""
    return max(64, triton.next_power_of_2(requests + 1))


def launch_constants(cut: Cut, requests: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    padded = padded_requests(requests)
    return {"REQUESTS": padded, "LEVELS": padded.bit_length() - 1, "RECORDS": cut.items, "PDL": cut.pdl}


def compile_varctx_schedule(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `varctx_schedule`, cut somehow, once per build that a site needs."""
    for requests in sorted({padded_requests(count) - 1 for count in rows}):
        call(torch.ones(requests, dtype=torch.int32, device="cuda"), 1, requests, 1)

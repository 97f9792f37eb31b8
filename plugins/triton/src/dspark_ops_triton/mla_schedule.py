"""Portable ``mla_sched_meta``: the work records of the split-KV decode attention in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Four warps: each runs the walk over the requests by itself, and two lanes of each hold the records of 256 parts.
WARPS = 4


@triton.jit
def request_length(lengths, extra_lengths, request, extra_topk, block_size, SPARSE: tl.constexpr, EXTRA: tl.constexpr):
    """Return the entries of requests as the walk counts them; EXTRA: 0 no second cache, 1 its full rows, 2 as given."""
    length = tl.load(lengths + request)
    if SPARSE:
        length = tl.maximum(length, 1)
    if EXTRA:
        length = tl.cdiv(length, block_size) * block_size
        length += extra_topk if EXTRA == 1 else tl.load(extra_lengths + request)
    return length


@triton.jit
def block_count(length, block_size):
    """Return the blocks of requests in the walk: an empty one has one, too."""
    return tl.maximum(length - 1, 0) // block_size + 1


@triton.jit
def divide_up(value, divisor, inverse):
    """Return ``ceil(value / divisor)`` of an int32 `value` of 0 or more, and by how much its product exceeds `value`.

    `inverse` is (2**32 - 1) // divisor: the quotient by it is at most one too small. A division would be slow, and this
    stands on the walk's critical path.
    """
    quotient = tl.umulhi(value.to(tl.uint32), inverse).to(tl.int32)
    excess = quotient * divisor - value
    for _ in tl.static_range(2):
        short = excess < 0
        quotient = tl.where(short, quotient + 1, quotient)
        excess = tl.where(short, excess + divisor, excess)
    return quotient, excess


@triton.jit(
    do_not_specialize=["requests", "parts", "extra_topk", "overhead", "block_size"],
    do_not_specialize_on_alignment=["lengths", "extra_lengths", "meta", "num_splits"],
)
def schedule_kernel(
    lengths, extra_lengths, meta, num_splits, requests, parts, extra_topk, overhead, block_size,
    REQUESTS: tl.constexpr, PARTS: tl.constexpr, SPARSE: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    """Walk over the requests, filling the records of all parts that begin in one at once, then write them.

    Parts that begin in a request do so `share` blocks apart, so that their number and what the last one has left for
    the requests behind follow from one remainder. REQUESTS and PARTS are powers of two, at least the counts.
    """
    lane = tl.arange(0, REQUESTS)
    live = lane < requests
    known = tl.minimum(lane, requests - 1)
    length = request_length(lengths, extra_lengths, known, extra_topk, block_size, SPARSE, EXTRA)
    cost = tl.where(live, block_count(length, block_size) + overhead, 0)
    share = tl.maximum(tl.cdiv(tl.sum(cost, axis=0), parts), 1)  # without the overhead that every part has on top
    inverse = (tl.full((), 0xFFFFFFFF, tl.int64) // share).to(tl.uint32)

    part = tl.arange(0, PARTS)
    begin_request = tl.full((PARTS,), 0, tl.int32) + requests
    begin_block = tl.zeros((PARTS,), tl.int32)
    splits_before = tl.zeros((PARTS,), tl.int32)
    end_request = begin_request
    end_block = begin_block
    first = 0  # the next part that begins
    splits = 0
    left = 0  # blocks that the part before has left for this request, its overhead included
    next_length = request_length(lengths, extra_lengths, 0, extra_topk, block_size, SPARSE, EXTRA)
    for request in range(requests):
        here = block_count(next_length, block_size) + overhead
        # Loaded ahead of the store below, which would hold it back.
        ahead = tl.minimum(request + 1, requests - 1)
        next_length = request_length(lengths, extra_lengths, ahead, extra_topk, block_size, SPARSE, EXTRA)
        begins = left < here
        block = tl.maximum(left - overhead, 0)
        beyond = here - overhead - share - block  # blocks behind the reach of the first part that begins here
        more, excess = divide_up(tl.maximum(beyond, 0), share, inverse)
        left_behind = tl.where(beyond > 0, excess, -beyond)
        count = tl.where(begins, more + 1, 0)
        split = tl.where(block > 0, 1, 0)
        index = part - first
        inside = (index >= 0) & (index < count)
        begin_request = tl.where(inside, request, begin_request)
        begin_block = tl.where(inside, block + index * share, begin_block)
        splits_before = tl.where(inside, split + index, splits_before)
        inside = (index >= -1) & (index < count - 1)
        end_request = tl.where(inside, request, end_request)
        end_block = tl.where(inside, block + (index + 1) * share, end_block)
        tl.store(num_splits + request, splits)
        splits += tl.where(begins, count + split, 1)
        first += count
        left = tl.where(begins, left_behind, left - here)
    tl.store(num_splits + requests, splits)

    last = end_request - (end_block == 0).to(tl.int32)
    length = request_length(lengths, extra_lengths, last, extra_topk, block_size, SPARSE, EXTRA)
    whole = tl.where(length == 0, 0, block_count(length, block_size))
    end = tl.where(end_block > 0, end_block, whole)
    first_split = begin_block > 0
    last_split = end != whole
    either = (begin_request == last) & (first_split | last_split)
    record = meta + part * 8
    held = part < parts
    tl.store(record, begin_request, mask=held)
    tl.store(record + 1, last, mask=held)
    tl.store(record + 2, begin_block, mask=held)
    tl.store(record + 3, end, mask=held)
    tl.store(record + 4, splits_before, mask=held)
    tl.store(record + 5, (first_split | either).to(tl.int32), mask=held)
    tl.store(record + 6, (last_split | either).to(tl.int32), mask=held)
    tl.store(record + 7, tl.zeros((PARTS,), tl.int32), mask=held)


def mla_sched_meta(
    lengths: Tensor,
    meta: Tensor,
    num_splits: Tensor,
    extra_lengths: Tensor | None = None,
    extra_topk: int = 0,
    form: str = "sparse",
    overhead: int = 5,
    block_size: int = 64,
) -> None:
    """Write one work record per part and the running number of splits, for attention over paged KV in P parts.

    Args:
        lengths: [B] int32, entries of each request; blocks and overheads of all requests together stay below 2**30.
        meta: [P, 8] int32, contiguous, written whole.
        num_splits: [B + 1] int32, written.
        extra_lengths: [B] int32, entries of the second cache, or None: `extra_topk` for every request.
        extra_topk: columns of the second cache's index row; 0 means that there is none.
        form: ``sparse`` counts a length of 0 as 1; ``dense`` keeps it.
        overhead: cost of one more request or split of a part, in blocks.
        block_size: entries of a block.

    Raises:
        ValueError: no request, no part, sizes that do not fit each other, an unknown form, a second cache of a dense
            one, or extra lengths without a second cache. Nothing is launched then.

    Bytes moved: 32 per part, 12 per request. Launches: 1.

    Source: N4, choice 15 of the index.
    """
    requests, parts = lengths.shape[0], meta.shape[0]
    if (
        form not in ("sparse", "dense")
        or (form == "dense" and extra_topk)
        or (extra_lengths is not None and not extra_topk)
    ):
        given = None if extra_lengths is None else "given"
        got = f"form {form!r}, extra_topk {extra_topk}, extra_lengths {given}"
        raise ValueError(f"mla_sched_meta: wanted form sparse, or dense without a second cache, got {got}")
    if requests < 1 or parts < 1 or meta.shape[1] != 8 or num_splits.shape[0] != requests + 1:
        got = f"{list(lengths.shape)}, {list(meta.shape)}, {list(num_splits.shape)}"
        raise ValueError(f"mla_sched_meta: wanted lengths [B], meta [P, 8] and num_splits [B + 1], got {got}")
    extra = 0 if not extra_topk else 1 if extra_lengths is None else 2
    schedule_kernel[(1,)](
        lengths, lengths if extra_lengths is None else extra_lengths, meta, num_splits,
        requests, parts, extra_topk, overhead, block_size,
        **launch_constants(requests, parts, form, extra), **launch_options(),
    )  # fmt: skip


def launch_constants(requests: int, parts: int, form: str, extra: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "REQUESTS": max(64, triton.next_power_of_2(requests)), "PARTS": max(128, triton.next_power_of_2(parts)),
        "SPARSE": form == "sparse", "EXTRA": extra,
    }  # fmt: skip


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": WARPS, "enable_fp_fusion": False}


def prepare_mla_sched_meta(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `mla_sched_meta`, compiled for the planned requests and for as many parts as the device has units.

    Other numbers of parts are compiled at their first call, which must not be in a graph: call it once before.
    """
    if device.arch.vendor != "cpu":
        units = device.units or torch.cuda.get_device_properties("cuda").multi_processor_count
        sizes = {triton.next_power_of_2(max(parts, 128)) for parts in (units, units // 2)}
        for requests in sorted({max(64, triton.next_power_of_2(count)) for count in rows if count}):
            lengths = torch.ones(requests, dtype=torch.int32, device="cuda")
            num_splits = torch.empty(requests + 1, dtype=torch.int32, device="cuda")
            for parts in sizes:
                meta = torch.empty(parts, 8, dtype=torch.int32, device="cuda")
                mla_sched_meta(lengths, meta, num_splits)
                if site.options.get("extra_topk"):
                    for extra in (None, lengths):
                        mla_sched_meta(lengths, meta, num_splits, extra, site.options["extra_topk"])
    return mla_sched_meta

"""The schedule of the split-KV decode attention: a walk over the requests, and everything else side by side (N4)."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from dspark_ops_triton.blocks.dependent import pdl_option
from dspark_ops_triton.blocks.dependent_stages import begin_at

#: Each warp runs the walk over the requests by itself; a thread holds two of 256 parts, and at most eight requests.
WARPS, MANY_WARPS, MANY = 4, 16, 512
#: Up to so many requests, each part compares itself with all of them; it searches among more.
COMPARED = tl.constexpr(64)
#: Binary logarithm of the most requests.
LIMIT_BITS = tl.constexpr(12)


@triton.jit
def request_length(
    lengths, extra_lengths, request, extra_topk, SPARSE: tl.constexpr, EXTRA: tl.constexpr, SIZE: tl.constexpr
):
    """Return the entries of requests as the walk counts them; EXTRA: 0 no second cache, 1 its full rows, 2 as given."""
    length = tl.load(lengths + request)
    if SPARSE:
        length = tl.maximum(length, 1)
    if EXTRA:
        length = (length + (SIZE - 1)) // SIZE * SIZE
        length += extra_topk if EXTRA == 1 else tl.load(extra_lengths + request)
    return length


@triton.jit
def block_count(length, SIZE: tl.constexpr):
    """Return the blocks of requests in the walk: an empty one has one, too."""
    return tl.maximum(length - 1, 0) // SIZE + 1


@triton.jit
def remainder(value, divisor, inverse):
    """Return ``value % divisor`` of int32 of 0 or more; `inverse` is (2**32 - 1) // divisor.

    The quotient by the inverse is at most one too small.
    """
    rest = value - tl.umulhi(value.to(tl.uint32), inverse).to(tl.int32) * divisor
    return tl.where(rest >= divisor, rest - divisor, rest)


@triton.jit
def request_of_part(ends, part, REQUESTS: tl.constexpr):
    """Return for each part how many requests have all their parts before it: the request in which it begins.

    `ends` [REQUESTS] counts, in order, the parts that begin in a request or before it.
    """
    if REQUESTS <= COMPARED:
        found = tl.sum((ends[:, None] <= part[None, :]).to(tl.int32), axis=0)
    else:
        found = tl.zeros(part.shape, tl.int32)
        for bit in tl.static_range(1, LIMIT_BITS + 1):
            if REQUESTS >> bit > 0:
                found += tl.where(tl.gather(ends, found + ((REQUESTS >> bit) - 1), 0) <= part, REQUESTS >> bit, 0)
        found += (tl.gather(ends, found, 0) <= part).to(tl.int32)
    return found


@triton.jit
def row_of_eight(w0, w1, w2, w3, w4, w5, w6, w7, COUNT: tl.constexpr):
    """Return [COUNT, 8] with the given columns; the eight stay in one thread, which stores them together."""
    even = tl.join(tl.join(w0, w4), tl.join(w2, w6))
    odd = tl.join(tl.join(w1, w5), tl.join(w3, w7))
    return tl.reshape(tl.join(even, odd), (COUNT, 8))


@triton.jit(
    do_not_specialize=["requests", "parts", "extra_topk", "overhead"],
    do_not_specialize_on_alignment=["lengths", "extra_lengths", "num_splits"],
)
def schedule_kernel(
    lengths, extra_lengths, meta, num_splits, requests, parts, extra_topk, overhead,
    REQUESTS: tl.constexpr, PARTS: tl.constexpr, SPARSE: tl.constexpr, EXTRA: tl.constexpr, SIZE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Write the records of all parts and the running number of splits; REQUESTS and PARTS are powers of two."""
    begin_at((lengths, meta, num_splits, requests, parts, overhead), PDL)
    write_schedule(
        lengths, extra_lengths, meta, num_splits, requests, parts, extra_topk, overhead,
        REQUESTS, PARTS, SPARSE, EXTRA, SIZE,
    )  # fmt: skip


@triton.jit
def write_schedule(
    lengths, extra_lengths, meta, num_splits, requests, parts, extra_topk, overhead,
    REQUESTS: tl.constexpr, PARTS: tl.constexpr, SPARSE: tl.constexpr, EXTRA: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Do the work of `schedule_kernel` in one program.

    A part takes `share` blocks, its overhead aside, so the parts that begin in a request do so `share` blocks apart.
    All that the walk has to carry from a request to the next is how many blocks the last part has left for it: with
    the blocks of the request, that says where its first part begins, and by division how many do.
    """
    lane = tl.arange(0, REQUESTS)
    live = lane < requests
    known = tl.minimum(lane, requests - 1)
    length = request_length(lengths, extra_lengths, known, extra_topk, SPARSE, EXTRA, SIZE)
    blocks = block_count(length, SIZE)
    cost = tl.sum(tl.where(live, blocks + overhead, 0), axis=0)
    share = tl.maximum((cost + parts - 1) // parts, 1)
    inverse = tl.full((), 0xFFFFFFFF, tl.uint32) // share.to(tl.uint32)

    left = 0  # blocks that the part before has left for this request, its overhead included; below `share`
    lefts = tl.zeros((REQUESTS,), tl.int32)
    for request in tl.range(0, requests, loop_unroll_factor=8):
        lefts = tl.where(lane == request, left, lefts)
        here = block_count(request_length(lengths, extra_lengths, request, extra_topk, SPARSE, EXTRA, SIZE), SIZE)
        after = tl.maximum(left - overhead, 0) - remainder(here, share, inverse)
        after = tl.where(after < 0, after + share, after)
        beyond = left - (here + overhead)
        left = tl.where(beyond >= 0, beyond, after)

    begins = live & (lefts < blocks + overhead)
    block = tl.maximum(lefts - overhead, 0)
    count = tl.where(begins, (blocks - block + share - 1) // share, 0)
    splits = tl.where(begins, count + (block > 0).to(tl.int32), live.to(tl.int32))
    tl.store(num_splits + lane + 1, tl.cumsum(splits, 0), mask=live)
    tl.store(num_splits, 0)
    end_part = tl.cumsum(count, 0)

    part = tl.arange(0, PARTS)
    ends = tl.where(live, end_part, 0x7FFFFFFF)
    first = request_of_part(ends, part, REQUESTS)
    next_first = tl.gather(first, tl.minimum(part + 1, PARTS - 1), 0)
    next_first = tl.where(part + 1 < parts, next_first, requests)
    here, there = tl.minimum(first, requests - 1), tl.minimum(next_first, requests - 1)
    idle, last_one = first >= requests, next_first >= requests
    own = tl.gather(block, here, 0)
    index = part - tl.gather(end_part - count, here, 0)
    begin_block = tl.where(idle, 0, own + index * share)
    before = tl.where(idle, 0, (own > 0).to(tl.int32) + index)
    # A part ends where the next one begins; an idle one begins behind all requests.
    end_block = tl.where(next_first == first, begin_block + share, tl.gather(block, there, 0))
    end_block = tl.where(last_one, 0, end_block)
    last = next_first - (end_block == 0).to(tl.int32)
    whole = tl.gather(tl.where(length == 0, 0, blocks), last, 0)
    end = tl.where(end_block > 0, end_block, whole)
    first_split = begin_block > 0
    last_split = end != whole
    either = (first == last) & (first_split | last_split)
    record = row_of_eight(
        first, last, begin_block, end, before, (first_split | either).to(tl.int32), (last_split | either).to(tl.int32),
        tl.zeros((PARTS,), tl.int32), PARTS,
    )  # fmt: skip
    place = meta + part[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(place, record, mask=(part < parts)[:, None])


def schedule_constants(
    requests: int, parts: int, form: str, extra: int, block_size: int, pdl: bool = False
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {**walk_constants(requests, parts, form, extra, block_size), "PDL": pdl}


def walk_constants(requests: int, parts: int, form: str, extra: int, block_size: int) -> dict[str, Any]:
    """Return the compile-time arguments of `write_schedule`."""
    return {
        "REQUESTS": lanes_of(requests), "PARTS": records_of(parts),
        "SPARSE": form == "sparse", "EXTRA": extra, "SIZE": block_size,
    }  # fmt: skip


def lanes_of(requests: int) -> int:
    """Return for how many requests a kernel is built that serves `requests`."""
    return next(size for size in (8, 64, triton.next_power_of_2(requests)) if size >= requests)


def records_of(parts: int) -> int:
    """Return for how many records a kernel is built that writes `parts`."""
    return max(128, triton.next_power_of_2(parts))


def schedule_options(requests: int, pdl: bool = False) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    warps = WARPS if requests <= MANY else MANY_WARPS
    return {"num_warps": warps, "enable_fp_fusion": False, **pdl_option(pdl)}

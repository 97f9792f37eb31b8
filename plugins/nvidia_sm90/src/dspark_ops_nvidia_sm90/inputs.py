"""What FlashMLA's kernel needs of a call that has other sizes than its own, and its schedule, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.mla_walk import write_schedule

#: Heads of FlashMLA's kernel, and lanes of a head.
HEADS, LANES = tl.constexpr(64), tl.constexpr(512)


@triton.jit
def copy_indices(indices, target, row, row_stride, width, slots, PADDED: tl.constexpr):
    """Copy a row of slots, with -1 in place of those that are none and behind the last one."""
    for first in tl.static_range(0, PADDED, 128):
        column = first + tl.arange(0, 128)
        slot = tl.load(indices + row * row_stride + column, mask=column < width, other=-1)
        tl.store(target + row * PADDED + column, tl.where((slot >= 0) & (slot < slots), slot, -1))


@triton.jit(
    do_not_specialize=[
        "requests", "parts", "extra_topk", "heads", "index_row", "extra_index_row", "width", "extra_width", "slots",
        "extra_slots",
    ],
    do_not_specialize_on_alignment=["lengths", "extra_lengths", "indices", "extra_indices", "sink", "num_splits"],
)  # fmt: skip
def inputs_kernel(
    q, indices, lengths, sink, extra_indices, extra_lengths,
    padded_q, padded_indices, padded_sink, padded_extra, meta, num_splits,
    requests, parts, extra_topk, heads, index_row, extra_index_row, width, extra_width, slots, extra_slots,
    REQUESTS: tl.constexpr, PARTS: tl.constexpr, SPARSE: tl.constexpr, EXTRA: tl.constexpr, SIZE: tl.constexpr,
    COLUMNS: tl.constexpr, EXTRA_COLUMNS: tl.constexpr, PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the schedule in the last program, and the padded copies of one row in each other.

    With PAD, the queries are copied into rows of 64 heads, of which those behind `heads` stay as they are, and the sink
    is padded with 0.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    if row == requests:
        write_schedule(
            lengths, extra_lengths, meta, num_splits, requests, parts, extra_topk, 5,
            REQUESTS, PARTS, SPARSE, EXTRA, SIZE,
        )  # fmt: skip
        if PAD and sink is not None:
            head = tl.arange(0, HEADS)
            tl.store(padded_sink + head, tl.load(sink + head, mask=head < heads, other=0.0))
    else:
        copy_indices(indices, padded_indices, row, index_row, width, slots, COLUMNS)
        if EXTRA:
            copy_indices(extra_indices, padded_extra, row, extra_index_row, extra_width, extra_slots, EXTRA_COLUMNS)
        if PAD:
            lane = tl.arange(0, 16)[:, None] * LANES + tl.arange(0, LANES)[None, :]
            for first in range(0, heads, 16):
                mask = (first + tl.arange(0, 16) < heads)[:, None]
                value = tl.load(q + (row * heads + first) * LANES + lane, mask=mask, other=0.0)
                tl.store(padded_q + (row * HEADS + first) * LANES + lane, value, mask=mask)

"""What FlashMLA's kernel needs of a call that has other sizes than its own, and its schedule, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.mla_walk import write_schedule

#: Heads of FlashMLA's kernel, and lanes of a head.
HEADS, LANES = tl.constexpr(64), tl.constexpr(512)


@triton.jit
def known_slots(indices, row, column, row_stride, width, slots):
    """Return a row's slots at some columns, with -1 in place of those that are none and behind the last column."""
    slot = tl.load(indices + row * row_stride + column, mask=column < width, other=-1)
    return tl.where((slot >= 0) & (slot < slots), slot, -1)


@triton.jit
def pad_sink(sink, padded_sink, heads):
    """Copy the sink, where there is one, with 0 behind it."""
    if sink is not None:
        head = tl.arange(0, HEADS)
        tl.store(padded_sink + head, tl.load(sink + head, mask=head < heads, other=0.0))


@triton.jit
def padded_heads(q, sink, padded_q, padded_sink, heads, row, tile):
    """Copy the queries of a row into one of 64 heads in its first program, and in that of row 0 the sink."""
    if tile == 0:
        lane = tl.arange(0, 16)[:, None] * LANES + tl.arange(0, LANES)[None, :]
        for first in range(0, heads, 16):
            mask = (first + tl.arange(0, 16) < heads)[:, None]
            value = tl.load(q + (row * heads + first) * LANES + lane, mask=mask, other=0.0)
            tl.store(padded_q + (row * HEADS + first) * LANES + lane, value, mask=mask)
        if row == 0:
            pad_sink(sink, padded_sink, heads)


@triton.jit
def padded_row(
    q, indices, sink, extra_indices, padded_q, padded_indices, padded_sink, padded_extra,
    heads, index_row, extra_index_row, width, extra_width, slots, extra_slots,
    EXTRA: tl.constexpr, COLUMNS: tl.constexpr, EXTRA_COLUMNS: tl.constexpr, TILE: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Write a tile of the slots of one row, and with PAD its queries and the sink.

    Both caches' slots are loaded before those of either are stored.
    """
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tile * TILE + tl.arange(0, TILE)
    slot = known_slots(indices, row, column, index_row, width, slots)
    if EXTRA:
        more = known_slots(extra_indices, row, column, extra_index_row, extra_width, extra_slots)
        tl.store(padded_extra + row * EXTRA_COLUMNS + column, more, mask=column < EXTRA_COLUMNS)
    tl.store(padded_indices + row * COLUMNS + column, slot, mask=column < COLUMNS)
    if PAD:
        padded_heads(q, sink, padded_q, padded_sink, heads, row, tile)


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
    COLUMNS: tl.constexpr, EXTRA_COLUMNS: tl.constexpr, TILE: tl.constexpr, PAD: tl.constexpr, SCHEDULE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Write the padded copies of a row, and with SCHEDULE in a program behind those of all rows the schedule.

    With PAD, the queries are copied into rows of 64 heads, of which those behind `heads` stay as they are, and the sink
    is padded with 0. The second dimension of the grid has a program for each TILE columns of the wider row.
    """
    begin(PDL)
    if SCHEDULE:
        if tl.program_id(0) < requests:
            padded_row(
                q, indices, sink, extra_indices, padded_q, padded_indices, padded_sink, padded_extra,
                heads, index_row, extra_index_row, width, extra_width, slots, extra_slots,
                EXTRA, COLUMNS, EXTRA_COLUMNS, TILE, PAD,
            )  # fmt: skip
        elif tl.program_id(1) == 0:
            write_schedule(
                lengths, extra_lengths, meta, num_splits, requests, parts, extra_topk, 5,
                REQUESTS, PARTS, SPARSE, EXTRA, SIZE,
            )  # fmt: skip
    else:
        padded_row(
            q, indices, sink, extra_indices, padded_q, padded_indices, padded_sink, padded_extra,
            heads, index_row, extra_index_row, width, extra_width, slots, extra_slots,
            EXTRA, COLUMNS, EXTRA_COLUMNS, TILE, PAD,
        )  # fmt: skip

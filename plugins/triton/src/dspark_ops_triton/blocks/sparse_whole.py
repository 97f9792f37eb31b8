"""A part of sparse latent attention on NVIDIA GPUs: its entries are decoded once, and both products read them.

Entries come as one block of all lanes: their codes are under way together, and matrix units read the decoded block from
shared memory after a single barrier. AMD GPUs, whose registers that does not suit, take groups of lanes one by one
(`sparse_decode.part_kernel`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from dspark_ops_triton.blocks.codes import e2m1_value, e4m3_value, power_of_two
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.kv_v4 import GROUP, LANES, PLAIN, locate
from dspark_ops_triton.blocks.kv_v41 import locate_v41
from dspark_ops_triton.blocks.rotary import join_pairs
from dspark_ops_triton.blocks.sparse_attention import NOTHING, softmax_part


@triton.jit
def load_whole_entries(cache, slot, valid, page_shift, page_units, LAYOUT: tl.constexpr):
    """Return the entries at int64 slots [ENTRIES] as (values [ENTRIES, 512], rotated lanes); 0 where not `valid`.

    In ``kv_v4`` the last 64 lanes are stored as bfloat16 and come apart, [ENTRIES, 64]: the values hold 0 there. Other
    layouts have all lanes in the values, which then stand in both places. `page_units` counts what the layout's pages
    are made of: 576 bytes for ``kv_v4``, else 16.
    """
    slot = tl.where(valid, slot, 0)
    if LAYOUT == "kv_v4":
        data, scales = locate(cache, slot, page_shift, page_units)
        lanes = (data + PLAIN).to(tl.pointer_type(tl.bfloat16))[:, None] + tl.arange(0, GROUP)[None, :]
        codes, scale = load_codes(data, scales, valid, PLAIN, GROUP)
        rotated = tl.load(lanes, mask=valid[:, None], other=0.0)
        values = decode_e4m3(codes, scale, GROUP)
    elif LAYOUT == "kv_v41" or LAYOUT == "kv_v41_new":
        data, scales = locate_v41(cache, slot, page_shift, page_units, 512, 16, LAYOUT == "kv_v41_new")
        codes, scale = load_codes(data, scales, valid, LANES, 32)
        values = decode_e4m3(codes, scale, 32)
        rotated = values
    else:
        data, scales = locate_v41(cache, slot, page_shift, page_units, 256, 32, LAYOUT == "kv_v41_fp4_new")
        values = decode_e2m1(data, scales, valid)
        rotated = values
    return values, rotated


@triton.jit
def load_codes(data, scales, valid, PRESENT: tl.constexpr, SHARED: tl.constexpr):
    """Return codes [ENTRIES, 512] of which the first PRESENT lanes are stored, and a scale per SHARED lanes."""
    lane, group = tl.arange(0, LANES)[None, :], tl.arange(0, LANES // SHARED)[None, :]
    here, known = valid[:, None] & (lane < PRESENT), valid[:, None] & (group < PRESENT // SHARED)
    codes = tl.load(data[:, None] + lane, mask=here, other=0)
    byte = tl.load(scales[:, None] + group, mask=known, other=127)
    return codes, power_of_two(byte.to(tl.int32))


@triton.jit
def decode_e4m3(codes, scale, SHARED: tl.constexpr):
    """Return the bfloat16 values of codes [ENTRIES, 512] with a power-of-two scale per SHARED lanes.

    bfloat16 holds them exactly: they have four significant bits.
    """
    ENTRIES: tl.constexpr = codes.shape[0]
    value = tl.reshape(e4m3_value(codes), (ENTRIES, LANES // SHARED, SHARED)) * scale[:, :, None]
    return tl.reshape(value.to(tl.bfloat16), (ENTRIES, LANES))


@triton.jit
def decode_e2m1(data, scales, valid):
    """Return the bfloat16 values [ENTRIES, 512] of pairs of e2m1 codes with an e4m3 scale per 16 lanes.

    A product of a code and its scale has six significant bits at most.
    """
    ENTRIES: tl.constexpr = valid.shape[0]
    both = tl.load(data[:, None] + tl.arange(0, LANES // 2)[None, :], mask=valid[:, None], other=0).to(tl.int32)
    code = tl.load(scales[:, None] + tl.arange(0, LANES // 16)[None, :], mask=valid[:, None], other=0)
    scale = e4m3_value(code)[:, :, None]
    even = tl.reshape(e2m1_value(both & 15), (ENTRIES, LANES // 16, 8)) * scale
    odd = tl.reshape(e2m1_value(both >> 4), (ENTRIES, LANES // 16, 8)) * scale
    even = tl.reshape(even.to(tl.bfloat16), (ENTRIES, LANES // 2))
    return join_pairs(even, tl.reshape(odd.to(tl.bfloat16), (ENTRIES, LANES // 2)), ENTRIES, LANES)


@triton.jit(
    do_not_specialize=[
        "heads", "width", "extra_width", "index_row", "extra_index_row", "slots", "extra_slots",
        "page_shift", "page_units", "extra_page_shift", "extra_page_units", "window_parts",
        "has_lengths", "has_extra_lengths",
    ],
    do_not_specialize_on_alignment=["indices", "lengths", "extra_indices", "extra_lengths"],
)  # fmt: skip
def whole_part_kernel(
    q, cache, indices, lengths, extra_cache, extra_indices, extra_lengths, sums, statistics,
    heads, width, extra_width, index_row, extra_index_row, slots, extra_slots,
    page_shift, page_units, extra_page_shift, extra_page_units, window_parts,
    has_lengths, has_extra_lengths, scale,
    HEADS: tl.constexpr, ENTRIES: tl.constexpr, LAYOUT: tl.constexpr, EXTRA: tl.constexpr,
    PINNED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend to ENTRIES columns of one row for HEADS heads: weighted sum, largest score and total of the weights.

    The first `window_parts` parts are of the window, whose cache has the page layout LAYOUT, the others of the extra
    cache, whose layout is EXTRA. `scale` includes log2(e). PINNED: the decoded entries pass an instruction that the
    compiler may not repeat, or it would decode them for each of the two products.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    index = tl.program_id(2)
    column = index * ENTRIES + tl.arange(0, ENTRIES)
    end, limit, slot_of, given, has = width, slots, indices + row * index_row, lengths, has_lengths
    if index >= window_parts:
        column -= window_parts * ENTRIES
        end, limit, slot_of = extra_width, extra_slots, extra_indices + row * extra_index_row
        given, has = extra_lengths, has_extra_lengths
        if EXTRA == LAYOUT:
            cache, page_shift, page_units = extra_cache, extra_page_shift, extra_page_units
    # Slots do not wait for the length: both are loaded at once.
    count = tl.load(given + row, mask=has != 0, other=0x7FFFFFFF)
    slot = tl.load(slot_of + column, mask=column < end, other=-1).to(tl.int64)
    valid = (slot >= 0) & (slot < limit) & (column < count)
    live = head < heads
    part = (row * heads + head) * tl.num_programs(2) + index
    if tl.max(valid.to(tl.int32), axis=0) == 0:
        tl.store(statistics + 2 * part, NOTHING, mask=live)
        tl.store(statistics + 2 * part + 1, 0.0, mask=live)
    else:
        lane, last = tl.arange(0, LANES)[None, :], PLAIN + tl.arange(0, GROUP)[None, :]
        # In kv_v4 the rotated lanes are a block of their own.
        APART: tl.constexpr = LAYOUT == "kv_v4"
        mask = live[:, None]
        start = (row * heads + head[:, None]) * LANES
        query = tl.load(q + start + lane, mask=mask, other=0.0)
        if EXTRA == LAYOUT:  # noqa: SIM114 -- known when the kernel is built, unlike the next one
            values, rotated = load_whole_entries(cache, slot, valid, page_shift, page_units, LAYOUT)
        elif index < window_parts:
            values, rotated = load_whole_entries(cache, slot, valid, page_shift, page_units, LAYOUT)
        else:
            values, rotated = load_whole_entries(extra_cache, slot, valid, extra_page_shift, extra_page_units, EXTRA)
        if PINNED:
            values = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [values], dtype=tl.bfloat16, is_pure=False, pack=2
            )
        scores = tl.dot(query, tl.trans(values))
        if APART:
            query = tl.load(q + start + last, mask=live[:, None], other=0.0)
            scores = tl.dot(query, tl.trans(rotated), scores)
        weights, largest, total = softmax_part(scores * scale, valid)
        tl.store(statistics + 2 * part, largest, mask=live)
        tl.store(statistics + 2 * part + 1, total, mask=live)
        weights = weights.to(tl.bfloat16)
        mask = live[:, None] & (lane < (PLAIN if APART else LANES))
        tl.store(sums + part[:, None] * LANES + lane, tl.dot(weights, values), mask=mask)
        if APART:
            tl.store(sums + part[:, None] * LANES + last, tl.dot(weights, rotated), mask=live[:, None])


__all__ = ["load_whole_entries", "whole_part_kernel"]

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
from dspark_ops_triton.blocks.kv_v4 import DATA_BYTES, GROUP, LANES, PLAIN, SCALE_BYTES
from dspark_ops_triton.blocks.kv_v41 import locate_v41
from dspark_ops_triton.blocks.rotary import join_pairs
from dspark_ops_triton.blocks.sparse_attention import NOTHING, softmax_part


@triton.jit
def load_whole_entries(cache, slot, valid, page_shift, page_units, LAYOUT: tl.constexpr, PINNED: tl.constexpr):
    """Return the entries at int32 slots [ENTRIES] as (values [ENTRIES, 512], rotated lanes); 0 where not `valid`.

    In ``kv_v4`` the last 64 lanes are stored as bfloat16 and come apart, [ENTRIES, 64]: the values hold 0 there. Other
    layouts have all lanes in the values, which then stand in both places. `page_units` counts what the layout's pages
    are made of: 576 bytes for ``kv_v4``, else 16. PINNED: as in `whole_part_kernel`.
    """
    slot = tl.where(valid, slot, 0)
    if LAYOUT == "kv_v4":
        data, scales = locate_near(cache, slot, page_shift, page_units)
        lanes = (data + PLAIN).to(tl.pointer_type(tl.bfloat16))[:, None] + tl.arange(0, GROUP)[None, :]
        rotated = tl.load(lanes, mask=valid[:, None], other=0.0)
        codes, byte = load_codes(data, scales, valid, PLAIN, GROUP)
        values = decode_e4m3(codes, byte, GROUP, PINNED)
        if PINNED:
            rotated = pinned(rotated)
    elif LAYOUT == "kv_v41" or LAYOUT == "kv_v41_new":
        data, scales = locate_v41(cache, slot.to(tl.int64), page_shift, page_units, 512, 16, LAYOUT == "kv_v41_new")
        codes, byte = load_codes(data, scales, valid, LANES, 32)
        values = decode_e4m3(codes, byte, 32, PINNED)
        rotated = values
    else:
        interleaved: tl.constexpr = LAYOUT == "kv_v41_fp4_new"
        data, scales = locate_v41(cache, slot.to(tl.int64), page_shift, page_units, 256, 32, interleaved)
        values = decode_e2m1(data, scales, valid)
        if PINNED:
            values = pinned(values)
        rotated = values
    return values, rotated


@triton.jit
def locate_near(cache, slot, page_shift, page_units):
    """Return what `kv_v4.locate` does, pointers to the data row and the scale row of a slot, for int32 slots.

    A cache of 2**31 units would be more than a terabyte. Every thread locates 12 rows of entries and of scales, between
    the load of a slot and that of its entry, where arithmetic of 64 bits is waited for.
    """
    inside = slot & ((1 << page_shift) - 1)
    data = cache + ((slot >> page_shift) * page_units + inside).to(tl.int64) * DATA_BYTES
    rest = (tl.full([], DATA_BYTES, tl.int64) << page_shift) - inside.to(tl.int64) * (DATA_BYTES - SCALE_BYTES)
    return data, data + rest


@triton.jit
def load_codes(data, scales, valid, PRESENT: tl.constexpr, SHARED: tl.constexpr):
    """Return codes [ENTRIES, 512] of which the first PRESENT lanes are stored, and a scale byte per SHARED lanes."""
    lane, group = tl.arange(0, LANES)[None, :], tl.arange(0, LANES // SHARED)[None, :]
    here, known = valid[:, None] & (lane < PRESENT), valid[:, None] & (group < PRESENT // SHARED)
    codes = tl.load(data[:, None] + lane, mask=here, other=0)
    return codes, tl.load(scales[:, None] + group, mask=known, other=127)


@triton.jit
def decode_e4m3(codes, byte, SHARED: tl.constexpr, PINNED: tl.constexpr):
    """Return the bfloat16 values of codes [ENTRIES, 512] with a power-of-two scale per SHARED lanes.

    bfloat16 holds them exactly, and codes without their scales too: they have four significant bits. PINNED: two lanes
    are scaled at a time, by an instruction that the compiler may not repeat.
    """
    ENTRIES: tl.constexpr = codes.shape[0]
    value = tl.reshape(e4m3_value(codes), (ENTRIES, LANES // SHARED, SHARED))
    if PINNED:
        scale = (byte.to(tl.int16) << 7).to(tl.bfloat16, bitcast=True)[:, :, None]
        value = scaled_pairs(value.to(tl.bfloat16), tl.broadcast_to(scale, value.shape))
    else:
        value = (value * power_of_two(byte.to(tl.int32))[:, :, None]).to(tl.bfloat16)
    return tl.reshape(value, (ENTRIES, LANES))


@triton.jit
def scaled_pairs(value, scale):
    """Return products of bfloat16 blocks, rounded once; the compiler may not compute them twice."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 zero; mov.b32 zero, 0x80008000; fma.rn.bf16x2 $0, $1, $2, zero; }", "=r,r,r", [value, scale],
        dtype=tl.bfloat16, is_pure=False, pack=2,
    )  # fmt: skip


@triton.jit
def pinned(value):
    """Return a bfloat16 block as it is, by an instruction that the compiler may not repeat or move."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], dtype=tl.bfloat16, is_pure=False, pack=2)


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
    compiler may not repeat, or it would decode them for each of the two products; the queries one that keeps them in
    registers until then, or it would hold what the first product reads of them in 128 registers before that.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    inner = tl.arange(0, HEADS)
    index, parts = tl.program_id(2), tl.num_programs(2)
    first = index * ENTRIES
    end, limit, slot_of, given, has = width, slots, indices + row * index_row, lengths, has_lengths
    if index >= window_parts:
        first -= window_parts * ENTRIES
        end, limit, slot_of = extra_width, extra_slots, extra_indices + row * extra_index_row
        given, has = extra_lengths, has_extra_lengths
        if EXTRA == LAYOUT:
            cache, page_shift, page_units = extra_cache, extra_page_shift, extra_page_units
    column = first + tl.arange(0, ENTRIES)
    # In kv_v4 the rotated lanes are a block of their own.
    APART: tl.constexpr = LAYOUT == "kv_v4"
    lane, last = tl.arange(0, LANES)[None, :], PLAIN + tl.arange(0, GROUP)[None, :]
    place = row * heads + tl.program_id(1) * HEADS
    live = tl.program_id(1) * HEADS + inner < heads
    # Slots do not wait for the length, nor queries for slots: all are loaded at once.
    count = tl.load(given + row, mask=has != 0, other=0x7FFFFFFF)
    slot = tl.load(slot_of + column, mask=column < end, other=-1)
    queries = q + place * LANES + inner[:, None] * LANES
    query = tl.load(queries + lane, mask=live[:, None], other=0.0)
    if APART:
        rotated_query = tl.load(queries + last, mask=live[:, None], other=0.0)
    valid = (slot >= 0) & (slot < limit) & (column < count)
    statistics += 2 * (place * parts + index)
    if first >= count:
        tl.store(statistics + 2 * parts * inner, NOTHING, mask=live)
        tl.store(statistics + 2 * parts * inner + 1, 0.0, mask=live)
    else:
        if EXTRA == LAYOUT:  # noqa: SIM114 -- known when the kernel is built, unlike the next one
            values, rotated = load_whole_entries(cache, slot, valid, page_shift, page_units, LAYOUT, PINNED)
        elif index < window_parts:
            values, rotated = load_whole_entries(cache, slot, valid, page_shift, page_units, LAYOUT, PINNED)
        else:
            values, rotated = load_whole_entries(
                extra_cache, slot, valid, extra_page_shift, extra_page_units, EXTRA, PINNED
            )
        if PINNED:
            query = pinned(query)
            if APART:
                rotated_query = pinned(rotated_query)
        scores = tl.dot(query, tl.trans(values))
        if APART:
            scores = tl.dot(rotated_query, tl.trans(rotated), scores)
        weights, largest, total = softmax_part(scores * scale, valid)
        tl.store(statistics + 2 * parts * inner, largest, mask=live)
        tl.store(statistics + 2 * parts * inner + 1, total, mask=live)
        weights = weights.to(tl.bfloat16)
        target = sums + (place * parts + index) * LANES + inner[:, None] * (parts * LANES)
        mask = live[:, None] & (lane < (PLAIN if APART else LANES))
        tl.store(target + lane, tl.dot(weights, values), mask=mask)
        if APART:
            tl.store(target + last, tl.dot(weights, rotated), mask=live[:, None])


__all__ = ["load_whole_entries", "whole_part_kernel"]

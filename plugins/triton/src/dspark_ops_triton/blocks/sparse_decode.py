"""Sparse latent attention in two launches, with the tile sizes as data: a row's entries in parts, and their merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from dspark_ops_triton.blocks.dependent import begin, pdl_option
from dspark_ops_triton.blocks.kv_v4 import GROUP, LANES
from dspark_ops_triton.blocks.sparse_attention import NOTHING, softmax_part
from dspark_ops_triton.blocks.sparse_entries import load_entries

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work of one row is cut. It does not depend on the number of rows, so a row's bits do not either.

    Attributes:
        heads: heads of a program: the smallest side of a tensor core's tile.
        entries: cache entries of a program.
        warps: warps of a program.
        merged: parts that the second launch reads at a time.
        merge_warps: warps of its programs.
        fnuz: the device converts e4m3fnuz, not e4m3.
        whole: a part's entries are decoded as one block, by `sparse_whole.whole_part_kernel`: NVIDIA only.
        pdl: both kernels are set up while the one before runs: of the first one, `whole` only.
    """

    heads: int
    entries: int
    warps: int
    merged: int
    merge_warps: int
    fnuz: bool = False
    whole: bool = False
    pdl: bool = False


@triton.jit(
    do_not_specialize=[
        "heads", "width", "extra_width", "index_row", "extra_index_row", "slots", "extra_slots",
        "page_shift", "page_units", "extra_page_shift", "extra_page_units", "window_parts",
        "has_lengths", "has_extra_lengths",
    ],
    do_not_specialize_on_alignment=["indices", "lengths", "extra_indices", "extra_lengths"],
)  # fmt: skip
def part_kernel(
    q, cache, indices, lengths, extra_cache, extra_indices, extra_lengths, sums, statistics,
    heads, width, extra_width, index_row, extra_index_row, slots, extra_slots,
    page_shift, page_units, extra_page_shift, extra_page_units, window_parts,
    has_lengths, has_extra_lengths, scale,
    HEADS: tl.constexpr, ENTRIES: tl.constexpr, FNUZ: tl.constexpr, LAYOUT: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    """Attend to ENTRIES columns of one row for HEADS heads: weighted sum, largest score and total of the weights.

    The first `window_parts` parts are of the window, whose cache has the page layout LAYOUT, the others of the extra
    cache, whose layout is EXTRA. `scale` includes log2(e).
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    index = tl.program_id(2)
    column = index * ENTRIES + tl.arange(0, ENTRIES)
    end, limit, slot_of = width, slots, indices + row * index_row
    if index < window_parts:
        if has_lengths:
            end = tl.minimum(end, tl.load(lengths + row))
    else:
        column -= window_parts * ENTRIES
        end, limit, slot_of = extra_width, extra_slots, extra_indices + row * extra_index_row
        if EXTRA == LAYOUT:
            cache, page_shift, page_units = extra_cache, extra_page_shift, extra_page_units
        if has_extra_lengths:
            end = tl.minimum(end, tl.load(extra_lengths + row))
    slot = tl.load(slot_of + column, mask=column < end, other=-1).to(tl.int64)
    valid = (slot >= 0) & (slot < limit)
    live = head < heads
    part = (row * heads + head) * tl.num_programs(2) + index
    if tl.max(valid.to(tl.int32), axis=0) == 0:
        tl.store(statistics + 2 * part, NOTHING, mask=live)
        tl.store(statistics + 2 * part + 1, 0.0, mask=live)
    else:
        # All codes are loaded before the first product, behind whose barriers no load could move.
        if EXTRA == LAYOUT:  # noqa: SIM114 -- known when the kernel is built, unlike the next one
            k0, k1, k2, k3, k4, k5, k6, k7 = load_entries(cache, slot, valid, page_shift, page_units, LAYOUT, FNUZ)
        elif index < window_parts:
            k0, k1, k2, k3, k4, k5, k6, k7 = load_entries(cache, slot, valid, page_shift, page_units, LAYOUT, FNUZ)
        else:
            k0, k1, k2, k3, k4, k5, k6, k7 = load_entries(
                extra_cache, slot, valid, extra_page_shift, extra_page_units, EXTRA, FNUZ
            )
        lane = tl.arange(0, GROUP)[None, :]
        q0 = q + (row * heads + head[:, None]) * LANES + lane
        mask = live[:, None]
        scores = tl.dot(tl.load(q0, mask=mask, other=0.0), tl.trans(k0))
        scores = tl.dot(tl.load(q0 + 64, mask=mask, other=0.0), tl.trans(k1), scores)
        scores = tl.dot(tl.load(q0 + 128, mask=mask, other=0.0), tl.trans(k2), scores)
        scores = tl.dot(tl.load(q0 + 192, mask=mask, other=0.0), tl.trans(k3), scores)
        scores = tl.dot(tl.load(q0 + 256, mask=mask, other=0.0), tl.trans(k4), scores)
        scores = tl.dot(tl.load(q0 + 320, mask=mask, other=0.0), tl.trans(k5), scores)
        scores = tl.dot(tl.load(q0 + 384, mask=mask, other=0.0), tl.trans(k6), scores)
        scores = tl.dot(tl.load(q0 + 448, mask=mask, other=0.0), tl.trans(k7), scores)
        weights, largest, total = softmax_part(scores * scale, valid)
        tl.store(statistics + 2 * part, largest, mask=live)
        tl.store(statistics + 2 * part + 1, total, mask=live)
        weights = weights.to(tl.bfloat16)
        target = sums + part[:, None] * LANES + lane
        tl.store(target, tl.dot(weights, k0), mask=mask)
        tl.store(target + 64, tl.dot(weights, k1), mask=mask)
        tl.store(target + 128, tl.dot(weights, k2), mask=mask)
        tl.store(target + 192, tl.dot(weights, k3), mask=mask)
        tl.store(target + 256, tl.dot(weights, k4), mask=mask)
        tl.store(target + 320, tl.dot(weights, k5), mask=mask)
        tl.store(target + 384, tl.dot(weights, k6), mask=mask)
        tl.store(target + 448, tl.dot(weights, k7), mask=mask)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["sink"])
def merge_kernel(sums, statistics, sink, out, lse, count, MERGED: tl.constexpr, PDL: tl.constexpr):
    """Merge the parts of one head of one row, MERGED at a time in their order, and apply the sink."""
    begin(PDL)
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    lane = tl.arange(0, LANES)[None, :]
    sums += place * count * LANES
    statistics += 2 * place * count
    if sink is not None:
        sunk = tl.load(sink + tl.program_id(1)) * LOG2_E
    largest, total = tl.full((), NOTHING, tl.float32), tl.zeros((), tl.float32)
    value = tl.zeros((1, LANES), tl.float32)
    for first in range(0, count, MERGED):
        index = first + tl.arange(0, MERGED)
        here = index < count
        own = tl.load(statistics + 2 * index, mask=here, other=NOTHING)
        counted = tl.load(statistics + 2 * index + 1, mask=here, other=0.0)
        part = tl.load(sums + index[:, None] * LANES + lane, mask=here[:, None], other=0.0)
        top = tl.maximum(largest, tl.max(own, axis=0))
        against = tl.where(top == NOTHING, 0.0, top)
        before, factor = tl.exp2(largest - against), tl.exp2(own - against)
        total = total * before + tl.sum(factor * counted, axis=0)
        # A part without entries was not written: what its place holds counts for nothing.
        part = tl.where((counted > 0)[:, None], part * factor[:, None], 0.0)
        value = value * before + tl.sum(part, axis=0)[None, :]
        largest = top
    some = largest != NOTHING
    log_total = largest + tl.log2(tl.where(some, total, 1.0))
    denominator = tl.where(some, total, 1.0)
    if sink is not None:
        denominator *= 1.0 + tl.exp2(sunk - tl.where(some, log_total, 0.0))
    tl.store(lse + place, tl.where(some, log_total * LN_2, float("inf")))
    tl.store(out + place * LANES + lane, tl.where(some, value / denominator, 0.0).to(tl.bfloat16))


def part_constants(tiles: Tiles, layout: str = "kv_v4", extra: str = "kv_v4", compiled: bool = True) -> dict[str, Any]:
    """Return the compile-time arguments of the first launch, for the layouts of both caches.

    Args:
        tiles: how the work is cut.
        layout: of the window.
        extra: of the extra cache.
        compiled: the kernel is compiled, not interpreted.
    """
    constants = {"HEADS": tiles.heads, "ENTRIES": tiles.entries, "LAYOUT": layout, "EXTRA": extra}
    return {**constants, "PINNED": compiled, "PDL": tiles.pdl} if tiles.whole else {**constants, "FNUZ": tiles.fnuz}


def part_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of the first launch. Contraction is pinned off: its default differs by version."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl and tiles.whole)}


def merge_constants(tiles: Tiles) -> dict[str, Any]:
    """Return the compile-time arguments of the second launch."""
    return {"MERGED": tiles.merged, "PDL": tiles.pdl}


def merge_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of the second launch."""
    return {"num_warps": tiles.merge_warps, "enable_fp_fusion": False, **pdl_option(tiles.pdl)}


__all__ = [
    "LOG2_E", "Tiles", "merge_constants", "merge_kernel", "merge_options", "part_constants", "part_kernel",
    "part_options",
]  # fmt: skip

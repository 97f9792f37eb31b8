"""Portable ``sparse_mla_decode`` for the layout ``kv_v4``: entries split over programs, then the parts merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.kv_v4 import GROUP, LANES, WIDTH, locate, page_shift, page_units
from dspark_ops_triton.blocks.sparse_attention import NOTHING, decode, load_codes, load_rotated, softmax_part

#: Parts are programs of the grid's last dimension, which has 16 bits.
MOST_PARTS = 65535
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
    """

    heads: int
    entries: int
    warps: int
    merged: int
    merge_warps: int
    fnuz: bool = False


#: The threads hold 64 entries as bfloat16 between the two products; 640 entries of a row are 10 programs.
TILES = Tiles(heads=16, entries=64, warps=8, merged=8, merge_warps=4)
AMD_TILES = Tiles(heads=16, entries=64, warps=4, merged=8, merge_warps=2)


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
    HEADS: tl.constexpr, ENTRIES: tl.constexpr, FNUZ: tl.constexpr,
):  # fmt: skip
    """Attend to ENTRIES columns of one row for HEADS heads: weighted sum, largest score and total of the weights.

    The first `window_parts` parts are of the window, the others of the extra cache. `scale` includes log2(e).
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
        data, scales = locate(cache, tl.where(valid, slot, 0), page_shift, page_units)
        # All loads come before the first product, behind whose barriers none could move: they are under way together.
        c0, c1 = load_codes(data, 0, valid), load_codes(data, 1, valid)
        c2, c3 = load_codes(data, 2, valid), load_codes(data, 3, valid)
        c4, c5 = load_codes(data, 4, valid), load_codes(data, 5, valid)
        c6, k7 = load_codes(data, 6, valid), load_rotated(data, valid)
        lane = tl.arange(0, GROUP)[None, :]
        q0 = q + (row * heads + head[:, None]) * LANES + lane
        mask = live[:, None]
        k0, k1 = decode(c0, scales, 0, valid, FNUZ), decode(c1, scales, 1, valid, FNUZ)
        k2, k3 = decode(c2, scales, 2, valid, FNUZ), decode(c3, scales, 3, valid, FNUZ)
        k4, k5 = decode(c4, scales, 4, valid, FNUZ), decode(c5, scales, 5, valid, FNUZ)
        k6 = decode(c6, scales, 6, valid, FNUZ)
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
def merge_kernel(sums, statistics, sink, out, lse, count, MERGED: tl.constexpr):
    """Merge the parts of one head of one row, MERGED at a time in their order, and apply the sink."""
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    lane = tl.arange(0, LANES)[None, :]
    largest = NOTHING
    for first in range(0, count, MERGED):
        index = first + tl.arange(0, MERGED)
        other = tl.load(statistics + 2 * (place * count + index), mask=index < count, other=NOTHING)
        largest = tl.maximum(largest, tl.max(other, axis=0))
    against = tl.where(largest == NOTHING, 0.0, largest)
    total = 0.0
    value = tl.zeros((1, LANES), tl.float32)
    for first in range(0, count, MERGED):
        index = first + tl.arange(0, MERGED)
        own = tl.load(statistics + 2 * (place * count + index), mask=index < count, other=NOTHING)
        counted = tl.load(statistics + 2 * (place * count + index) + 1, mask=index < count, other=0.0)
        factor = tl.exp2(own - against)
        total += tl.sum(factor * counted, axis=0)
        # A part without entries was not written.
        part = tl.load(sums + (place * count + index)[:, None] * LANES + lane, mask=(counted > 0)[:, None], other=0.0)
        value += tl.sum(part * factor[:, None], axis=0)[None, :]
    some = largest != NOTHING
    log_total = largest + tl.log2(tl.where(some, total, 1.0))
    denominator = tl.where(some, total, 1.0)
    if sink is not None:
        denominator *= 1.0 + tl.exp2(tl.load(sink + tl.program_id(1)) * LOG2_E - tl.where(some, log_total, 0.0))
    tl.store(lse + place, tl.where(some, log_total * LN_2, float("inf")))
    tl.store(out + place * LANES + lane, tl.where(some, value / denominator, 0.0).to(tl.bfloat16))


def sparse_mla_decode(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    lengths: Tensor | None = None,
    sink: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_lengths: Tensor | None = None,
    page_size: int = 64,
    extra_page_size: int = 64,
    layout: str = "kv_v4",
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention of each query head over the cache slots that its row names, and the log-sum-exp.

    Args:
        q: [T, A, 512] bfloat16, contiguous.
        cache: [pages, page_bytes] uint8, contiguous.
        indices: [T, W] int32, last stride 1. -1, or a slot beyond the last page, adds nothing.
        lengths: [T] int32: only the first ``lengths[t]`` columns of row t count; None counts all W.
        sink: [A] float32, joins the denominator only; None or -inf: no sink.
        extra_cache: second cache, its entries under the same softmax; None for none.
        extra_indices: [T, X] int32, last stride 1.
        extra_lengths: [T] int32.
        page_size: slots of a page of `cache`, a power of two.
        extra_page_size: slots of a page of `extra_cache`, a power of two.
        layout: ``kv_v4``.
        scale: factor of the scores; None means 512 ** -0.5.

    Returns:
        out [T, A, 512] bfloat16, lse [T, A] float32, without the sink. No valid entry gives 0 and +inf.

    Raises:
        ValueError: another layout or width, a cache that has not its page size, only one of `extra_cache` and
            `extra_indices`, or more than four million columns.

    Entries are multiplied as bfloat16, which holds them exactly; sums are float32; weights are rounded to bfloat16.

    Bytes moved: 584 per valid entry and 16 heads; ``2*A*512`` in, as much out, and 4104 per head and part of 64
    columns through scratch memory. Launches: 2, none for no rows.

    Source: N appendix A, C5.2.
    """
    tokens, heads, lanes = q.shape
    if layout != "kv_v4" or lanes != WIDTH or not q.is_contiguous():
        got = f"{layout} and queries {list(q.shape)} with strides {list(q.stride())}"
        raise ValueError(f"sparse_mla_decode: wanted layout kv_v4 and contiguous queries of {WIDTH} lanes, got {got}")
    if (extra_cache is None) != (extra_indices is None):
        raise ValueError("sparse_mla_decode: wanted extra_cache and extra_indices together, got one of them")
    units = page_units("sparse_mla_decode", cache, page_size)
    more, more_indices, more_size, more_units = cache, indices, page_size, units
    if extra_cache is not None:
        more, more_indices, more_size = extra_cache, extra_indices, extra_page_size
        more_units = page_units("sparse_mla_decode", extra_cache, extra_page_size)
    out, lse = torch.empty_like(q), torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    if tokens == 0:
        return out, lse
    tiles = _tiles(q.device)
    width, extra_width = indices.shape[1], 0 if extra_cache is None else more_indices.shape[1]
    window_parts = triton.cdiv(width, tiles.entries)
    count = max(1, window_parts + triton.cdiv(extra_width, tiles.entries))
    if count > MOST_PARTS:
        most, got = MOST_PARTS * tiles.entries, f"{width} and {extra_width}"
        raise ValueError(f"sparse_mla_decode: wanted at most {most} columns in both caches together, got {got}")
    sums = torch.empty(tokens, heads, count, WIDTH, dtype=torch.float32, device=q.device)
    statistics = torch.empty(tokens, heads, count, 2, dtype=torch.float32, device=q.device)
    factor = (WIDTH**-0.5 if scale is None else scale) * LOG2_E.value
    part_kernel[(tokens, triton.cdiv(heads, tiles.heads), count)](
        q, cache, indices, indices if lengths is None else lengths,
        more, more_indices, indices if extra_lengths is None else extra_lengths, sums, statistics,
        heads, width, extra_width, indices.stride(0), more_indices.stride(0),
        cache.shape[0] * page_size, more.shape[0] * more_size,
        page_shift(page_size), units, page_shift(more_size), more_units, window_parts,
        int(lengths is not None), int(extra_lengths is not None), factor,
        **part_constants(tiles), **part_options(tiles),
    )  # fmt: skip
    merge_kernel[(tokens, heads)](
        sums, statistics, sink, out, lse, count, MERGED=tiles.merged, **merge_options(tiles)
    )  # fmt: skip
    return out, lse


def prepare_sparse_mla_decode(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `sparse_mla_decode`, compiled with a sink and without."""
    if device.arch.vendor != "cpu":
        heads = site.axes["A"]
        q = torch.zeros(1, heads, WIDTH, dtype=torch.bfloat16, device="cuda")
        cache = torch.zeros(1, 1152, dtype=torch.uint8, device="cuda")
        indices = torch.full((1, 1), -1, dtype=torch.int32, device="cuda")
        for sink in (None, torch.zeros(heads, device="cuda")):
            sparse_mla_decode(q, cache, indices, sink=sink, page_size=1)
    return sparse_mla_decode


def part_constants(tiles: Tiles) -> dict[str, Any]:
    """Return the compile-time arguments of the first launch."""
    return {"HEADS": tiles.heads, "ENTRIES": tiles.entries, "FNUZ": tiles.fnuz}


def part_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of the first launch. Contraction is pinned off: its default differs by version."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False}


def merge_options(tiles: Tiles) -> dict[str, Any]:
    """Return the compiler options of the second launch."""
    return {"num_warps": tiles.merge_warps, "enable_fp_fusion": False}


def _tiles(device: torch.device) -> Tiles:
    if not torch.version.hip:
        return TILES
    return tiles_of(torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0])


def tiles_of(arch: str) -> Tiles:
    """Return how the work is cut on an architecture, by name."""
    if not arch.startswith("gfx"):
        return TILES
    return replace(AMD_TILES, fnuz=arch == "gfx942")


__all__ = [
    "AMD_TILES",
    "TILES",
    "Tiles",
    "merge_kernel",
    "merge_options",
    "part_constants",
    "part_kernel",
    "part_options",
    "prepare_sparse_mla_decode",
    "sparse_mla_decode",
    "tiles_of",
]

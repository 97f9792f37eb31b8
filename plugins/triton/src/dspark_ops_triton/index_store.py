"""Portable ``index_k_store``: fp4 index keys, in pages of 68 bytes a key and in separate payload and scale pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.codes import (
    e2m1_code_without_minus_zero,
    e2m1_round,
    fp4_grid_ue8m0_scale,
    power_of_two,
    ue8m0_index,
)
from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.rotary import join_pairs, load_turns, split_pairs, turn

WIDTH, ROPE = 128, 64
GROUPS, GROUP, LANES = tl.constexpr(4), tl.constexpr(32), tl.constexpr(128)
TURNED = tl.constexpr(64)
#: The page size that readers of separate payload and scale pages take.
SPLIT_PAGE = tl.constexpr(64)
#: One warp holds a key.
CUT = Cut(items=1, warps=1)


@triton.jit(
    do_not_specialize=["k_stride", "slots", "page_shift", "first_slot", "position_mask"],
    do_not_specialize_on_alignment=["positions", "out_loc"],
)
def index_store_kernel(
    k, weight, freqs, positions, out_loc, cache, scale_cache, k_stride, slots, page_shift, first_slot, position_mask,
    eps, UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Normalise if there is a weight, rotate, round to fp4, quantise and store one key of 4 groups of 32 lanes.

    Slots below `first_slot` write nothing. `k_stride` counts groups of UNIT elements.
    """
    row = tl.program_id(0).to(tl.int64)
    group, lane = tl.arange(0, GROUPS)[:, None], tl.arange(0, GROUP)[None, :]
    k += row * k_stride * UNIT
    if weight is not None:
        # no kernel of a step writes weights: it comes while the one before may still be running
        gain = tl.load(weight + group * GROUP + lane).to(tl.float32)
    begin_at((k, freqs, positions, out_loc, cache, slots, first_slot), PDL)
    # All loads but the table's are under way together; that one waits for the position alone.
    slot = tl.load(out_loc + row).to(tl.int64)
    place = tl.load(positions + row).to(tl.int64) & position_mask
    key = tl.load(k + group * GROUP + lane).to(tl.float32)
    pair = group * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
    turned = pair >= (LANES - TURNED) // 2
    kept = (slot >= first_slot) & (slot < slots)
    offset = group * GROUP + lane - (LANES - TURNED)
    # as numbers: Triton's interpreter makes no mask of a scalar and a block
    wanted = kept.to(tl.int32) > tl.where(offset >= 0, 0, 1)
    cosine, sine = load_turns(freqs + place * TURNED + offset, wanted, GROUPS, GROUP)
    if kept:
        if weight is not None:
            mean = tl.sum(tl.sum(key * key, axis=1), axis=0) / LANES
            inverse = tl.div_rn(tl.full([], 1.0, tl.float32), tl.sqrt_rn(mean + eps))
            key = key * inverse * gain
            key = key.to(tl.bfloat16).to(tl.float32)
        even, odd = split_pairs(key, GROUPS, GROUP)
        new_even, new_odd = turn(even, odd, cosine, sine)
        key = join_pairs(tl.where(turned, new_even, even), tl.where(turned, new_odd, odd), GROUPS, GROUP)
        grid = fp4_grid_ue8m0_scale(key.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
        byte = ue8m0_index(tl.max(tl.abs(grid), axis=1))
        code = e2m1_code_without_minus_zero(e2m1_round(grid * power_of_two(254 - byte)[:, None]))
        low, high = split_pairs(code, GROUPS, GROUP)
        page, inside = slot >> page_shift, slot - ((slot >> page_shift) << page_shift)
        chunk = tl.arange(0, GROUPS)
        if scale_cache is None:
            first = (page << page_shift) * (LANES // 2 + GROUPS)
            payload = cache + first + inside * (LANES // 2) + chunk * (GROUP // 2)
            scales = cache + first + (LANES // 2 << page_shift) + inside * GROUPS + chunk
        else:
            payload = cache + (page * GROUPS + chunk) * (SPLIT_PAGE * GROUP // 2) + inside * (GROUP // 2)
            scales = (
                scale_cache + (page * GROUPS + chunk) * SPLIT_PAGE + inside % 16 * (SPLIT_PAGE // 16) + inside // 16
            )
        tl.store(payload[:, None] + tl.arange(0, GROUP // 2)[None, :], (low | (high << 4)).to(tl.uint8))
        tl.store(scales, byte.to(tl.uint8))


def index_k_store(
    k: Tensor,
    freqs: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    scale_cache: Tensor | None = None,
    weight: Tensor | None = None,
    ratio: int = 1,
    layout: str = "index_k_page68",
    eps: float = 1e-20,
) -> None:
    """Write the rotated fp4 index key of each entry into its cache slot, normalised first if a weight is given.

    Args:
        k: [N, 128] bfloat16, last stride 1.
        freqs: [S, 64] float32 interleaved.
        positions: [N] int32 or int64, below S; an entry is rotated as the first position of its group of `ratio`.
        out_loc: [N] int32 or int64 slots. With a weight, slots of 0 and below write nothing; without one, only negative
            slots do. A slot beyond the last page writes nothing.
        cache: uint8, contiguous, written: [pages, page_size * 68], or payload [pages, 4096] for ``index_k_split``.
        page_size: slots of a page: a power of two, or 64 for ``index_k_split``.
        scale_cache: [pages, 256] uint8, contiguous, written, for ``index_k_split``; None otherwise.
        weight: [128] bfloat16 of the norm, or None.
        ratio: positions of an entry, 1 or 2.
        layout: ``index_k_page68`` or ``index_k_split``.
        eps: added to the mean square, under the root.

    Raises:
        ValueError: keys that are not 128 wide, another ratio or layout, or a cache that does not fit the layout.
            Nothing is written then.

    Bytes moved: about 850 per key. Launches: 1, none for no keys.

    Source: N8.4, A1.
    """
    _store(CUT, k, freqs, positions, out_loc, cache, page_size, scale_cache, weight, ratio, layout, eps)


def _store(
    cut: Cut, k: Tensor, freqs: Tensor, positions: Tensor, out_loc: Tensor, cache: Tensor, page_size: int,
    scale_cache: Tensor | None = None, weight: Tensor | None = None, ratio: int = 1, layout: str = "index_k_page68",
    eps: float = 1e-20,
) -> None:  # fmt: skip
    _require(k, freqs, cache, page_size, scale_cache, ratio, layout)
    if k.shape[0]:
        unit = stride_unit(k)
        index_store_kernel[(k.shape[0],)](
            k, weight, freqs, positions, out_loc, cache, scale_cache, k.stride(0) // unit, cache.shape[0] * page_size,
            page_size.bit_length() - 1, 0 if weight is None else 1, -ratio, eps,
            UNIT=unit, PDL=cut.pdl, **cut_options(cut),
        )  # fmt: skip


def _require(
    k: Tensor, freqs: Tensor, cache: Tensor, page_size: int, scale_cache: Tensor | None, ratio: int, layout: str
) -> None:
    if k.shape[1] != WIDTH or freqs.shape[1] != ROPE or ratio not in (1, 2):
        got = f"{k.shape[1]}, {freqs.shape[1]} and ratio {ratio}"
        raise ValueError(f"index_k_store: wanted {WIDTH} lanes, {ROPE} rotated ones and ratio 1 or 2, got {got}")
    split = layout == "index_k_split"
    sizes = {"index_k_page68": 68 * page_size, "index_k_split": 64 * page_size}
    scales = scale_cache is None or (scale_cache.shape == (cache.shape[0], 256) and scale_cache.is_contiguous())
    power = page_size > 0 and page_size & (page_size - 1) == 0 and (page_size == 64 or not split)
    if split == (scale_cache is None) or not scales or not power or cache.shape[1] != sizes.get(layout):
        shape = None if scale_cache is None else list(scale_cache.shape)
        got = f"{layout} with pages of {page_size}, cache {list(cache.shape)}, scale_cache {shape}"
        raise ValueError(
            "index_k_store: wanted index_k_page68 with a cache [pages, 68 * page_size], a power of two, or "
            f"index_k_split with 64 slots a page, a cache [pages, 4096] and a scale_cache [pages, 256], got {got}"
        )
    if not cache.is_contiguous():
        raise ValueError(f"index_k_store: wanted a contiguous cache, got strides {list(cache.stride())}")


def prepare_index_k_store(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `index_k_store`, compiled for the site's layout, with a norm and without, for integers of one dtype.

    Positions and slots of different dtypes, and keys or a table that do not begin at 16-byte boundaries, are compiled
    at their first call.
    """
    return prepare_cut(_store, CUT, index_k_store, _compile, device, site, rows)


def _compile(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    weight = torch.zeros(WIDTH, dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(1, ROPE, device="cuda")
    zero = torch.zeros(1, dtype=torch.int64, device="cuda")
    layout = site.layouts["cache"]
    cache = torch.zeros(1, 4096 if layout == "index_k_split" else 4352, dtype=torch.uint8, device="cuda")
    scales = torch.zeros(1, 256, dtype=torch.uint8, device="cuda") if layout == "index_k_split" else None
    for both in (zero, zero.int()):
        for gain in (None, weight):
            call(weight[None], freqs, both, both, cache, 64, scales, gain, layout=layout)


__all__ = ["CUT", "index_k_store", "index_store_kernel", "prepare_index_k_store"]

"""Latent rows normalised, rotated, quantised and stored; the warps of a row are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.kv_rows_v41 import empty_page, store_rows_v41
from dspark_ops_triton.blocks.kv_v4 import (
    GROUP,
    ROPE,
    WIDTH,
    load_groups,
    load_last_turns,
    normalise_groups,
    page_shift,
    page_units,
    store_kept_entry,
    turn_last_group,
)
from dspark_ops_triton.blocks.launching import RowTiles, row_options


@triton.jit(
    do_not_specialize=["kv_stride", "slots", "page_shift", "page_units"],
    do_not_specialize_on_alignment=["positions", "out_loc"],
)
def norm_rope_store_kernel(
    kv, weight, freqs, positions, out_loc, cache, kv_stride, slots, page_shift, page_units, eps,
    UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Normalise, rotate, quantise and store one row; `kv_stride` counts groups of UNIT elements."""
    row = tl.program_id(0).to(tl.int64)
    gain = load_groups(weight)  # no kernel of a step writes weights: it comes while the one before may still be running
    kv += row * kv_stride * UNIT
    begin_at((kv, positions, out_loc, freqs, cache, slots), PDL)
    # All loads but the table's are under way together; that one waits for the position alone. Nothing branches on the
    # slot: behind a branch all of them would wait for it.
    raw = load_groups(kv)
    place = tl.load(positions + row).to(tl.int64)
    slot = tl.load(out_loc + row).to(tl.int64)
    kept = (slot >= 0) & (slot < slots)
    cosines, sines = load_last_turns(freqs + place * GROUP, kept)
    groups = turn_last_group(normalise_groups(raw, gain, eps), cosines, sines)
    store_kept_entry(cache, slot, groups, page_shift, page_units, kept)


def k_norm_rope_store(
    tiles: RowTiles, kv: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, out_loc: Tensor, cache: Tensor,
    page_size: int, layout: str = "kv_v4", eps: float = 1e-20,
) -> None:  # fmt: skip
    """Write rows into their slots: ``k_norm_rope_store`` (N7), arguments as in its contract."""
    if kv.shape[1] != WIDTH or freqs.shape[1] != ROPE:
        got = f"{kv.shape[1]} and {freqs.shape[1]}"
        raise ValueError(f"k_norm_rope_store: wanted {WIDTH} lanes and {ROPE} rotated ones, got {got}")
    if layout != "kv_v4":
        store_rows_v41(kv, weight, freqs, positions, out_loc, cache, page_size, layout, eps, tiles.pdl)
        return
    units = page_units("k_norm_rope_store", cache, page_size)
    rows = kv.shape[0]
    if rows:
        unit = stride_unit(kv)
        norm_rope_store_kernel[(rows,)](
            kv, weight, freqs, positions, out_loc, cache,
            kv.stride(0) // unit, cache.shape[0] * page_size, page_shift(page_size), units, eps,
            UNIT=unit, PDL=tiles.pdl, **row_options(tiles),
        )  # fmt: skip


def compile_k_norm_rope_store(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator once per build: the site's layout, both dtypes of positions, rows on 16 bytes and not."""
    buffer = torch.zeros(WIDTH + 1, dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(1, ROPE, device="cuda")
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    layout = site.options.get("layout", "kv_v4")
    cache = torch.zeros(1, 1152, dtype=torch.uint8, device="cuda") if layout == "kv_v4" else empty_page(layout)
    nowhere = torch.full((1,), -1, dtype=torch.int32, device="cuda")
    for first in (0, 1):
        for positions in (position, position.int()):
            kv = buffer[first : first + WIDTH].view(1, WIDTH)
            call(kv, buffer[:WIDTH], freqs, positions, nowhere, cache, 1, layout)

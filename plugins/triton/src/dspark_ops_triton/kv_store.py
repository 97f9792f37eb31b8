"""Portable ``k_norm_rope_store`` for the layouts of V4 and of V4.1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.kv_v4 import (
    GROUP,
    ROPE,
    WIDTH,
    load_groups,
    load_turns,
    normalise_groups,
    page_shift,
    page_units,
    store_entry,
    turn_last_group,
)
from dspark_ops_triton.blocks.launching import RowTiles, bind_launch, row_options
from dspark_ops_triton.blocks.tile_table import tiles_for
from dspark_ops_triton.kv_store_v41 import empty_page, store_rows_v41

#: A warp per two groups of 64 lanes: their codes, made from bits, are most of the work.
TILES = RowTiles(warps=4)


@triton.jit(
    do_not_specialize=["kv_stride", "slots", "page_shift", "page_units"],
    do_not_specialize_on_alignment=["freqs", "positions", "out_loc"],
)
def norm_rope_store_kernel(
    kv, weight, freqs, positions, out_loc, cache, kv_stride, slots, page_shift, page_units, eps,
    UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Normalise, rotate, quantise and store one row; `kv_stride` counts groups of UNIT elements."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    # All loads but the table's are under way together; that one waits for the position alone.
    slot = tl.load(out_loc + row).to(tl.int64)
    place = tl.load(positions + row).to(tl.int64)
    raw, gain = load_groups(kv + row * kv_stride * UNIT), load_groups(weight)
    kept = (slot >= 0) & (slot < slots)
    cosines, sines = load_turns(freqs + place * GROUP, kept)
    if kept:
        groups = turn_last_group(normalise_groups(raw, gain, eps), cosines, sines)
        store_entry(cache, slot, groups, page_shift, page_units)


def k_norm_rope_store(
    kv: Tensor,
    weight: Tensor,
    freqs: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    layout: str = "kv_v4",
    eps: float = 1e-20,
) -> None:
    """Write the normalised, rotated and quantised latent row of each token into its cache slot.

    Args:
        kv: [B, 512] bfloat16, last stride 1.
        weight: [512] bfloat16, of the norm.
        freqs: [S, 64] float32 interleaved.
        positions: [B] int32 or int64, below S.
        out_loc: [B] int32 cache slots. A row with a negative slot, or one beyond the last page, writes nothing.
        cache: [pages, page_bytes] uint8, contiguous, written at the kept slots only.
        page_size: slots of a page, a power of two.
        layout: ``kv_v4``, ``kv_v41``, ``kv_v41_fp4``, or one of the last two with ``_new``.
        eps: added to the mean square, under the root.

    Raises:
        ValueError: another layout, rows that are not 512 wide, or a cache that has not this page size. Nothing is
            written then.

    Bytes moved: about 1870 per row: 1024 read, 256 of the table, 583 written, or 528 and 288 in the layouts of V4.1.
    Launches: 1, none for no rows.

    Source: N7.2, N7.3.
    """
    _store(TILES, kv, weight, freqs, positions, out_loc, cache, page_size, layout, eps)


def _store(
    tiles: RowTiles, kv: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, out_loc: Tensor, cache: Tensor,
    page_size: int, layout: str = "kv_v4", eps: float = 1e-20,
) -> None:  # fmt: skip
    if kv.shape[1] != WIDTH or freqs.shape[1] != ROPE:
        got = f"{kv.shape[1]} and {freqs.shape[1]}"
        raise ValueError(f"k_norm_rope_store: wanted {WIDTH} lanes and {ROPE} rotated ones, got {got}")
    if layout != "kv_v4":
        store_rows_v41(kv, weight, freqs, positions, out_loc, cache, page_size, layout, eps)
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


def prepare_k_norm_rope_store(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `k_norm_rope_store`, compiled for the site's layout and both dtypes of positions.

    Compiled are rows at 16-byte boundaries and rows that are not.
    """
    if device.arch.vendor == "cpu":
        return k_norm_rope_store
    bound = bind_launch(_store, tiles_for("k_norm_rope_store", device, site, TILES), k_norm_rope_store)
    buffer = torch.zeros(WIDTH + 1, dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(1, ROPE, device="cuda")
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    layout = site.options.get("layout", "kv_v4")
    cache = torch.zeros(1, 1152, dtype=torch.uint8, device="cuda") if layout == "kv_v4" else empty_page(layout)
    nowhere = torch.full((1,), -1, dtype=torch.int32, device="cuda")
    for first in (0, 1):
        for positions in (position, position.int()):
            kv = buffer[first : first + WIDTH].view(1, WIDTH)
            bound(kv, buffer[:WIDTH], freqs, positions, nowhere, cache, 1, layout)
    return bound


__all__ = [
    "TILES",
    "k_norm_rope_store",
    "norm_rope_store_kernel",
    "prepare_k_norm_rope_store",
]

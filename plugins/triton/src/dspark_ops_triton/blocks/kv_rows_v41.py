"""``k_norm_rope_store`` for the four page layouts of V4.1, which `dspark_ops_triton.blocks.kv_rows` launches."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.kv_v4 import GROUP, load_groups, load_last_turns, normalise_groups, turn_last_group
from dspark_ops_triton.blocks.kv_v41 import FORMS, locate_v41, page_units, store_entry_e2m1, store_entry_e4m3
from dspark_ops_triton.blocks.launching import RowTiles, row_options

#: One warp holds a row: its sums are shuffles, without memory that programs of several warps meet in.
WARPS = 1


@triton.jit(
    do_not_specialize=["kv_stride", "slots", "page_shift", "page_units"],
    do_not_specialize_on_alignment=["positions", "out_loc"],
)
def norm_rope_store_v41_kernel(
    kv, weight, freqs, positions, out_loc, cache, kv_stride, slots, page_shift, page_units, eps,
    UNIT: tl.constexpr, DATA: tl.constexpr, SCALES: tl.constexpr, INTERLEAVED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Normalise, rotate, quantise and store one row, rounded to bfloat16 after the norm and after the rotation."""
    row = tl.program_id(0).to(tl.int64)
    kv += row * kv_stride * UNIT
    gain = load_groups(weight)  # no kernel of a step writes weights: it comes while the one before may still be running
    begin_at((kv, positions, out_loc, freqs, cache, slots), PDL)
    # All loads but the table's are under way together; that one waits for the position alone.
    slot = tl.load(out_loc + row).to(tl.int64)
    place = tl.load(positions + row).to(tl.int64)
    raw = load_groups(kv)
    kept = (slot >= 0) & (slot < slots)
    cosines, sines = load_last_turns(freqs + place * GROUP, kept)
    if kept:
        normed = normalise_groups(raw, gain, eps).to(tl.bfloat16).to(tl.float32)
        groups = turn_last_group(normed, cosines, sines).to(tl.bfloat16).to(tl.float32)
        data, scales = locate_v41(cache, slot, page_shift, page_units, DATA, SCALES, INTERLEAVED)
        if DATA == 512:
            store_entry_e4m3(data, scales, groups)
        else:
            store_entry_e2m1(data, scales, groups)


def store_rows_v41(
    kv: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, out_loc: Tensor, cache: Tensor, page_size: int,
    layout: str, eps: float, pdl: bool = False,
) -> None:  # fmt: skip
    """Do what `k_norm_rope_store` does in a layout of V4.1: rows of 512, of which the last 64 are rotated.

    Bytes moved: per row 1024 read, 256 of the table, and 528 or 288 written. Launches: 1, none for no rows.

    Raises:
        ValueError: another layout, or a cache that has not this page size. Nothing is written then.

    Source: N7.2, N7.3.
    """
    units = page_units("k_norm_rope_store", layout, cache, page_size)
    rows = kv.shape[0]
    if rows:
        unit = stride_unit(kv)
        norm_rope_store_v41_kernel[(rows,)](
            kv, weight, freqs, positions, out_loc, cache,
            kv.stride(0) // unit, cache.shape[0] * page_size, page_size.bit_length() - 1, units, eps,
            **launch_constants(layout, unit, pdl), **row_options(RowTiles(WARPS, pdl)),
        )  # fmt: skip


def launch_constants(layout: str, unit: int, pdl: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    form = FORMS[layout]
    return {
        "UNIT": unit, "DATA": form.data, "SCALES": form.scales, "INTERLEAVED": form.interleaved, "PDL": pdl
    }  # fmt: skip


def empty_page(layout: str) -> Tensor:
    """Return a cache of one page of one slot on the current device, to compile with."""
    return torch.zeros(1, FORMS[layout].page_bytes(1), dtype=torch.uint8, device="cuda")


__all__ = ["WARPS", "empty_page", "launch_constants", "norm_rope_store_v41_kernel", "store_rows_v41"]

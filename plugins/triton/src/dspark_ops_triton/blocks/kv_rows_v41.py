"""``k_norm_rope_store`` for the four page layouts of V4.1, which `dspark_ops_triton.blocks.kv_rows` launches."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.kv_v4 import GROUP, GROUPS, load_groups, normalise_groups
from dspark_ops_triton.blocks.kv_v41 import FORMS, locate_v41, page_units, store_entry_e2m1, store_entry_e4m3
from dspark_ops_triton.blocks.rotary import join_pairs, split_pairs, turn

#: One warp holds a row: its sums are shuffles, without memory that programs of several warps meet in.
WARPS = 1


@triton.jit(
    do_not_specialize=["kv_stride", "slots", "page_shift", "page_units"],
    do_not_specialize_on_alignment=["freqs", "positions", "out_loc"],
)
def norm_rope_store_v41_kernel(
    kv, weight, freqs, positions, out_loc, cache, kv_stride, slots, page_shift, page_units, eps,
    UNIT: tl.constexpr, DATA: tl.constexpr, SCALES: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Normalise, rotate, quantise and store one row, rounded to bfloat16 after the norm and after the rotation."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(out_loc + row).to(tl.int64)
    if (slot >= 0) & (slot < slots):
        place = tl.load(positions + row).to(tl.int64)
        groups = normalise_groups(load_groups(kv + row * kv_stride * UNIT), load_groups(weight), eps)
        even, odd = split_pairs(groups.to(tl.bfloat16).to(tl.float32), GROUPS, GROUP)
        pair = tl.arange(0, GROUP // 2)
        cosine = tl.load(freqs + place * GROUP + 2 * pair)[None, :].broadcast_to((GROUPS, GROUP // 2))
        sine = tl.load(freqs + place * GROUP + 2 * pair + 1)[None, :].broadcast_to((GROUPS, GROUP // 2))
        new_even, new_odd = turn(even, odd, cosine, sine)
        last = tl.arange(0, GROUPS)[:, None] == GROUPS - 1
        groups = join_pairs(tl.where(last, new_even, even), tl.where(last, new_odd, odd), GROUPS, GROUP)
        groups = groups.to(tl.bfloat16).to(tl.float32)
        data, scales = locate_v41(cache, slot, page_shift, page_units, DATA, SCALES, INTERLEAVED)
        if DATA == 512:
            store_entry_e4m3(data, scales, groups)
        else:
            store_entry_e2m1(data, scales, groups)


def store_rows_v41(
    kv: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, out_loc: Tensor, cache: Tensor, page_size: int,
    layout: str, eps: float,
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
            **launch_constants(layout, unit), **launch_options(),
        )  # fmt: skip


def launch_constants(layout: str, unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    form = FORMS[layout]
    return {"UNIT": unit, "DATA": form.data, "SCALES": form.scales, "INTERLEAVED": form.interleaved}


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": WARPS, "enable_fp_fusion": False}


def empty_page(layout: str) -> Tensor:
    """Return a cache of one page of one slot on the current device, to compile with."""
    return torch.zeros(1, FORMS[layout].page_bytes(1), dtype=torch.uint8, device="cuda")


__all__ = ["empty_page", "launch_constants", "launch_options", "norm_rope_store_v41_kernel", "store_rows_v41"]

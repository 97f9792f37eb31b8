"""Portable ``mxfp8_quantize``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.group_codes import store_group_bytes
from dspark_ops_triton.blocks.mxfp8 import TILE_GROUPS, clear_padding, mxfp8_groups, scale_rows, sf_128x4_place
from dspark_ops_triton.blocks.ptx import takes_ptx

#: Rows of a program, each with the columns of 4 groups: 16 values per thread, in few warps for few rows, 64 on AMD.
CUT, AMD_CUT = Cut(items=8, warps=2), Cut(items=32, warps=2)


@triton.jit(do_not_specialize=["rows"])
def mxfp8_kernel(
    x, q, scales, rows, GROUPS: tl.constexpr, ROWS: tl.constexpr, SWIZZLED: tl.constexpr, LANES: tl.constexpr,
    PTX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Quantise 4 groups of ROWS rows; bytes that belong to no group are written, too, LANES words at a time."""
    cell = tl.arange(0, ROWS * 4)
    row = tl.program_id(0) * ROWS + cell // 4
    group = tl.program_id(1) * 4 + cell % 4
    live = (row < rows) & (group < GROUPS)
    place = row.to(tl.int64) * (GROUPS * 32) + group * 32
    place = place[:, None] + tl.arange(0, 32)[None, :]
    begin(PDL)
    loaded = tl.load(x + place, mask=live[:, None], other=0.0)
    if SWIZZLED:
        program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        clear_padding(scales, program, tl.num_programs(0) * tl.num_programs(1), rows, GROUPS, LANES)
    codes, byte = mxfp8_groups(loaded.to(tl.float32))
    tl.store(q + place, codes, mask=live[:, None])
    if SWIZZLED:
        # where there is no group, values are zeros and so is their byte
        store_group_bytes(scales + sf_128x4_place(row, group, GROUPS), byte, row < rows, PTX)
    else:
        store_group_bytes(scales + row.to(tl.int64) * GROUPS + group, byte, live, PTX)


def mxfp8_quantize(x: Tensor, layout: str = "sf_128x4") -> tuple[Tensor, Tensor]:
    """Return MXFP8 codes and their scale bytes: per 32 columns the smallest power of two that brings them within 448.

    Args:
        x: [M, K] bfloat16 or float16, K divisible by 32; finite.
        layout: where scale bytes lie: ``sf_128x4`` or ``sf_linear``.

    Returns:
        q [M, K] float8_e4m3fn, and scales, uint8 in one dimension, padding 0.

    Bytes moved: 3 per value and 1/32 for its scale, padded to 128 rows in ``sf_128x4``. Launches: 1, none for no rows.

    Source: N12, N0.4 (rule MX).
    """
    return _quantize(AMD_CUT if torch.version.hip else CUT, x, layout)


def _quantize(cut: Cut, x: Tensor, layout: str = "sf_128x4") -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    groups = columns // 32
    swizzled = layout == "sf_128x4"
    stored_rows = scale_rows(rows) if swizzled else rows
    q = torch.empty(rows, columns, dtype=torch.uint8, device=x.device)
    stored_groups = triton.cdiv(groups, TILE_GROUPS) * TILE_GROUPS if swizzled else groups
    scales = torch.empty(stored_rows * stored_groups, dtype=torch.uint8, device=x.device)
    if rows:
        mxfp8_kernel[(triton.cdiv(rows, cut.items), triton.cdiv(groups, TILE_GROUPS))](
            x, q, scales, rows, **launch_constants(cut, groups, swizzled, takes_ptx(mxfp8_kernel)), **cut_options(cut)
        )
    return q.view(torch.float8_e4m3fn), scales


def launch_constants(cut: Cut, groups: int, swizzled: bool, ptx: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "GROUPS": groups, "ROWS": cut.items, "SWIZZLED": swizzled, "LANES": 32 * cut.warps, "PTX": ptx, "PDL": cut.pdl
    }  # fmt: skip


def prepare_mxfp8_quantize(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `mxfp8_quantize`, compiled for the site's width, dtype and layout."""
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    return prepare_cut(_quantize, cut, mxfp8_quantize, _compile, device, site, rows)


def _compile(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    dtype = getattr(torch, site.dtypes.get("x", "bfloat16"))
    buffer = torch.zeros(site.axes["K"] + 1, dtype=dtype, device="cuda")
    for x in (buffer[None, :-1], buffer[None, 1:]):
        call(x, site.options.get("layout", "sf_128x4"))

"""Portable ``mxfp8_quantize``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.mxfp8 import TILE_GROUPS, mxfp8_groups, scale_rows, sf_128x4_place

#: Rows of a program, each with the columns of 4 groups: 32 values per thread.
ROWS = 32
THREADS = 128


@triton.jit(do_not_specialize=["rows"])
def mxfp8_kernel(x, q, scales, rows, GROUPS: tl.constexpr, ROWS: tl.constexpr, SWIZZLED: tl.constexpr):
    """Quantise 4 groups of ROWS rows; bytes that belong to no group are written, too."""
    cell = tl.arange(0, ROWS * 4)
    row = tl.program_id(0) * ROWS + cell // 4
    group = tl.program_id(1) * 4 + cell % 4
    live = (row < rows) & (group < GROUPS)
    place = row.to(tl.int64) * (GROUPS * 32) + group * 32
    place = place[:, None] + tl.arange(0, 32)[None, :]
    values = tl.load(x + place, mask=live[:, None], other=0.0).to(tl.float32)
    codes, byte = mxfp8_groups(values)
    tl.store(q + place, codes, mask=live[:, None])
    if SWIZZLED:
        # where there is no row or no group, values are zeros and so is their byte
        tl.store(scales + sf_128x4_place(row, group, GROUPS), byte.to(tl.uint8))
    else:
        tl.store(scales + row.to(tl.int64) * GROUPS + group, byte.to(tl.uint8), mask=live)


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
    rows, columns = x.shape
    groups = columns // 32
    swizzled = layout == "sf_128x4"
    stored_rows = scale_rows(rows) if swizzled else rows
    q = torch.empty(rows, columns, dtype=torch.uint8, device=x.device)
    stored_groups = triton.cdiv(groups, TILE_GROUPS) * TILE_GROUPS if swizzled else groups
    scales = torch.empty(stored_rows * stored_groups, dtype=torch.uint8, device=x.device)
    if rows:
        mxfp8_kernel[(triton.cdiv(stored_rows, ROWS), triton.cdiv(groups, TILE_GROUPS))](
            x, q, scales, rows, **launch_constants(groups, swizzled), **launch_options(torch.version.hip is not None)
        )
    return q.view(torch.float8_e4m3fn), scales


def launch_constants(groups: int, swizzled: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"GROUPS": groups, "ROWS": ROWS, "SWIZZLED": swizzled}


def launch_options(amd: bool) -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": THREADS // (64 if amd else 32), "enable_fp_fusion": False}


def prepare_mxfp8_quantize(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `mxfp8_quantize`, compiled for the site's width, dtype and layout."""
    if device.arch.vendor != "cpu":
        dtype = getattr(torch, site.dtypes.get("x", "bfloat16"))
        buffer = torch.zeros(site.axes["K"] + 1, dtype=dtype, device="cuda")
        for x in (buffer[None, :-1], buffer[None, 1:]):
            mxfp8_quantize(x, site.options.get("layout", "sf_128x4"))
    return mxfp8_quantize

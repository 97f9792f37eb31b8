"""Portable ``mhc_combine_norm_mxfp8``: the combine and its norm, and their MXFP8 in the same launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.mxfp8 import TILE_GROUPS, mxfp8_groups, sf_128x4_place
from dspark_ops_triton.blocks.norm import combine_copies, inverse_rms, round_bf16
from dspark_ops_triton.mhc import launch_options, sample_inputs
from dspark_ops_triton.quantize import scale_rows

#: Rows of padding whose scale bytes one program writes.
PADDING = 32


@triton.jit(do_not_specialize=["tokens", "x_stride", "pre_stride"], do_not_specialize_on_alignment=["pre"])
def combine_norm_mxfp8_kernel(
    x, pre, weight, y, q, scales, tokens, x_stride, pre_stride, eps,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, STRIDE_UNIT: tl.constexpr,
    PADDING: tl.constexpr,
):  # fmt: skip
    """Serve a token, or write the scale bytes of PADDING rows that are none; `x_stride` counts STRIDE_UNIT elements."""
    row = tl.program_id(0)
    group = tl.arange(0, BLOCK // 32)
    stored = group < (HIDDEN // 32 + 3) // 4 * 4
    if row < tokens:
        token = row.to(tl.int64)
        lanes = tl.arange(0, BLOCK)
        mask = lanes < HIDDEN
        start = x + token * x_stride * STRIDE_UNIT
        value = round_bf16(combine_copies(start, pre + token * pre_stride, lanes, mask, COPIES, HIDDEN))
        scaled = value * inverse_rms(value, HIDDEN, eps)
        gain = tl.load(weight + lanes, mask=mask, other=0.0).to(tl.float32)
        normed = (scaled * gain).to(tl.bfloat16)
        tl.store(y + token * HIDDEN + lanes, normed, mask=mask)
        codes, byte = mxfp8_groups(tl.reshape(normed.to(tl.float32), (BLOCK // 32, 32)))
        tl.store(q + token * HIDDEN + lanes, tl.reshape(codes, (BLOCK,)), mask=mask)
        tl.store(scales + sf_128x4_place(row, group, HIDDEN // 32), byte.to(tl.uint8), mask=stored)
    else:
        padding = (tokens + (row - tokens) * PADDING + tl.arange(0, PADDING))[:, None]
        place = scales + sf_128x4_place(padding, group[None, :], HIDDEN // 32)
        outside = (padding < (tokens + 127) // 128 * 128) & stored[None, :]
        tl.store(place, tl.zeros((PADDING, BLOCK // 32), tl.uint8), mask=outside)


def mhc_combine_norm_mxfp8(x: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised weighted sum of each token's copies, and its MXFP8 codes and scale bytes.

    Args:
        x: [T, N*H] bfloat16, last stride 1; H is divisible by 32.
        pre: [T, N] float32 or bfloat16, last stride 1.
        weight: [H] bfloat16.
        eps: added to the mean square, under the root.

    Returns:
        y [T, H] bfloat16, q [T, H] float8_e4m3fn and scales uint8 in the layout ``sf_128x4``, padding 0.

    Bytes moved: ``T * (2*N*H + 3*H) + 2*H``, and H / 32 per row, padded to 128. Launches: 1, none for no tokens.

    Source: N3.4.
    """
    tokens, copies, hidden = x.shape[0], pre.shape[1], weight.shape[0]
    y = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=x.device)
    q = torch.empty(tokens, hidden, dtype=torch.uint8, device=x.device)
    rows, groups = scale_rows(tokens), triton.cdiv(hidden // 32, TILE_GROUPS) * TILE_GROUPS
    scales = torch.empty(rows * groups, dtype=torch.uint8, device=x.device)
    if tokens:
        unit = stride_unit(x)
        combine_norm_mxfp8_kernel[(tokens + triton.cdiv(rows - tokens, PADDING),)](
            x, pre, weight, y, q, scales, tokens, x.stride(0) // unit, pre.stride(0), float(eps),
            **launch_constants(copies, hidden, unit), **launch_options(torch.version.hip is not None),
        )  # fmt: skip
    return y, q.view(torch.float8_e4m3fn), scales


def launch_constants(copies: int, hidden: int, unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch; a block holds whole tiles of groups."""
    block = max(triton.next_power_of_2(hidden), 32 * TILE_GROUPS)
    return {"COPIES": copies, "HIDDEN": hidden, "BLOCK": block, "STRIDE_UNIT": unit, "PADDING": PADDING}


def prepare_mhc_combine_norm_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `mhc_combine_norm_mxfp8`, compiled for the site's sizes and the dtype of its weights of the copies."""
    if device.arch.vendor != "cpu":
        weight = torch.zeros(site.axes["H"], dtype=torch.bfloat16, device="cuda")
        for x, pre in sample_inputs(site):
            mhc_combine_norm_mxfp8(x, pre, weight)
    return mhc_combine_norm_mxfp8

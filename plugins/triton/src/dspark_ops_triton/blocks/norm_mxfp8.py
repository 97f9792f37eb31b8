"""The combined and normalised copies of a token with their MXFP8, a token to a program; its threads are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.copy_tiles import Tiles, launch_options, sample_inputs
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.mxfp8 import TILE_GROUPS, mxfp8_groups, scale_rows, sf_128x4_place
from dspark_ops_triton.blocks.norm import combine_copies, inverse_rms, inverse_rms_of_two, round_bf16, two_blocks

#: Rows of padding whose scale bytes one program writes.
PADDING = 32


@triton.jit
def write_groups(normed, y, q, scales, row, first, HIDDEN: tl.constexpr):
    """Store bfloat16 lanes of one row, from group `first` on, with their codes and scale bytes.

    `y` and `q` point to the row's lanes. A group of padding has a scale byte, too, 0.
    """
    count: tl.constexpr = normed.shape[0] // 32
    lanes = tl.arange(0, 32 * count)
    mask = first * 32 + lanes < HIDDEN
    tl.store(y + lanes, normed, mask=mask)
    codes, byte = mxfp8_groups(tl.reshape(normed.to(tl.float32), (count, 32)))
    tl.store(q + lanes, tl.reshape(codes, (32 * count,)), mask=mask)
    group = first + tl.arange(0, count)
    place = scales + sf_128x4_place(row, group, HIDDEN // 32)
    tl.store(place, byte.to(tl.uint8), mask=group < (HIDDEN // 32 + 3) // 4 * 4)


@triton.jit(do_not_specialize=["tokens", "x_stride", "pre_stride"], do_not_specialize_on_alignment=["pre"])
def combine_norm_mxfp8_kernel(
    x, pre, weight, y, q, scales, tokens, x_stride, pre_stride, eps,
    COPIES: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, MORE: tl.constexpr, STRIDE_UNIT: tl.constexpr,
    PADDING: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Serve a token, or write the scale bytes of PADDING rows that are none; `x_stride` counts STRIDE_UNIT elements.

    The lanes of a token lie in a block of BLOCK and, unless MORE is 0, one of MORE.
    """
    begin(PDL)
    row = tl.program_id(0)
    if row < tokens:
        token = row.to(tl.int64)
        x += token * x_stride * STRIDE_UNIT
        pre += token * pre_stride
        lanes = tl.arange(0, BLOCK)
        mask = lanes < HIDDEN
        # The weight is on its way with the copies: behind the reduction it would be waited for once more.
        gain = tl.load(weight + lanes, mask=mask, other=0.0).to(tl.float32)
        y += token * HIDDEN
        q += token * HIDDEN
        if MORE:
            more = BLOCK + tl.arange(0, MORE)
            more_mask = more < HIDDEN
            more_gain = tl.load(weight + more, mask=more_mask, other=0.0).to(tl.float32)
            value = round_bf16(combine_copies(x, pre, lanes, mask, COPIES, HIDDEN))
            more_value = round_bf16(combine_copies(x, pre, more, more_mask, COPIES, HIDDEN))
            inverse = inverse_rms_of_two(value, more_value, HIDDEN, eps)
            more_normed = (more_value * inverse * more_gain).to(tl.bfloat16)
            write_groups(more_normed, y + BLOCK, q + BLOCK, scales, row, BLOCK // 32, HIDDEN)
        else:
            value = round_bf16(combine_copies(x, pre, lanes, mask, COPIES, HIDDEN))
            inverse = inverse_rms(value, HIDDEN, eps)
        write_groups((value * inverse * gain).to(tl.bfloat16), y, q, scales, row, 0, HIDDEN)
    else:
        group = tl.arange(0, (2 * BLOCK if MORE else BLOCK) // 32)
        padding = (tokens + (row - tokens) * PADDING + tl.arange(0, PADDING))[:, None]
        place = scales + sf_128x4_place(padding, group[None, :], HIDDEN // 32)
        stored = group < (HIDDEN // 32 + 3) // 4 * 4
        outside = (padding < (tokens + 127) // 128 * 128) & stored[None, :]
        tl.store(place, tl.zeros(place.shape, tl.uint8), mask=outside)


def mhc_combine_norm_mxfp8(
    tiles: Tiles, x: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, codes and scale bytes: ``mhc_combine_norm_mxfp8`` (N3.4), arguments as in its contract."""
    tokens, copies, hidden = x.shape[0], pre.shape[1], weight.shape[0]
    y = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=x.device)
    q = torch.empty(tokens, hidden, dtype=torch.uint8, device=x.device)
    rows, groups = scale_rows(tokens), triton.cdiv(hidden // 32, TILE_GROUPS) * TILE_GROUPS
    scales = torch.empty(rows * groups, dtype=torch.uint8, device=x.device)
    if tokens:
        unit = stride_unit(x)
        combine_norm_mxfp8_kernel[(tokens + triton.cdiv(rows - tokens, PADDING),)](
            x, pre, weight, y, q, scales, tokens, x.stride(0) // unit, pre.stride(0), float(eps),
            **launch_constants(tiles, copies, hidden, unit), **launch_options(tiles, torch.version.hip is not None),
        )  # fmt: skip
    return y, q.view(torch.float8_e4m3fn), scales


def launch_constants(tiles: Tiles, copies: int, hidden: int, unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch; a block holds whole tiles of groups."""
    block, more = two_blocks(hidden, 32 * TILE_GROUPS)
    return {
        "COPIES": copies, "HIDDEN": hidden, "BLOCK": block, "MORE": more, "STRIDE_UNIT": unit, "PADDING": PADDING,
        "PDL": tiles.pdl,
    }  # fmt: skip


def compile_mhc_combine_norm_mxfp8(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator once per build that a site needs."""
    weight = torch.zeros(site.axes["H"], dtype=torch.bfloat16, device="cuda")
    for x, pre in sample_inputs(site):
        call(x, pre, weight)

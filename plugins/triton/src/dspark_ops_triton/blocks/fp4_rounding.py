"""Heads whose last lanes are rotated, all lanes rounded to fp4 values, cut as data; items are heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.codes import fp4_grid_e4m3_scale, fp4_grid_ue8m0_scale
from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.rotary import join_pairs, load_turns, split_pairs, turn_plain


@triton.jit(
    do_not_specialize=["x_row", "x_head", "heads", "table"],
    do_not_specialize_on_alignment=["positions"],
)
def fake_quant_kernel(
    x, out, freqs, positions, x_row, x_head, heads, table,
    LANES: tl.constexpr, ROPE: tl.constexpr, HEADS: tl.constexpr, UNIT: tl.constexpr, INVERSE: tl.constexpr,
    GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotate and round HEADS heads of one token; strides of `x` count groups of UNIT elements.

    GROUP is 32 lanes for power-of-two scales, 16 for e4m3 ones.
    """
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row * UNIT
    begin_at((x, out, freqs, x_head, heads, table), PDL)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    here = (head < heads) & (lane < LANES)
    pair = tl.arange(0, LANES // 2)[None, :]
    turned = pair >= (LANES - ROPE) // 2
    place = row
    if positions is not None:
        place = tl.load(positions + row).to(tl.int64)
        place = tl.where((place >= 0) & (place < table), place, 0)
    turns = freqs + place * ROPE + lane - (LANES - ROPE) + 0 * head
    cosine, sine = load_turns(turns, here & (lane >= LANES - ROPE), HEADS, LANES)
    if INVERSE:
        sine = sine * -1.0
    value = tl.load(x + head * x_head * UNIT + lane, mask=here, other=0.0).to(tl.float32)
    even, odd = split_pairs(value, HEADS, LANES)
    new_even, new_odd = turn_plain(even, odd, cosine, sine)
    value = join_pairs(tl.where(turned, new_even, even), tl.where(turned, new_odd, odd), HEADS, LANES)
    groups = tl.reshape(value.to(tl.bfloat16).to(tl.float32), (HEADS * LANES // GROUP, GROUP))
    grid = fp4_grid_ue8m0_scale(groups) if GROUP == 32 else fp4_grid_e4m3_scale(groups, HEADS * LANES // GROUP, GROUP)
    target = out + (row * heads + head) * LANES + lane
    tl.store(target, tl.reshape(grid, (HEADS, LANES)).to(tl.bfloat16), mask=here)


def rope_tail_fp4_fake_quant(
    cut: Cut, x: Tensor, freqs: Tensor, positions: Tensor | None = None, inverse: bool = False, scale: str = "ue8m0_32"
) -> Tensor:
    """Return heads rotated and rounded: ``rope_tail_fp4_fake_quant`` (A2), arguments as in its contract."""
    tokens, heads, lanes = x.shape
    rope = freqs.shape[1]
    if scale not in ("ue8m0_32", "e4m3_16") or lanes < 32 or lanes & (lanes - 1) or rope > lanes:
        wanted = "scale ue8m0_32 or e4m3_16 and a power of two of lanes, 32 or more, of which some are rotated"
        raise ValueError(f"rope_tail_fp4_fake_quant: wanted {wanted}, got {scale!r}, {lanes} lanes and {rope} rotated")
    out = torch.empty(tokens, heads, lanes, dtype=torch.bfloat16, device=x.device)
    if tokens and heads:
        unit = common_stride_unit(x)
        fake_quant_kernel[(tokens, triton.cdiv(heads, cut.items))](
            x, out, freqs, positions, x.stride(0) // unit, x.stride(1) // unit, heads, freqs.shape[0],
            **launch_constants(cut, lanes, rope, unit, inverse, scale), **cut_options(cut),
        )  # fmt: skip
    return out


def launch_constants(cut: Cut, lanes: int, rope: int, unit: int, inverse: bool, scale: str) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "LANES": lanes, "ROPE": rope, "HEADS": cut.items, "UNIT": unit, "INVERSE": inverse,
        "GROUP": 32 if scale == "ue8m0_32" else 16, "PDL": cut.pdl,
    }  # fmt: skip


def compile_rope_tail_fp4_fake_quant(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `rope_tail_fp4_fake_quant`, cut somehow, once per build that a site needs."""
    axes = site.axes
    x = torch.zeros(1, axes["A"], axes["D"], dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(1, axes["P"], device="cuda")
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    for positions in (position, position.int(), None):
        for scale in ("ue8m0_32", "e4m3_16"):
            call(x, freqs, positions, scale=scale)

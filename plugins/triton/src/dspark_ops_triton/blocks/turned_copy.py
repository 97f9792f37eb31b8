"""Heads whose last lanes are rotated on their way into a buffer, cut as data; items are heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.rotary import join_pairs, load_turns, split_pairs, turn, turn_plain


@triton.jit(
    do_not_specialize=["q_row", "q_head", "out_row", "out_head", "heads"],
    do_not_specialize_on_alignment=["positions"],
)
def turned_copy_kernel(
    q, out, freqs, positions, q_row, q_head, q_lane, out_row, out_head, out_lane, heads,
    LANES: tl.constexpr, ROPE: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, UNIT: tl.constexpr,
    FUSED: tl.constexpr, INVERSE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy HEADS heads of one token, the last ROPE lanes rotated; strides of rows and heads count groups of UNIT."""
    row = tl.program_id(0).to(tl.int64)
    source, target = q + row * q_row * UNIT, out + row * out_row * UNIT
    begin_at((source, target, freqs, q_head, out_head), PDL)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, BLOCK)[None, :]
    mask = (head < heads) & (lane < LANES)
    pair = tl.arange(0, BLOCK // 2)[None, :]
    turned = (pair >= (LANES - ROPE) // 2) & (pair < LANES // 2)
    place = row
    if positions is not None:
        place = tl.load(positions + row).to(tl.int64)
    turns = freqs + place * ROPE + lane - (LANES - ROPE) + 0 * head
    cosine, sine = load_turns(turns, mask & (lane >= LANES - ROPE), HEADS, BLOCK)
    if INVERSE:
        sine = -sine
    source += head * q_head * UNIT + lane * q_lane
    even, odd = split_pairs(tl.load(source, mask=mask, other=0.0), HEADS, BLOCK)
    if FUSED:
        new_even, new_odd = turn(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
    else:
        new_even, new_odd = turn_plain(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
    # The other lanes keep their bits, those of a NaN too: they are not what comes back from float32.
    even = tl.where(turned, new_even.to(tl.bfloat16), even)
    odd = tl.where(turned, new_odd.to(tl.bfloat16), odd)
    target += head * out_head * UNIT + lane * out_lane
    tl.store(target, join_pairs(even, odd, HEADS, BLOCK), mask=mask)


def q_rope_store(cut: Cut, q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor) -> None:
    """Write rotated heads into a wider buffer: ``q_rope_store`` (N6), arguments as in its contract."""
    if out.shape[1] < q.shape[1] or out.shape[0] != q.shape[0]:
        wanted = f"out of {q.shape[0]} rows and at least {q.shape[1]} heads"
        raise ValueError(f"q_rope_store: wanted {wanted}, got {list(out.shape)}")
    _launch(cut, q, out, freqs, positions, fused=True, inverse=False)


def rope_tail_copy(
    cut: Cut, q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor | None = None, inverse: bool = False
) -> None:
    """Write heads with rotated last lanes: ``rope_tail_copy`` (A14), arguments as in its contract."""
    if out.shape != q.shape:
        raise ValueError(f"rope_tail_copy: wanted out of shape {list(q.shape)}, got {list(out.shape)}")
    _launch(cut, q, out, freqs, positions, fused=False, inverse=inverse)


def _launch(
    cut: Cut, q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor | None, fused: bool, inverse: bool
) -> None:
    tokens, heads, lanes = q.shape
    if tokens == 0 or heads == 0:
        return
    q_lane, out_lane = q.stride(2), out.stride(2)
    unit = common_stride_unit(q, out) if q_lane == out_lane == 1 else 1
    turned_copy_kernel[(tokens, triton.cdiv(heads, cut.items))](
        q, out, freqs, positions,
        q.stride(0) // unit, q.stride(1) // unit, q_lane, out.stride(0) // unit, out.stride(1) // unit, out_lane, heads,
        **launch_constants(cut, lanes, freqs.shape[1], unit, fused, inverse),
        **cut_options(cut),
    )  # fmt: skip


def launch_constants(cut: Cut, lanes: int, rope: int, unit: int, fused: bool, inverse: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    block = triton.next_power_of_2(lanes)
    return {
        "LANES": lanes, "ROPE": rope, "BLOCK": block, "HEADS": cut.items, "UNIT": unit, "FUSED": fused,
        "INVERSE": inverse, "PDL": cut.pdl,
    }  # fmt: skip


def compile_q_rope_store(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `q_rope_store`, cut somehow, once per build that a site needs."""
    for q, freqs, positions in _calls(site):
        call(q, q, freqs, positions)


def compile_rope_tail_copy(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `rope_tail_copy`, cut somehow, once per build that a site needs."""
    for q, freqs, positions in _calls(site):
        for inverse in (False, True):
            call(q, q, freqs, positions, inverse)
            call(q, q, freqs[:1], None, inverse)


def _calls(site: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return inputs of one token that need every build: lanes at 16-byte boundaries and not, int32 and int64."""
    heads, lanes, rope = site.axes["A"], site.axes["D"], site.axes["P"]
    buffer = torch.zeros(heads * lanes + 1, dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(1, rope, device="cuda")
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    return [
        (buffer[first : first + heads * lanes].view(1, heads, lanes), freqs, positions)
        for first in (0, 1)
        for positions in (position, position.int())
    ]

"""Portable ``q_rope_store`` and ``rope_tail_copy``: heads whose last lanes are rotated on their way into a buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.rotary import join_pairs, split_pairs, turn, turn_plain

#: Heads of one program, and the threads that share them: 16 bytes per thread at 512 lanes, so that the few rows of a
#: verify step still spread over many programs.
HEADS = 2
THREADS = 128


@triton.jit(
    do_not_specialize=["q_row", "q_head", "out_row", "out_head", "heads"],
    do_not_specialize_on_alignment=["freqs", "positions"],
)
def turned_copy_kernel(
    q, out, freqs, positions, q_row, q_head, q_lane, out_row, out_head, out_lane, heads,
    LANES: tl.constexpr, ROPE: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, UNIT: tl.constexpr,
    FUSED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Copy HEADS heads of one token, the last ROPE lanes rotated; strides of rows and heads count groups of UNIT."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, BLOCK)[None, :]
    mask = (head < heads) & (lane < LANES)
    pair = tl.arange(0, BLOCK // 2)[None, :]
    turned = (pair >= (LANES - ROPE) // 2) & (pair < LANES // 2)
    place = row
    if positions is not None:
        place = tl.load(positions + row).to(tl.int64)
    turns = freqs + place * ROPE + 2 * pair - (LANES - ROPE)
    cosine = tl.broadcast_to(tl.load(turns, mask=turned, other=1.0), (HEADS, BLOCK // 2))
    sine = tl.broadcast_to(tl.load(turns + 1, mask=turned, other=0.0), (HEADS, BLOCK // 2))
    if INVERSE:
        sine = -sine
    source = q + (row * q_row + head * q_head) * UNIT + lane * q_lane
    even, odd = split_pairs(tl.load(source, mask=mask, other=0.0), HEADS, BLOCK)
    if FUSED:
        new_even, new_odd = turn(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
    else:
        new_even, new_odd = turn_plain(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
    # The other lanes keep their bits, those of a NaN too: they are not what comes back from float32.
    even = tl.where(turned, new_even.to(tl.bfloat16), even)
    odd = tl.where(turned, new_odd.to(tl.bfloat16), odd)
    target = out + (row * out_row + head * out_head) * UNIT + lane * out_lane
    tl.store(target, join_pairs(even, odd, HEADS, BLOCK), mask=mask)


def q_rope_store(q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor) -> None:
    """Write the query heads, their last P lanes rotated forward, into the first A heads of a wider buffer.

    Args:
        q: [T, A, D] bfloat16, last stride 1; not modified.
        out: [T, B, D] bfloat16, B >= A, last stride 1; written at heads 0 to A - 1, others are left as they are.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64, below S.

    Raises:
        ValueError: `out` has fewer heads than `q`. Nothing is written then.

    Bytes moved: ``T * (4*A*D + 4*P)``. Launches: 1, none for no tokens.

    Source: N6.
    """
    if out.shape[1] < q.shape[1] or out.shape[0] != q.shape[0]:
        wanted = f"out of {q.shape[0]} rows and at least {q.shape[1]} heads"
        raise ValueError(f"q_rope_store: wanted {wanted}, got {list(out.shape)}")
    _launch(q, out, freqs, positions, fused=True, inverse=False)


def rope_tail_copy(
    q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor | None = None, inverse: bool = False
) -> None:
    """Write each head with its last P lanes rotated into `out`; the other lanes are copied bit for bit.

    Args:
        q: [T, A, D] bfloat16, any strides; not modified unless it is `out` itself.
        out: [T, A, D] bfloat16, any strides. It is `q` or apart from it.
        freqs: [S, P] float32 interleaved, the table; [T, P], a row per token, without positions.
        positions: [T] int32 or int64, below S, or None.
        inverse: rotate backward.

    Raises:
        ValueError: `out` has another shape than `q`. Nothing is written then.

    Bytes moved: ``T * (4*A*D + 4*P)``. Launches: 1, none for no tokens.

    Source: A14.
    """
    if out.shape != q.shape:
        raise ValueError(f"rope_tail_copy: wanted out of shape {list(q.shape)}, got {list(out.shape)}")
    _launch(q, out, freqs, positions, fused=False, inverse=inverse)


def _launch(q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor | None, fused: bool, inverse: bool) -> None:
    tokens, heads, lanes = q.shape
    if tokens == 0 or heads == 0:
        return
    q_lane, out_lane = q.stride(2), out.stride(2)
    unit = common_stride_unit(q, out) if q_lane == out_lane == 1 else 1
    turned_copy_kernel[(tokens, triton.cdiv(heads, HEADS))](
        q, out, freqs, positions,
        q.stride(0) // unit, q.stride(1) // unit, q_lane, out.stride(0) // unit, out.stride(1) // unit, out_lane, heads,
        **launch_constants(lanes, freqs.shape[1], unit, fused, inverse),
        **launch_options(torch.version.hip is not None),
    )  # fmt: skip


def launch_constants(lanes: int, rope: int, unit: int, fused: bool, inverse: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    block = triton.next_power_of_2(lanes)
    return {
        "LANES": lanes, "ROPE": rope, "BLOCK": block, "HEADS": HEADS, "UNIT": unit, "FUSED": fused, "INVERSE": inverse,
    }  # fmt: skip


def launch_options(amd: bool) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": THREADS // (64 if amd else 32), "enable_fp_fusion": False}


def prepare_q_rope_store(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `q_rope_store`, compiled for the site's sizes and both dtypes of positions.

    Compiled are heads at 16-byte boundaries in both tensors and in none; a mixture is compiled at its first call.
    """
    if device.arch.vendor != "cpu":
        for q, freqs, positions in _calls(site):
            q_rope_store(q, q, freqs, positions)
    return q_rope_store


def prepare_rope_tail_copy(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `rope_tail_copy`, compiled for the site's sizes, both directions, and positions of either dtype or none.

    Heads whose lanes are not adjacent, or that begin at 16-byte boundaries in one tensor only, are compiled at their
    first call.
    """
    if device.arch.vendor != "cpu":
        for q, freqs, positions in _calls(site):
            for inverse in (False, True):
                rope_tail_copy(q, q, freqs, positions, inverse)
                rope_tail_copy(q, q, freqs[:1], None, inverse)
    return rope_tail_copy


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


__all__ = [
    "launch_constants",
    "launch_options",
    "prepare_q_rope_store",
    "prepare_rope_tail_copy",
    "q_rope_store",
    "rope_tail_copy",
    "turned_copy_kernel",
]

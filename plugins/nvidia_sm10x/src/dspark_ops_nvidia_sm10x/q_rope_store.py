"""``q_rope_store`` for SM100 and SM103: plain lanes as bytes, the rotated ones apart, set up while the product runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.alignment import common_stride_unit
from dspark_ops_triton.blocks.dependent import begin, has_pdl
from dspark_ops_triton.blocks.launching import RowTiles, bind_launch, row_options
from dspark_ops_triton.blocks.rotary import join_pairs, split_pairs, turn

#: Heads of one program: at 512 lanes each of 128 threads copies 16 bytes. 6 rows of 16 heads are then 48 programs.
HEADS = 2
TILES = RowTiles(warps=4)


@triton.jit(
    do_not_specialize=["q_row", "q_head", "out_row", "out_head", "heads"],
    do_not_specialize_on_alignment=["freqs", "positions"],
)
def heads_kernel(
    q, out, freqs, positions, q_row, q_head, out_row, out_head, heads,
    PLAIN: tl.constexpr, ROPE: tl.constexpr, BLOCK: tl.constexpr, TURNED: tl.constexpr, HEADS: tl.constexpr,
    UNIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy PLAIN lanes of HEADS heads of one token and rotate the ROPE behind them; strides count groups of UNIT."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    # The position is asked for first: the table's row waits for it, and the heads for nothing.
    place = tl.load(positions + row).to(tl.int64)
    source = q + (row * q_row + head * q_head) * UNIT
    target = out + (row * out_row + head * out_head) * UNIT
    lane, last = tl.arange(0, BLOCK)[None, :], tl.arange(0, TURNED)[None, :]
    copied = (head < heads) & (lane < PLAIN)
    turned = (head < heads) & (last < ROPE)
    plain = tl.load(source + lane, mask=copied, other=0.0)
    tail = tl.load(source + PLAIN + last, mask=turned, other=0.0)
    pair = tl.arange(0, TURNED // 2)[None, :]
    turns = freqs + place * ROPE + 2 * pair
    cosine = tl.load(turns, mask=2 * pair < ROPE, other=1.0)
    sine = tl.load(turns + 1, mask=2 * pair < ROPE, other=0.0)
    tl.store(target + lane, plain, mask=copied)
    even, odd = split_pairs(tail, HEADS, TURNED)
    cosine = tl.broadcast_to(cosine, (HEADS, TURNED // 2))
    sine = tl.broadcast_to(sine, (HEADS, TURNED // 2))
    new_even, new_odd = turn(even.to(tl.float32), odd.to(tl.float32), cosine, sine)
    rotated = join_pairs(new_even.to(tl.bfloat16), new_odd.to(tl.bfloat16), HEADS, TURNED)
    tl.store(target + PLAIN + last, rotated, mask=turned)


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
    _store(TILES, q, out, freqs, positions)


def _store(tiles: RowTiles, q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor) -> None:
    rows, heads, lanes = q.shape
    if out.shape[1] < heads or out.shape[0] != rows:
        raise ValueError(f"q_rope_store: wanted out of {rows} rows and at least {heads} heads, got {list(out.shape)}")
    if rows:
        unit = common_stride_unit(q, out)
        heads_kernel[(rows, triton.cdiv(heads, HEADS))](
            q, out, freqs, positions, q.stride(0) // unit, q.stride(1) // unit, out.stride(0) // unit,
            out.stride(1) // unit, heads, **launch_constants(tiles, lanes, freqs.shape[1], unit), **row_options(tiles),
        )  # fmt: skip


def launch_constants(tiles: RowTiles, lanes: int, rope: int, unit: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "PLAIN": lanes - rope, "ROPE": rope, "BLOCK": triton.next_power_of_2(max(lanes - rope, 1)),
        "TURNED": triton.next_power_of_2(rope), "HEADS": HEADS, "UNIT": unit, "PDL": tiles.pdl,
    }  # fmt: skip


def prepare_q_rope_store(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `q_rope_store`, compiled for the site's heads, both dtypes of positions, and heads on 16 bytes or not."""
    if device.arch.vendor == "cpu":
        return q_rope_store
    bound = bind_launch(_store, RowTiles(TILES.warps, has_pdl(device)), q_rope_store)
    heads, lanes, rope = (site.axes[name] for name in ("A", "D", "P"))
    buffer = torch.zeros(heads * lanes + 1, dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(1, rope, device="cuda")
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    for first in (0, 1):
        q = buffer[first : first + heads * lanes].view(1, heads, lanes)
        for positions in (position, position.int()):
            bound(q, torch.empty_like(q), freqs, positions)
    return bound


__all__ = ["TILES", "heads_kernel", "launch_constants", "prepare_q_rope_store", "q_rope_store"]

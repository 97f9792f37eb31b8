"""Portable ``argmax_vocab_parallel``: the token of each row from the best values of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.ordering import ordered_bits

BLOCK = 128
WARPS = 1
NO_INDEX = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit(do_not_specialize=["parts", "rows"], do_not_specialize_on_alignment=["pairs", "out"])
def pairs_kernel(pairs, out, parts, rows, BLOCK: tl.constexpr):
    """Write the token of BLOCK rows: of the pairs with the largest value, or that are NaN, the lowest index."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    best = tl.full((BLOCK,), -(2**31), tl.int32)  # below every value
    first = tl.full((BLOCK,), NO_INDEX, tl.int64)
    start = rows.to(tl.int64) * 0
    for _ in range(parts):
        pair = pairs + start + row
        bits = tl.load(pair, mask=live, other=0).to(tl.int32)
        index = tl.load(pair + rows.to(tl.int64), mask=live, other=0)
        value = bits.to(tl.float32, bitcast=True)
        key = ordered_bits(tl.where(value == 0.0, 0.0, value))
        key = tl.where(value != value, 0x7FFFFFFF, key)
        better = (key > best) | ((key == best) & (index < first))
        best = tl.where(better, key, best)
        first = tl.where(better, index, first)
        start += 2 * rows
    tl.store(out + row, tl.where(first == NO_INDEX, 0, first), mask=live)


def argmax_vocab_parallel(pairs: Tensor) -> Tensor:
    """Return the token id of each row from the pairs of all ranks.

    Args:
        pairs: [P, 2, R] int64, contiguous, what `argmax_vocab_parallel_local` gave on each rank, in any order.

    Returns:
        [R] int64. 0 if no rank had a valid column.

    Bytes moved: 16 per row and rank, 8 per row out. Launches: 1, none for no rows.

    Source: A11.
    """
    parts, _, rows = pairs.shape
    out = torch.empty(rows, dtype=torch.int64, device=pairs.device)
    if rows:
        pairs_kernel[(triton.cdiv(rows, BLOCK),)](pairs, out, parts, rows, BLOCK=BLOCK, **launch_options())
    return out


def launch_options() -> dict[str, Any]:
    """Return the compiler options of a launch."""
    return {"num_warps": WARPS, "enable_fp_fusion": False}


def prepare_argmax_vocab_parallel(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `argmax_vocab_parallel`, compiled."""
    if device.arch.vendor != "cpu":
        argmax_vocab_parallel(torch.zeros(1, 2, 1, dtype=torch.int64, device="cuda"))
    return argmax_vocab_parallel

"""The token of each row from the best values of all ranks, cut as data; items are rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.ordering import ordered_bits

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


def argmax_vocab_parallel(cut: Cut, pairs: Tensor) -> Tensor:
    """Return the token of each row: ``argmax_vocab_parallel`` (A11), arguments as in its contract."""
    parts, _, rows = pairs.shape
    out = torch.empty(rows, dtype=torch.int64, device=pairs.device)
    if rows:
        pairs_kernel[(triton.cdiv(rows, cut.items),)](pairs, out, parts, rows, BLOCK=cut.items, **cut_options(cut))
    return out


def compile_argmax_vocab_parallel(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `argmax_vocab_parallel`, cut somehow, once per build that a site needs."""
    call(torch.zeros(1, 2, 1, dtype=torch.int64, device="cuda"))

"""The token of each row from the best values of all ranks, cut as data; items are rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.ordering import ordered_bits

NO_INDEX = tl.constexpr(0x7FFFFFFFFFFFFFFF)
#: Ranks whose pairs are on their way at a time.
PARTS_AT_ONCE = tl.constexpr(8)


@triton.jit(do_not_specialize=["parts", "rows"], do_not_specialize_on_alignment=["pairs", "out"])
def pairs_kernel(pairs, out, parts, rows, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Write the token of BLOCK rows: of the pairs with the largest value, or that are NaN, the lowest index."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    begin_at((pairs, out, parts, rows), PDL)
    best = tl.full((BLOCK,), -(2**31), tl.int32)  # below every value
    first = tl.full((BLOCK,), NO_INDEX, tl.int64)
    step = rows.to(tl.int64)
    for part in range(0, parts, PARTS_AT_ONCE):
        found = ()
        for further in tl.static_range(PARTS_AT_ONCE):
            pair = pairs + (part + further) * 2 * step + row
            there = live & (part + further + 0 * row < parts)
            bits = tl.load(pair, mask=there, other=0).to(tl.int32)
            found = found + ((bits, tl.load(pair + step, mask=there, other=0)),)  # noqa: RUF005
        for further in tl.static_range(PARTS_AT_ONCE):
            bits, index = found[further]
            value = bits.to(tl.float32, bitcast=True)
            key = ordered_bits(tl.where(value == 0.0, 0.0, value))
            key = tl.where(value != value, 0x7FFFFFFF, key)
            better = (part + further + 0 * row < parts) & ((key > best) | ((key == best) & (index < first)))
            best = tl.where(better, key, best)
            first = tl.where(better, index, first)
    tl.store(out + row, tl.where(first == NO_INDEX, 0, first), mask=live)


def argmax_vocab_parallel(cut: Cut, pairs: Tensor) -> Tensor:
    """Return the token of each row: ``argmax_vocab_parallel`` (A11), arguments as in its contract."""
    parts, _, rows = pairs.shape
    out = torch.empty(rows, dtype=torch.int64, device=pairs.device)
    if rows:
        pairs_kernel[(triton.cdiv(rows, cut.items),)](
            pairs, out, parts, rows, **launch_constants(cut), **cut_options(cut)
        )
    return out


def launch_constants(cut: Cut) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"BLOCK": cut.items, "PDL": cut.pdl}


def compile_argmax_vocab_parallel(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `argmax_vocab_parallel`, cut somehow, once per build that a site needs."""
    call(torch.zeros(1, 2, 1, dtype=torch.int64, device="cuda"))

"""How many blocks rows have and how long their packed candidates are, cut as data; items are rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent_stages import begin_at


@triton.jit(do_not_specialize=["rows", "topk_blocks"], do_not_specialize_on_alignment=["seq_lens"])
def lengths_kernel(
    seq_lens, block_lens, compact_lens, page_table, rows, topk_blocks,
    ENTRIES: tl.constexpr, EXACT_TAIL: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the block counts and packed lengths of BLOCK rows, for blocks of ENTRIES.

    ENTRIES is known when the kernel is built: a division by a number that is not takes a tenth of the launch.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    begin_at((seq_lens, block_lens, compact_lens, page_table, rows), PDL)
    length = tl.load(seq_lens + row, mask=live, other=0)
    # From the last entry: adding ENTRIES - 1 first would pass 2**31 for the longest rows.
    last = tl.maximum(length, 1) - 1
    blocks = tl.where(length > 0, last // ENTRIES + 1, 0)
    compact = tl.minimum(blocks, topk_blocks) * ENTRIES
    if EXACT_TAIL:
        compact = tl.where(length > 0, compact - (ENTRIES - 1) + last % ENTRIES, 0)
    tl.store(block_lens + row, blocks, mask=live)
    tl.store(compact_lens + row, compact, mask=live)
    tl.store(page_table + row, tl.zeros((BLOCK,), tl.int32), mask=live)


def candidate_lengths(
    cut: Cut, seq_lens: Tensor, topk_blocks: int = 2048, block_size: int = 8, exact_tail: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, lengths and a page table: ``candidate_lengths`` (A15), arguments as in its contract."""
    if topk_blocks < 1 or block_size < 1:
        got = f"{topk_blocks} and {block_size}"
        raise ValueError(f"candidate_lengths: wanted positive topk_blocks and block_size, got {got}")
    rows = seq_lens.shape[0]
    block_lens, compact_lens = (torch.empty(rows, dtype=torch.int32, device=seq_lens.device) for _ in range(2))
    page_table = torch.empty(rows, 1, dtype=torch.int32, device=seq_lens.device)
    if rows:
        lengths_kernel[(triton.cdiv(rows, cut.items),)](
            seq_lens, block_lens, compact_lens, page_table, rows, topk_blocks,
            **launch_constants(cut, block_size, exact_tail), **cut_options(cut),
        )  # fmt: skip
    return block_lens, compact_lens, page_table


def launch_constants(cut: Cut, block_size: int, exact_tail: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"ENTRIES": block_size, "EXACT_TAIL": exact_tail, "BLOCK": cut.items, "PDL": cut.pdl}


def compile_candidate_lengths(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `candidate_lengths`, cut somehow, once per build that a site needs: for its options, either tail."""
    lengths = torch.zeros(1, dtype=torch.int32, device="cuda")
    for exact_tail in (False, True):
        call(lengths, **{"exact_tail": exact_tail, **site.options})

"""Portable ``argmax_vocab_parallel``: the token of each row from the best values of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks import rank_pairs
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: A row per thread.
CUT = Cut(items=32, warps=1)


def argmax_vocab_parallel(pairs: Tensor) -> Tensor:
    """Return the token id of each row from the pairs of all ranks.

    Args:
        pairs: [P, 2, R] int64, contiguous, what `argmax_vocab_parallel_local` gave on each rank, in any order.

    Returns:
        [R] int64. 0 if no rank had a valid column.

    Bytes moved: 16 per row and rank, 8 per row out. Launches: 1, none for no rows.

    Source: A11.
    """
    return rank_pairs.argmax_vocab_parallel(CUT, pairs)


def prepare_argmax_vocab_parallel(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `argmax_vocab_parallel`, compiled."""
    compiled = rank_pairs.compile_argmax_vocab_parallel
    return prepare_cut(rank_pairs.argmax_vocab_parallel, CUT, argmax_vocab_parallel, compiled, device, site, rows)

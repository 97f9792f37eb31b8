"""Portable ``index_q_rope_fp4_pack``: the indexer's queries rotated, rounded and packed, with their head weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import index_query
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: Heads of a program and the warps that share them: 8 bytes per thread at 128 lanes, 16 on AMD.
CUT, AMD_CUT = Cut(items=4, warps=4), Cut(items=4, warps=1)


def index_q_rope_fp4_pack(
    q: Tensor, freqs: Tensor, positions: Tensor, partials: Tensor | None = None, weight_scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the indexer's queries, rotated, rounded to fp4 and packed; their scale bytes; and its head weights.

    Args:
        q: [T, A, D] bfloat16, last stride 1; A is 16, 32, 48 or 64; D is 32, 64, 96 or 128; finite.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64. One that is negative or not below S counts as 0.
        partials: [Z, T, A] float32, contiguous, partial sums of the head weights, added in their order; None for none.
        weight_scale: factor of the head weights.

    Returns:
        q_fp4 [T, A, D / 2] uint8, even lanes in the low nibble; q_scale [T, 1, D / 32, 16, 4] uint8, the byte of head h
        at [h % 16, h // 16], 0 where there is no such head; weights [T, A] bfloat16, or None.

    Raises:
        ValueError: another number of heads or lanes, or more rotated lanes than lanes.

    Bytes moved: ``T * (2.5*A*D + 2*D + 4*P)``, and ``T * A * (4*Z + 2)`` for the weights. Launches: 1, none for no
    tokens.

    Source: A2.
    """
    cut = AMD_CUT if torch.version.hip else CUT
    return index_query.index_q_rope_fp4_pack(cut, q, freqs, positions, partials, weight_scale)


def prepare_index_q_rope_fp4_pack(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Any]:
    """Return `index_q_rope_fp4_pack`, compiled for the site's sizes, positions of both dtypes, with weights or not.

    Rows or a table that do not begin at 16-byte boundaries are compiled at their first call.
    """
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    compiled = index_query.compile_index_q_rope_fp4_pack
    return prepare_cut(index_query.index_q_rope_fp4_pack, cut, index_q_rope_fp4_pack, compiled, device, site, rows)


__all__ = ["index_q_rope_fp4_pack", "prepare_index_q_rope_fp4_pack"]

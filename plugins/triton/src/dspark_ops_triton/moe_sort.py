"""Portable ``moe_sort`` for the rows of a decode step: one launch, sorted by counting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import route_sort
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: Pairs that a program places, and the warps that compare them with all others.
CUT, AMD_CUT = Cut(items=8, warps=4), Cut(items=16, warps=8)


def moe_sort(
    topk_ids: Tensor,
    topk_weights: Tensor,
    experts: int,
    model_dim: int,
    block_size: int = 32,
    buffer_dtype: str = "bfloat16",
    accumulate: bool = False,
    expert_mask: Tensor | None = None,
    num_valid: Tensor | None = None,
    dedupe: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the routed pairs grouped by expert, each group padded to whole blocks, and the buffer of their sum.

    Args:
        topk_ids: [M, K] int32, contiguous; at most `LIMIT` pairs. Ids outside 0 to `experts` - 1 take no part.
        topk_weights: [M, K] float32, contiguous.
        experts: experts of all ranks.
        model_dim: columns of the buffer; its rows are whole 16 bytes.
        block_size: entries per block.
        buffer_dtype: ``bfloat16``, ``float16`` or ``float32``.
        accumulate: the GEMM adds into the buffer, so it must be zero.
        expert_mask: [experts] int32, not 0 for the experts of this rank; None: all.
        num_valid: [1] int32; rows from it on have no pairs. None: all rows are live.
        dedupe: of several slots with one expert in a row keep the highest only.

    Returns:
        sorted_ids [L] int32, sorted_weights [L] float32, sorted_expert_ids [ceil(L / block_size)] int32, num_valid_ids
        [2] int32, moe_buf [M, model_dim] zeros or [0, 0]; L = M*K + experts*block_size - K.

    Raises:
        ValueError: a size that the words, the buffer or the program cannot hold.

    Bytes moved: 16 per pair, 8 per entry, and the buffer once. Launches: 1, one that sets counts to 0 for no rows.

    Source: A4; choice 8 of the index.
    """
    return route_sort.moe_sort(
        AMD_CUT if torch.version.hip else CUT,
        topk_ids,
        topk_weights,
        experts,
        model_dim,
        block_size,
        buffer_dtype,
        accumulate,
        expert_mask,
        num_valid,
        dedupe,
    )


def prepare_moe_sort(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `moe_sort`, compiled for the planned rows in the site's form, with and without a mask and a row count.

    The site's options decide all else: a call with others is compiled when it comes, which must not be in a graph.
    """
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    return prepare_cut(route_sort.moe_sort, cut, moe_sort, route_sort.compile_moe_sort, device, site, rows)

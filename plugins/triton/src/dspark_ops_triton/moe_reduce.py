"""Portable ``moe_local_reduce``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import route_reduce
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: A decode step's rows fill a device by small blocks: 4 columns per thread, 8 on AMD, 16 bytes of a 16-bit dtype.
CUT, AMD_CUT = Cut(items=256, warps=2), Cut(items=512, warps=1)


def moe_local_reduce(
    route_out: Tensor,
    topk_ids: Tensor,
    expert_mask: Tensor,
    scale: float = 1.5,
    topk_weights: Tensor | None = None,
    shared: Tensor | None = None,
    rounding: str = "stepwise",
) -> Tensor:
    """Return each token's sum over the slots whose expert this rank holds, times `scale`, plus its `shared` row.

    Args:
        route_out: [M, K, D] bfloat16, float16 or float32, contiguous; what is in a remote slot is not read.
        topk_ids: [M, K] int32, contiguous, K up to `MOST_CHOSEN`; ids outside 0 to E - 1 are no expert.
        expert_mask: [E] int32, contiguous, not 0 for the experts of this rank.
        scale: the model's routed scaling.
        topk_weights: [M, K] float32, contiguous, weights that the GEMM has not applied.
        shared: [M, D] of `route_out`'s dtype, contiguous.
        rounding: ``stepwise`` rounds to the dtype after the sum, the product and the addition, ``once`` at the end.

    Returns:
        [M, D] of `route_out`'s dtype.

    Raises:
        ValueError: unknown rounding, or no or too many slots.

    Bytes moved: the held slots, the shared row and the result, once each. Launches: 1, none for no rows.

    Source: A5.
    """
    return route_reduce.moe_local_reduce(
        AMD_CUT if torch.version.hip else CUT, route_out, topk_ids, expert_mask, scale, topk_weights, shared, rounding
    )


def prepare_moe_local_reduce(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `moe_local_reduce`, compiled for the site's sizes, dtype and options, with each optional tensor or not."""
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    compiled = route_reduce.compile_moe_local_reduce
    return prepare_cut(route_reduce.moe_local_reduce, cut, moe_local_reduce, compiled, device, site, rows)

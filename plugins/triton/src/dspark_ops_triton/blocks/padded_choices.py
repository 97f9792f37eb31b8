"""Ids and weights of padded rows, overwritten in one launch, cut as data; items are choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options


@triton.jit(
    do_not_specialize=["count", "top_k", "id_stride", "weight_stride", "pad_id"],
    do_not_specialize_on_alignment=["ids", "weights", "num_valid"],
)
def fill_kernel(ids, weights, num_valid, count, top_k, id_stride, weight_stride, pad_id, BLOCK: tl.constexpr):
    """Overwrite those of BLOCK choices that lie in padded rows."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, slot = place // top_k, place % top_k
    padded = (place < count) & (row >= tl.load(num_valid))
    pad = (tl.zeros((BLOCK,), tl.int32) + pad_id).to(ids.dtype.element_ty)
    tl.store(ids + row * id_stride + slot, pad, mask=padded)
    tl.store(weights + row * weight_stride + slot, tl.zeros((BLOCK,), tl.float32), mask=padded)


def fill_padded_topk(cut: Cut, ids: Tensor, weights: Tensor, num_valid: Tensor, pad_id: int = -1) -> None:
    """Overwrite padded rows: ``fill_padded_topk`` (A6), arguments as in its contract."""
    count = ids.numel()
    if count:
        fill_kernel[(triton.cdiv(count, cut.items),)](
            ids, weights, num_valid, count, ids.shape[1], ids.stride(0), weights.stride(0), pad_id,
            BLOCK=cut.items, **cut_options(cut),
        )  # fmt: skip


def compile_fill_padded_topk(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `fill_padded_topk`, cut somehow, once per build that a site needs."""
    weights = torch.zeros(1, 1, device="cuda")
    for ids in (weights.int(), weights.long()):
        for count in (weights[0].int(), weights[0].long()):
            call(ids, weights, count)

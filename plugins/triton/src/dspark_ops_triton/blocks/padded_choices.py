"""Ids and weights of padded rows, overwritten in one launch, cut as data; items are rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent_stages import begin_at


@triton.jit(
    do_not_specialize=["rows", "top_k", "id_stride", "weight_stride", "pad_id"],
    do_not_specialize_on_alignment=["ids", "weights", "num_valid"],
)
def fill_kernel(
    ids, weights, num_valid, rows, top_k, id_stride, weight_stride, pad_id,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Overwrite those of ROWS rows that are padding; SLOTS is a power of two of at least the `top_k` choices of a row.

    A place is found by its row and slot, not by its number: dividing that by `top_k` would take longer than the rest.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    begin_at((ids, weights, num_valid, rows, top_k, id_stride), PDL)
    slot = tl.arange(0, SLOTS)[None, :]
    padded = (row < rows) & (row >= tl.load(num_valid)) & (slot < top_k)
    pad = (tl.zeros((ROWS, SLOTS), tl.int32) + pad_id).to(ids.dtype.element_ty)
    tl.store(ids + row * id_stride + slot, pad, mask=padded)
    tl.store(weights + row * weight_stride + slot, tl.zeros((ROWS, SLOTS), tl.float32), mask=padded)


def fill_padded_topk(cut: Cut, ids: Tensor, weights: Tensor, num_valid: Tensor, pad_id: int = -1) -> None:
    """Overwrite padded rows: ``fill_padded_topk`` (A6), arguments as in its contract."""
    rows, top_k = ids.shape
    if rows and top_k:
        fill_kernel[(triton.cdiv(rows, cut.items),)](
            ids, weights, num_valid, rows, top_k, ids.stride(0), weights.stride(0), pad_id,
            **launch_constants(cut, top_k), **cut_options(cut),
        )  # fmt: skip


def launch_constants(cut: Cut, top_k: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"ROWS": cut.items, "SLOTS": max(8, triton.next_power_of_2(top_k)), "PDL": cut.pdl}


def compile_fill_padded_topk(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `fill_padded_topk`, cut somehow, once per build that a site needs."""
    weights = torch.zeros(1, site.axes["K"], device="cuda")
    for ids in (weights.int(), weights.long()):
        for count in (weights[0, :1].int(), weights[0, :1].long()):
            call(ids, weights, count)

"""Portable ``moe_gate_hash`` and ``fill_padded_topk``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks import padded_choices
from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.elementary import exp_rounded, log1p_rounded

#: Choices of a row that one warp takes.
MOST_CHOSEN = 64
HASH_CUT = Cut(items=1, warps=1)
#: Rows of a program.
FILL_CUT = Cut(items=32, warps=4)


@triton.jit(
    do_not_specialize=["row_stride", "column_stride", "tokens", "top_k", "pad_id"],
    do_not_specialize_on_alignment=["logits", "input_ids", "table", "num_valid", "weights", "ids"],
)
def hash_kernel(
    logits, input_ids, table, num_valid, weights, ids, row_stride, column_stride, tokens, top_k, renorm_eps, pad_id,
    SLOTS: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Look up the experts of one row's token, and divide their scores by the sum of these."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(input_ids + row).to(tl.int64)
    live = (token >= 0) & (token < tokens)
    if PADDED:
        live = live & (row < tl.load(num_valid))
    slot = tl.arange(0, SLOTS)
    chosen = slot < top_k
    known = slot < tl.where(live, top_k, 0)
    expert = tl.load(table + tl.where(live, token, 0) * top_k + slot, mask=known, other=0)
    x = tl.load(logits + row * row_stride + expert.to(tl.int64) * column_stride, mask=known, other=0.0).to(tl.float32)
    # a comparison and not a maximum: a NaN stays
    score = tl.sqrt_rn(tl.where(x < 0, 0.0, x) + log1p_rounded(exp_rounded(tl.abs(x) * -1.0)))
    total = tl.sum(tl.where(known, score, 0.0), axis=0) + renorm_eps
    weight = tl.div_rn(score, total.broadcast_to(score.shape))
    tl.store(weights + row * top_k + slot, tl.where(known, weight, 0.0), mask=chosen)
    tl.store(ids + row * top_k + slot, tl.where(known, expert, pad_id), mask=chosen)


def moe_gate_hash(
    logits: Tensor,
    input_ids: Tensor,
    table: Tensor,
    renorm_eps: float = 1e-20,
    pad_id: int = -1,
    num_valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the experts that a table holds for each token, weighted by the router's scores.

    Args:
        logits: [M, E] float32, bfloat16 or float16, any strides.
        input_ids: [M] int64 or int32, contiguous. A token outside the table is padding; the table is not read for it.
        table: [V, K] int32, contiguous, the experts (0 to E - 1) of each token; K up to `MOST_CHOSEN`.
        renorm_eps: added to the sum.
        pad_id: id given to padded rows; their weights are 0.
        num_valid: [1] int32; rows from it on are padding, too.

    Returns:
        weights [M, K] float32 and ids [M, K] int32, in the order of the table.

    Raises:
        ValueError: no or too many choices per token.

    Bytes moved: 12 and a gathered logit per choice. Launches: 1, none for no rows.

    Source: N2, C5.4.
    """
    return _hash(HASH_CUT, logits, input_ids, table, renorm_eps, pad_id, num_valid)


def _hash(
    cut: Cut, logits: Tensor, input_ids: Tensor, table: Tensor, renorm_eps: float = 1e-20, pad_id: int = -1,
    num_valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rows, top_k = input_ids.shape[0], table.shape[1]
    if not 1 <= top_k <= MOST_CHOSEN:
        raise ValueError(f"moe_gate_hash: wanted a table of 1 to {MOST_CHOSEN} experts per token, got {top_k}")
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    if rows:
        hash_kernel[(rows,)](
            logits, input_ids, table, ids if num_valid is None else num_valid, weights, ids,
            logits.stride(0), logits.stride(1), table.shape[0], top_k, float(renorm_eps), pad_id,
            **hash_constants(cut, top_k, num_valid is not None), **cut_options(cut),
        )  # fmt: skip
    return weights, ids


def fill_padded_topk(ids: Tensor, weights: Tensor, num_valid: Tensor, pad_id: int = -1) -> None:
    """Overwrite padded rows: every id becomes `pad_id`, every weight 0, whatever the row held.

    Args:
        ids: [M, K] int32 or int64, last stride 1; written.
        weights: [M, K] float32, last stride 1; written.
        num_valid: [1] int32 or int64; rows from it on are padding.
        pad_id: id of padded rows.

    Bytes moved: 8 or 12 per padded choice. Launches: 1, none for no choices.

    Source: A6.
    """
    padded_choices.fill_padded_topk(FILL_CUT, ids, weights, num_valid, pad_id)


def hash_constants(cut: Cut, top_k: int, padded: bool) -> dict[str, Any]:
    """Return the compile-time arguments of `moe_gate_hash`."""
    return {"SLOTS": max(8, triton.next_power_of_2(top_k)), "PADDED": padded, "PDL": cut.pdl}


def prepare_moe_gate_hash(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `moe_gate_hash`, compiled for the site's choices and logits, with and without a count of rows."""
    return prepare_cut(_hash, HASH_CUT, moe_gate_hash, _compile_hash, device, site, rows)


def _compile_hash(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    logits = torch.zeros(1, 1, dtype=getattr(torch, site.dtypes.get("logits", "float32")), device="cuda")
    tokens = torch.zeros(1, dtype=getattr(torch, site.dtypes.get("input_ids", "int64")), device="cuda")
    table = torch.zeros(1, site.axes["K"], dtype=torch.int32, device="cuda")
    for count in (None, torch.ones(1, dtype=torch.int32, device="cuda")):
        call(logits, tokens, table, num_valid=count)


def prepare_fill_padded_topk(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `fill_padded_topk`, compiled for ids and counts of both dtypes."""
    compiled = padded_choices.compile_fill_padded_topk
    return prepare_cut(padded_choices.fill_padded_topk, FILL_CUT, fill_padded_topk, compiled, device, site, rows)

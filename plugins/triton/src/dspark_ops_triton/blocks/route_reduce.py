"""The sum of a token's routes on this rank, cut as data; items are columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.hyper import load_weights

#: Slots of a row whose loads are all in flight at once.
MOST_CHOSEN = 16


@triton.jit
def held_slots(route_out, ids, expert_mask, experts, row, lanes, TOP: tl.constexpr, COLUMNS: tl.constexpr):
    """Return which of a row's TOP slots belong to this rank, and lanes of those slots' routes: two tuples.

    Loads of one kind come together, so that a row waits three times and not three times per slot.
    """
    experts_of = load_weights(ids, TOP)
    held = ()
    for slot in tl.static_range(TOP):
        known = (experts_of[slot] >= 0) & (experts_of[slot] < experts)
        place = tl.where(known, experts_of[slot], 0)
        held = held + (tl.load(expert_mask + place, mask=known, other=0) != 0,)  # noqa: RUF005
    values = ()
    for slot in tl.static_range(TOP):
        there = lanes < tl.where(held[slot], COLUMNS, 0)
        source = route_out + (row * TOP + slot) * COLUMNS + lanes
        values = values + (tl.load(source, mask=there, other=0.0),)  # noqa: RUF005
    return held, values


@triton.jit(
    do_not_specialize=["experts", "scale"],
    do_not_specialize_on_alignment=["topk_ids", "expert_mask", "topk_weights"],
)
def reduce_kernel(
    route_out, topk_ids, expert_mask, topk_weights, shared, out, experts, scale,
    TOP: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr, SHARED: tl.constexpr, SCALED: tl.constexpr,
    ONCE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sum BLOCK columns of one row over its slots; a slot of a remote expert is not read."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < COLUMNS
    kind = out.dtype.element_ty
    held, values = held_slots(route_out, topk_ids + row * TOP, expert_mask, experts, row, lanes, TOP, COLUMNS)
    if WEIGHTED:
        weights = load_weights(topk_weights + row * TOP, TOP)
    if SHARED:
        own = tl.load(shared + row * COLUMNS + lanes, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(TOP):
        value = values[slot].to(tl.float32)
        if WEIGHTED:
            value = value * weights[slot]
        # A choice: a weight that is no number would let a remote slot through.
        total = tl.where(held[slot], total + value, total)
    if ONCE:
        total = total * scale
    else:
        total = total.to(kind).to(tl.float32)
        if SCALED:
            total = (total * scale).to(kind).to(tl.float32)
    if SHARED:
        total = total + own
    tl.store(out + row * COLUMNS + lanes, total.to(kind), mask=inside)


def moe_local_reduce(
    cut: Cut,
    route_out: Tensor,
    topk_ids: Tensor,
    expert_mask: Tensor,
    scale: float = 1.5,
    topk_weights: Tensor | None = None,
    shared: Tensor | None = None,
    rounding: str = "stepwise",
) -> Tensor:
    """Return each token's sum over its held slots: ``moe_local_reduce`` (A5), arguments as in its contract."""
    rows, top_k, columns = route_out.shape
    if rounding not in ("stepwise", "once") or not 1 <= top_k <= MOST_CHOSEN:
        got = f"rounding {rounding!r} and {top_k} slots"
        raise ValueError(f"moe_local_reduce: wanted rounding stepwise or once and 1 to {MOST_CHOSEN} slots, got {got}")
    out = torch.empty(rows, columns, dtype=route_out.dtype, device=route_out.device)
    if rows and columns:
        constants = launch_constants(
            cut, top_k, columns, topk_weights is not None, shared is not None, scale != 1, rounding == "once"
        )
        reduce_kernel[(rows, triton.cdiv(columns, cut.items))](
            route_out, topk_ids, expert_mask, topk_ids if topk_weights is None else topk_weights,
            out if shared is None else shared, out, expert_mask.shape[0], float(scale),
            **constants, **cut_options(cut),
        )  # fmt: skip
    return out


def launch_constants(
    cut: Cut, top_k: int, columns: int, weighted: bool, shared: bool, scaled: bool, once: bool
) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {
        "TOP": top_k, "COLUMNS": columns, "WEIGHTED": weighted, "SHARED": shared, "SCALED": scaled or once,
        "ONCE": once, "BLOCK": cut.items, "PDL": cut.pdl,
    }  # fmt: skip


def compile_moe_local_reduce(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `moe_local_reduce`, cut somehow, once per build that a site needs."""
    dtype = getattr(torch, site.dtypes.get("route_out", "bfloat16"))
    top_k, columns = site.axes["K"], site.axes["D"]
    routes = torch.zeros(1, top_k, columns, dtype=dtype, device="cuda")
    ids = torch.zeros(1, top_k, dtype=torch.int32, device="cuda")
    for weights in (None, ids.float()):
        for shared in (None, routes[:, 0].contiguous()):
            call(
                routes, ids, ids[0], site.options["scale"], weights, shared, site.options["rounding"]
            )  # fmt: skip

"""MoE sort: the (token, slot) pairs of each expert of this rank, in blocks that a grouped GEMM can take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts._moe_sort_cases import cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise, bitwise_given
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

_BUFFER_DTYPES = ("bfloat16", "float16", "float32")


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

    Experts follow each other by rising id; one that this rank does not hold, or that no row chose, takes no block.
    Inside an expert, pairs keep the order of their rows, then of their slots. A pair is the word
    ``(slot << 24) | row``; a group is filled up with the sentinel ``(K << 24) | M`` of weight 0, where M counts all
    rows of the call, padded ones too.

    Args:
        topk_ids: [M, K] int32, global expert ids, distinct inside a live row. Ids outside 0 to `experts` - 1, such as
            the pad id -1, take no part.
        topk_weights: [M, K] float32.
        experts: E, experts of all ranks.
        model_dim: D, columns of the buffer.
        block_size: entries per block.
        buffer_dtype: dtype of the buffer.
        accumulate: the GEMM adds into the buffer, so it must be zero.
        expert_mask: [E] int32, not 0 for the experts of this rank; None: all.
        num_valid: [1] int32; rows from it on have no pairs. None: all rows are live.
        dedupe: of several slots with one expert in a row keep the highest only, as some sorts do with padded rows that
            repeat an expert; otherwise all are kept.

    Returns:
        sorted_ids: [L] int32, L = M*K + E*block_size - K. Defined up to ``num_valid_ids[0]``.
        sorted_weights: [L] float32, likewise.
        sorted_expert_ids: [ceil(L / block_size)] int32, expert of each block, counted among this rank's experts.
            Defined up to ``num_valid_ids[0] / block_size``.
        num_valid_ids: [2] int32, the entries with their padding, and `num_valid` (else M).
        moe_buf: [M, D] zeros with `expert_mask` or `accumulate`, else [0, 0].

    Raises:
        ContractError: a size that the words or the buffer cannot hold: M < 2**24, K < 256, K <= E, at least one entry
            per block, rows of the buffer in whole 16 bytes; or the mask is not [E].

    Source: A4; choice 8 of the index; O17.
    """
    _check(topk_ids, experts, model_dim, block_size, buffer_dtype, expert_mask)
    rows, top_k = topk_ids.shape
    device = topk_ids.device
    held = torch.ones(experts, dtype=torch.bool, device=device) if expert_mask is None else expert_mask != 0
    inside = (topk_ids >= 0) & (topk_ids < experts)
    expert = torch.where(inside, topk_ids, 0).long()
    taken = inside & held[expert]
    if num_valid is not None:
        taken &= (torch.arange(rows, device=device) < num_valid).unsqueeze(1)
    if dedupe:
        for slot in range(top_k - 1):
            taken[:, slot] &= (topk_ids[:, slot : slot + 1] != topk_ids[:, slot + 1 :]).all(-1)

    # pairs by expert, in their own order; those without an expert come last
    group = torch.where(taken, expert, experts).view(-1)
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=device).scatter_add_(0, group, torch.ones_like(group))
    order = group.argsort(stable=True)
    blocks = (counts[:-1] + block_size - 1) // block_size
    starts = torch.nn.functional.pad((blocks * block_size).cumsum(0), (1, 0))
    firsts = counts.cumsum(0) - counts
    place = starts[group[order]] + torch.arange(rows * top_k, device=device) - firsts[group[order]]

    length = rows * top_k + experts * block_size - top_k
    # pairs without an expert all go to one place behind the end
    place = torch.where(group[order] == experts, length, place)
    # a word of 128 slots or more has its sign bit set
    sentinel = ((top_k << 24) | rows) - (1 << 32 if top_k >= 128 else 0)
    sorted_ids = torch.full((length + 1,), sentinel, dtype=torch.int32, device=device)
    sorted_ids[place] = (((order % top_k) << 24) | (order // top_k)).int()
    sorted_weights = torch.zeros(length + 1, dtype=torch.float32, device=device)
    sorted_weights[place] = topk_weights.reshape(-1)[order]

    block = torch.arange(-(-length // block_size), device=device)
    owner = torch.searchsorted(blocks.cumsum(0), block, right=True).clamp(max=experts - 1)
    local = held.int().cumsum(0, dtype=torch.int32) - held.int()
    live = torch.full((1,), rows, dtype=torch.int32, device=device) if num_valid is None else num_valid
    buffer_shape = (rows, model_dim) if expert_mask is not None or accumulate else (0, 0)
    buffer = torch.zeros(buffer_shape, dtype=getattr(torch, buffer_dtype), device=device)
    totals = torch.cat((starts[-1:].int(), live.int()))
    return sorted_ids[:length], sorted_weights[:length], local[owner], totals, buffer


def _check(
    topk_ids: Tensor, experts: int, model_dim: int, block_size: int, buffer_dtype: str, expert_mask: Tensor | None
) -> None:
    rows, top_k = topk_ids.shape
    if buffer_dtype not in _BUFFER_DTYPES:
        raise ContractError(f"moe_sort: buffer_dtype is {buffer_dtype!r}: wanted one of {', '.join(_BUFFER_DTYPES)}")
    if rows >= 1 << 24 or top_k >= 1 << 8 or not 1 <= top_k <= experts or block_size < 1:
        raise ContractError(
            f"moe_sort: {rows} rows, {top_k} slots, {experts} experts, block_size {block_size}: wanted fewer than "
            f"2**24 rows, 1 to 255 slots, no more slots than experts, and a block_size of 1 or more"
        )
    width = model_dim * getattr(torch, buffer_dtype).itemsize
    if model_dim < 1 or width % 16:
        raise ContractError(f"moe_sort: a row of the buffer has {width} bytes: wanted a multiple of 16, and not 0")
    if expert_mask is not None and len(expert_mask) != experts:
        raise ContractError(f"moe_sort: expert_mask has {len(expert_mask)} entries: wanted {experts}, one per expert")


def _prefix_rule(index: int, name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Tensor]:
    """Return the rule of an output whose tail is free: the reference up to the count, then the call's own tail."""

    def rule(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Tensor:
        wanted = moe_sort(**inputs)
        count = int(wanted[3][0])
        if name == "sorted_expert_ids":
            count //= int(inputs.get("block_size", 32))
        return torch.cat((wanted[index][:count], outputs[name][count:]))

    return rule


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    def site(name: str, experts: int, top_k: int) -> Site:
        options = {"experts": experts, "model_dim": shapes.hidden}
        return Site(name, axes={"K": top_k, "E": experts}, options=options)

    return site("verify", shapes.experts, shapes.top_k), site("draft", shapes.draft_experts, shapes.draft_top_k)


_GIVEN = bitwise_given("num_valid_ids")

MOE_SORT = Contract(
    name="moe_sort",
    summary="Routed pairs grouped by this rank's experts, in padded blocks.",
    source="A4, O17",
    phases=("draft", "verify"),
    parameters=(
        Argument("topk_ids", ("M", "K"), ("int32",), doc="global expert ids; outside 0..E-1 = no expert"),
        Argument("topk_weights", ("M", "K"), ("float32",), doc="their weights"),
        Option("experts", "int", doc="experts of all ranks"),
        Option("model_dim", "int", doc="columns of the buffer"),
        Option("block_size", "int", 32, doc="entries per block"),
        Option("buffer_dtype", "str", "bfloat16", _BUFFER_DTYPES, "dtype of the buffer"),
        Option("accumulate", "bool", False, doc="the GEMM adds into the buffer"),
        Argument("expert_mask", ("E",), ("int32",), optional=True, doc="not 0 = held by this rank"),
        Argument("num_valid", (1,), ("int32",), optional=True, doc="rows from it on have no pairs"),
        Option("dedupe", "bool", False, doc="one pair per row and expert, the highest slot"),
    ),
    outputs=(
        Output("sorted_ids", ("*",), "int32", _GIVEN, "[M*K + E*block_size - K] (slot << 24) | row, else sentinel"),
        Output("sorted_weights", ("*",), "float32", _GIVEN, "weight of each entry, 0 for a sentinel"),
        Output("sorted_expert_ids", ("*",), "int32", _GIVEN, "local expert of each block"),
        Output("num_valid_ids", (2,), "int32", bitwise(), "entries with padding, live rows"),
        Output("moe_buf", ("*", "*"), "buffer_dtype", bitwise(), "zeros [M, model_dim], or [0, 0]"),
    ),
    rows="M",
    reference=moe_sort,
    cases=cases,
    sites=_sites,
    empty="counts [0, 0] and a buffer without rows; launches nothing",
    rules={
        name: _prefix_rule(index, name)
        for index, name in enumerate(("sorted_ids", "sorted_weights", "sorted_expert_ids"))
    },
)

CONTRACTS = (MOE_SORT,)

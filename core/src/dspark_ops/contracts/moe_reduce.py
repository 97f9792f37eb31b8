"""Route reduce: the sum of a token's expert outputs on this rank, scaled, with the shared expert's part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.contract import Argument, Case, Contract, Option, Output, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes


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

    The sum runs over rising slots in float32, starting at +0. A slot of a remote expert (or of none) is never read, so
    the route buffer need not be cleared: NaN there stays there. With `topk_weights` a slot is multiplied by its weight,
    rounded to float32, then added.

    - ``stepwise`` rounds to the output's dtype after the sum, after the product with the scale (none is taken for 1)
      and after the addition: bit for bit the chain reduce, multiply, add of separate operators.
    - ``once`` rounds at the end only; product and addition are float32 steps. More accurate, and other bits.

    No two steps contract into one fused multiply-add.

    Args:
        route_out: [M, K, D] bfloat16, float16 or float32, output of the experts by slot.
        topk_ids: [M, K] int32, global expert ids; outside 0 to E - 1, such as the pad id -1, is no expert.
        expert_mask: [E] int32, not 0 for the experts of this rank.
        scale: the model's routed scaling.
        topk_weights: [M, K] float32, weights that the GEMM has not applied.
        shared: [M, D] of `route_out`'s dtype, this rank's part of the shared expert.
        rounding: ``stepwise`` or ``once``.

    Returns:
        [M, D] of `route_out`'s dtype.

    Raises:
        ContractError: unknown rounding.

    Source: A5; choice 9 of the index; O07 for padded rows.
    """
    if rounding not in ("stepwise", "once"):
        raise ContractError(f"moe_local_reduce: rounding is {rounding!r}: wanted 'stepwise' or 'once'")
    dtype = route_out.dtype
    inside = (topk_ids >= 0) & (topk_ids < len(expert_mask))
    held = inside & (expert_mask[torch.where(inside, topk_ids, 0).long()] != 0)
    total = torch.zeros(route_out.shape[0], route_out.shape[2], dtype=torch.float32, device=route_out.device)
    for slot in range(route_out.shape[1]):
        value = route_out[:, slot].float()
        if topk_weights is not None:
            value = value * topk_weights[:, slot : slot + 1]
        # a choice, not a product with 0, which would let a NaN of a remote slot through
        total = torch.where(held[:, slot : slot + 1], total + value, total)
    if rounding == "once":
        total = total * scale
        return (total if shared is None else total + shared.float()).to(dtype)
    result = total.to(dtype)
    if scale != 1:
        result = (result.float() * scale).to(dtype)
    return result if shared is None else (result.float() + shared.float()).to(dtype)


def _cases(scale: str, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    small = ((1, 2, 4, 8), (5, 3, 16, 40), (9, 6, 24, 133))
    large = ((1, 6, 384, 5120), (24, 6, 384, 5120), (128, 3, 128, 5120), (37, 6, 384, 7168))
    for index, (rows, top_k, experts, columns) in enumerate(small if scale == "small" else large):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            plain = _routes(generator, rows, top_k, experts, columns, dtype)
            name = f"{rows}x{top_k}x{columns}, {str(dtype).removeprefix('torch.')}"
            shared = torch.randn(rows, columns, generator=generator).to(dtype)
            weights = torch.rand(rows, top_k, generator=generator)
            for rounding in ("stepwise", "once"):
                form = {**plain, "rounding": rounding}
                yield Case(f"{name}, {rounding}", form)
                yield Case(f"{name}, {rounding}, shared", {**form, "shared": shared})
                yield Case(f"{name}, {rounding}, weights", {**form, "topk_weights": weights})
                whole = {**form, "shared": shared, "topk_weights": weights}
                yield Case(f"{name}, {rounding}, scale 2.446, shared and weights", {**whole, "scale": 2.446})
                yield Case(f"{name}, {rounding}, scale 2", {**form, "scale": 2.0})
                yield Case(f"{name}, {rounding}, scale 1, shared", {**form, "shared": shared, "scale": 1.0})
        if scale == "small" or not index:
            yield from _masked(name, plain, shared)
    yield from _known()
    empty = {
        "route_out": torch.empty(0, 6, 16, dtype=torch.bfloat16), "topk_ids": torch.empty(0, 6, dtype=torch.int32),
        "expert_mask": torch.ones(8, dtype=torch.int32),
    }  # fmt: skip
    yield Case("no rows", empty, {"output": torch.empty(0, 16, dtype=torch.bfloat16)})


def _routes(
    generator: Generator, rows: int, top_k: int, experts: int, columns: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Return routes of which a quarter of the experts is held; what the others wrote is NaN or infinite."""
    ids = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :top_k].int().contiguous()
    ids[:, 0] %= max(experts // 4, 1)  # one held slot in every row
    mask = (torch.arange(experts) < experts // 4).int() * 3
    routes = torch.randn(rows, top_k, columns, generator=generator).to(dtype)
    remote = mask[ids.long()] == 0
    routes[remote] = torch.tensor([float("nan"), float("inf")], dtype=dtype)[torch.arange(columns) % 2]
    return {"route_out": routes, "topk_ids": ids, "expert_mask": mask}


def _masked(name: str, plain: dict[str, Any], shared: Tensor) -> Iterator[Case]:
    experts = len(plain["expert_mask"])
    clean = {**plain, "route_out": plain["route_out"].nan_to_num(1.0, 2.0, -2.0)}
    yield Case(f"{name}, all held", {**clean, "expert_mask": torch.ones(experts, dtype=torch.int32)})
    none = {**plain, "expert_mask": torch.zeros(experts, dtype=torch.int32)}
    yield Case(f"{name}, none held", none, {"output": torch.zeros_like(shared)})
    yield Case(f"{name}, none held, shared", {**none, "shared": shared}, {"output": shared})
    padded = plain["topk_ids"].clone()
    padded[-1] = -1
    poisoned = plain["route_out"].clone()
    poisoned[-1] = float("nan")
    yield Case(f"{name}, a row padded with -1", {**plain, "topk_ids": padded, "route_out": poisoned})
    for pad_id in (-1, experts, 2**31 - 1):
        outside = {"topk_ids": padded.where(padded >= 0, pad_id), "expert_mask": torch.ones(experts, dtype=torch.int32)}
        finite = clean["route_out"].clone()
        finite[-1] = float("nan")
        yield Case(f"{name}, all held, a row of id {pad_id}", {**clean, **outside, "route_out": finite})


def _known() -> Iterator[Case]:
    # bfloat16 has steps of 1/128 above 1: 1 + 1/128 times 1.5 is 1.51171875, a tie between 1.5078125 and 1.515625
    inputs = {
        "route_out": torch.tensor([[[1.0078125], [float("nan")]]], dtype=torch.bfloat16),
        "topk_ids": torch.tensor([[1, 0]], dtype=torch.int32), "expert_mask": torch.tensor([0, 1], dtype=torch.int32),
        "shared": torch.tensor([[-1.5078125]], dtype=torch.bfloat16),
    }  # fmt: skip
    alone = {"topk_ids": torch.tensor([[0, -1]], dtype=torch.int32), "expert_mask": torch.ones(1, dtype=torch.int32)}
    only = {"output": inputs["route_out"][:, 0]}
    yield Case("a single expert, and an id that is none", {**inputs, **alone, "shared": None, "scale": 1.0}, only)
    for rounding, wanted in (("stepwise", 0.0078125), ("once", 0.00390625)):
        expected = {"output": torch.tensor([[wanted]], dtype=torch.bfloat16)}
        yield Case(f"one slot whose product is a tie, {rounding}", {**inputs, "rounding": rounding}, expected)


def _sites(shapes: ModelShapes) -> tuple[Site, ...]:
    def site(name: str, experts: int, top_k: int) -> Site:
        return Site(name, axes={"E": experts, "K": top_k, "D": shapes.hidden})

    return site("verify", shapes.experts, shapes.top_k), site("draft", shapes.draft_experts, shapes.draft_top_k)


_FLOATS = ("bfloat16", "float16", "float32")

MOE_LOCAL_REDUCE = Contract(
    name="moe_local_reduce",
    summary="Sum of a token's local expert outputs, scaled, with the shared expert.",
    source="A5",
    phases=("draft", "verify"),
    parameters=(
        Argument("route_out", ("M", "K", "D"), _FLOATS, doc="expert outputs by slot; remote slots hold anything"),
        Argument("topk_ids", ("M", "K"), ("int32",), doc="global expert ids; outside 0..E-1 = no expert"),
        Argument("expert_mask", ("E",), ("int32",), doc="not 0 = held by this rank"),
        Option("scale", "float", 1.5, doc="routed scaling"),
        Argument("topk_weights", ("M", "K"), ("float32",), optional=True, doc="weights not applied yet"),
        Argument("shared", ("M", "D"), _FLOATS, optional=True, doc="the shared expert's part, of route_out's dtype"),
        Option("rounding", "str", "stepwise", ("stepwise", "once"), "where the sum is rounded"),
    ),
    outputs=(Output("output", ("M", "D"), "like route_out", bitwise(), "this rank's part of the layer"),),
    rows="M",
    reference=moe_local_reduce,
    cases=_cases,
    sites=_sites,
)

CONTRACTS = (MOE_LOCAL_REDUCE,)

"""Inputs of measured calls: hyper-connections, router, experts, projections, gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.bench.inputs import Maker, Place

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MAKERS"]

#: Rows of the n-gram table that are held for a measured call: 128 MB, more than a cache holds.
ENGRAM_ROWS: Final = 1 << 19
#: Ranks that share the routed experts.
EXPERT_RANKS: Final = 4


def _weight(place: Place, *shape: int, dtype: str = "bfloat16") -> Tensor:
    """Return a projection whose outputs have the size of its inputs."""
    return place.normal(*shape, scale=shape[-1] ** -0.5, dtype=dtype)


def _mix(place: Place) -> dict[str, Any]:
    return {"fn": _weight(place, place.axis("C"), place.axis("J"), dtype="float32"), "scale": place.uniform(3) + 0.5}


def _combine(place: Place) -> dict[str, Any]:
    made: dict[str, Any] = {"pre": place.uniform(place.rows, place.axis("N"))}
    if any(argument.name == "weight" for argument in place.contract.arguments):
        made["weight"] = place.normal(place.axis("H"), scale=0.2, dtype="bfloat16") + 1
    return made


def _post(place: Place) -> dict[str, Any]:
    copies = place.axis("N")
    comb = place.uniform(place.rows, copies, copies)
    made: dict[str, Any] = {"post": 2 * place.uniform(place.rows, copies), "comb": comb / comb.sum(1, keepdim=True)}
    names = {argument.name for argument in place.contract.arguments}
    return made | {name: value for name, value in _combine(place).items() if name in names}


def _wo_a(place: Place) -> dict[str, Any]:
    return {"weight": _weight(place, place.axis("G"), place.axis("R"), place.axis("K"))}


def _main_projection(place: Place) -> dict[str, Any]:
    outputs, inputs = place.axis("N"), place.axis("K")
    return {
        "weight": place.normal(outputs, inputs).to(torch.float8_e4m3fn),
        "scales": place.integers(118, 123, outputs // 32, inputs // 32, dtype="uint8"),
    }


def _gate(place: Place) -> dict[str, Any]:
    return {"bias": place.normal(place.axis("E"), scale=0.1)}


def _gate_hash(place: Place) -> dict[str, Any]:
    vocab, experts, chosen = place.axis("V"), place.axis("E"), place.axis("K")
    first = place.integers(0, experts - chosen, vocab, dtype="int32")
    table = first.unsqueeze(1) + torch.arange(chosen, dtype=torch.int32, device=place.device)
    return {"table": table.contiguous(), "input_ids": place.integers(0, vocab, place.rows)}


def _chosen(place: Place, experts: int) -> dict[str, Tensor]:
    weights = place.uniform(place.rows, place.axis("K"))
    return {
        "ids": place.distinct(place.axis("K"), experts, place.rows),
        "weights": weights / weights.sum(1, True) * 1.5,
    }


def _pack(place: Place) -> dict[str, Any]:
    return _chosen(place, 384)


def _fill(place: Place) -> dict[str, Any]:
    return {**_chosen(place, 384), "num_valid": place.full(max(1, place.rows * 3 // 4), 1)}


def _sort(place: Place) -> dict[str, Any]:
    chosen = _chosen(place, place.axis("E"))
    return {"topk_ids": chosen["ids"], "topk_weights": chosen["weights"]}


def _reduce(place: Place) -> dict[str, Any]:
    experts = place.axis("E")
    chosen = _chosen(place, experts)
    local = (torch.arange(experts, device=place.device) < experts // EXPERT_RANKS).int()
    return {
        "topk_ids": chosen["ids"],
        "topk_weights": chosen["weights"],
        "expert_mask": local,
        "shared": place.normal(place.rows, place.axis("D"), dtype=place.dtype("route_out")),
    }


def _engram(place: Place) -> dict[str, Any]:
    width = place.axis("D")
    return {
        "table": place.normal(ENGRAM_ROWS, width).to(torch.float8_e4m3fn),
        "scales": place.integers(118, 125, ENGRAM_ROWS, width // 32, dtype="uint8"),
        "ids": place.integers(0, ENGRAM_ROWS, place.rows, place.axis("I")),
        "lo": 0,
        "hi": ENGRAM_ROWS,
    }


MAKERS: Final[dict[str, Maker]] = {
    "mhc_mix_sinkhorn": _mix,
    "mhc_combine": _combine,
    "mhc_combine_norm": _combine,
    "mhc_combine_norm_mxfp8": _combine,
    "mhc_post": _post,
    "mhc_post_combine": _post,
    "mhc_post_combine_norm": _post,
    "mhc_post_combine_norm_fp8_grid": _post,
    "rope_wo_a": _wo_a,
    "rope_wo_a_mxfp8": _wo_a,
    "main_projection": _main_projection,
    "moe_gate_topk": _gate,
    "moe_gate_topk_packed": _gate,
    "moe_gate_hash": _gate_hash,
    "pack_topk_ids": _pack,
    "fill_padded_topk": _fill,
    "moe_sort": _sort,
    "moe_local_reduce": _reduce,
    "engram_gather": _engram,
}

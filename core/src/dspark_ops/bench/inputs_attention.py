"""Inputs of measured calls: attention over paged latents, and what stores into their pages."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.bench.inputs import POSITIONS, Maker, Place, rotary_table
from dspark_ops.contracts.layouts import page_layout
from dspark_ops.contracts.mla_schedule import mla_sched_meta
from dspark_ops.errors import EvidenceError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MAKERS", "filled_pages"]

PAGE_SIZE: Final = 256
#: Heads of the query buffer that the attention kernels read: local heads are padded to it.
PADDED_HEADS: Final = 64
#: Columns of the buffer that holds a query's down projection and, behind it, the latent.
FUSED_COLUMNS: Final = 1792
#: Units of the H200; the schedule has one part per unit.
PARTS: Final = 132


def filled_pages(place: Place, slots: int, layout: str, page_size: int = PAGE_SIZE) -> Tensor:
    """Return uint8 pages with at least `slots` slots of random rows, stored as `layout` says."""
    pages = page_layout(layout)
    count = -(-slots // page_size)
    cache = torch.zeros(count, pages.page_bytes(page_size), dtype=torch.uint8, device=place.device)
    rows = place.normal(count * page_size, pages.width)
    pages.store(cache, torch.arange(count * page_size, device=place.device), rows, page_size)
    return cache


def _layout(place: Place, argument: str = "cache") -> str:
    return place.site.layouts[argument]


def _attention(place: Place) -> dict[str, Any]:
    rows, window, extra = place.rows, place.axis("W"), place.axes.get("X", 0)
    layout = _layout(place)
    made: dict[str, Any] = {
        "cache": filled_pages(place, rows * window, layout),
        "indices": place.distinct(rows * window, rows * window).view(rows, window),
        "lengths": place.full(window, rows),
        "sink": place.normal(place.axis("A")),
        "page_size": PAGE_SIZE,
        "extra_page_size": PAGE_SIZE,
        "layout": layout,
    }
    if extra:
        # The rows of a request choose among the same entries: six rows share some two thousand of them.
        slots = 2048 * (-(-rows // 6))
        base = torch.arange(rows, device=place.device).div(6, rounding_mode="floor").mul(2048).unsqueeze(1)
        made |= {
            "extra_cache": filled_pages(place, slots, _layout(place, "extra_cache")),
            "extra_indices": (place.distinct(extra, 2048, rows) + base).int(),
            "extra_lengths": place.full(extra, rows),
        }
    meta, splits = _schedule_of(rows, window, extra)
    return made | {"sched_meta": meta.to(place.device), "num_splits": splits.to(place.device)}


@cache
def _schedule_of(rows: int, window: int, extra: int) -> tuple[Tensor, Tensor]:
    """Return the schedule of full rows, which an engine makes once for all layers of a step."""
    meta, splits = torch.empty(PARTS, 8, dtype=torch.int32), torch.empty(rows + 1, dtype=torch.int32)
    mla_sched_meta(torch.full((rows,), window, dtype=torch.int32), meta, splits, None, extra)
    return meta, splits


def _query_store(place: Place) -> dict[str, Any]:
    shape = (place.rows, PADDED_HEADS, place.axis("D"))
    return {"out": torch.zeros(shape, dtype=torch.bfloat16, device=place.device)}


def _tail_copy(place: Place) -> dict[str, Any]:
    heads, width = place.axis("A"), place.axis("D")
    out = torch.zeros(place.rows, PADDED_HEADS, width, dtype=torch.bfloat16, device=place.device)
    return {
        "out": out[:, :heads],
        "q": place.normal(place.rows, heads, width, dtype="bfloat16"),
        "freqs": rotary_table(place, place.axis("P")),
        "positions": place.positions(),
    }


def _with_positions(place: Place) -> dict[str, Any]:
    return {"freqs": rotary_table(place, place.axis("P")), "positions": place.positions()}


def _slots(place: Place) -> tuple[Tensor, Tensor]:
    """Return pages with twice the rows, and a slot above 0 for each row."""
    count = 2 * place.rows + PAGE_SIZE
    return filled_pages(place, count, _layout(place)), 1 + place.distinct(place.rows, count - 1)


def _key_store(place: Place) -> dict[str, Any]:
    cache, slots = _slots(place)
    width = place.axis("D")
    return {
        "kv": place.normal(place.rows, FUSED_COLUMNS, dtype="bfloat16")[:, FUSED_COLUMNS - width :],
        "weight": place.normal(width, scale=0.2, dtype="bfloat16") + 1,
        "out_loc": slots,
        "cache": cache,
        "page_size": PAGE_SIZE,
    }


def _compress_one(place: Place) -> dict[str, Any]:
    cache, slots = _slots(place)
    return {
        "weight": place.normal(place.axis("D"), scale=0.2, dtype="bfloat16") + 1,
        "out_loc": slots.long(),
        "cache": cache,
        "page_size": PAGE_SIZE,
    }


def _compress_two(place: Place) -> dict[str, Any]:
    """Rows of verify steps of six where the count allows it, else one row per request as in plain decoding."""
    rows, width, ring = place.rows, place.axis("D"), 8
    length = 6 if rows % 6 == 0 else 1
    requests = torch.arange(rows // length, device=place.device)
    begin = place.integers(1, POSITIONS // 2 - 8, rows // length) * 2 - 1
    positions = (begin.unsqueeze(1) + torch.arange(length, device=place.device)).flatten()
    owner = requests.repeat_interleave(length)
    cache = filled_pages(place, 8 * len(requests) + PAGE_SIZE, _layout(place))
    return {
        "state": place.normal(len(requests) * ring, 2 * width),
        "weight": place.normal(width, scale=0.2, dtype="bfloat16") + 1,
        "positions": positions,
        "requests": owner,
        "out_loc": 2 + 16 * owner + (positions - begin.repeat_interleave(length)),
        "cache": cache,
        "page_size": PAGE_SIZE,
        "ring_size": ring,
        "form": "verify" if length > 1 else "decode",
        "draft_len": length,
    }


def _index_store(place: Place) -> dict[str, Any]:
    if _layout(place) != "index_k_page68":
        raise EvidenceError(f"index_k_store: no inputs for the layout {_layout(place)}: wanted index_k_page68")
    cache, slots = _slots(place)
    return {"out_loc": slots.long(), "cache": cache, "page_size": PAGE_SIZE}


def _schedule(place: Place) -> dict[str, Any]:
    extra = int(place.site.options.get("extra_topk", 0))
    return {
        "lengths": place.full(128, place.rows),
        "meta": torch.zeros(PARTS, 8, dtype=torch.int32, device=place.device),
        "num_splits": torch.zeros(place.rows + 1, dtype=torch.int32, device=place.device),
        "extra_lengths": place.full(extra, place.rows) if extra else None,
    }


MAKERS: Final[dict[str, Maker]] = {
    "sparse_mla_decode": _attention,
    "q_rope_store": _query_store,
    "rope_tail_copy": _tail_copy,
    "rope_tail_fp4_fake_quant": _with_positions,
    "index_q_rope_fp4_pack": _with_positions,
    "k_norm_rope_store": _key_store,
    "compress_c1": _compress_one,
    "compress_c2": _compress_two,
    "index_k_store": _index_store,
    "mla_sched_meta": _schedule,
}

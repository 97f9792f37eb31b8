"""Inputs of measured calls: the index path, which scores cached entries and chooses the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dspark_ops.bench.inputs import Maker, Place
from dspark_ops.bench.inputs_attention import PAGE_SIZE, filled_pages

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MAKERS"]

#: Entries that a row can see: a context of this many tokens at ratio 1.
ENTRIES: Final = 32768
#: Entries a row of the fp4 index path sees, whose keys are per request.
PAGED_ENTRIES: Final = 8192
_PROGRAMS_PER_ROW: Final = 4


def _scores(place: Place) -> Tensor:
    return place.normal(place.rows, ENTRIES)


def _full(place: Place, entries: int = ENTRIES) -> Tensor:
    return place.full(entries, place.rows)


def _candidates(place: Place) -> dict[str, Any]:
    return {"logits": _scores(place), "seq_lens": _full(place)}


def _lengths(place: Place) -> dict[str, Any]:
    return {"seq_lens": place.integers(1, ENTRIES, place.rows, dtype="int32")}


def _topk(place: Place) -> dict[str, Any]:
    return {"scores": _scores(place), "lengths": _full(place)}


def _pages(place: Place) -> dict[str, Any]:
    chosen = place.axis("K")
    pages = ENTRIES // PAGE_SIZE
    return {
        "scores": _scores(place),
        "indices": place.distinct(chosen, ENTRIES, place.rows),
        "page_table": place.distinct(pages, 4 * pages, place.rows),
        "page_indices": place.full(-1, place.rows, chosen),
        "page_size": PAGE_SIZE,
        "raw_indices": None,
    }


def _finish(place: Place) -> dict[str, Any]:
    return {**_pages(place), "lengths": _full(place), "check_scores": True}


def _index_scores(place: Place) -> dict[str, Any]:
    rows, heads, width = place.rows, place.axis("A"), place.axis("D")
    pages = PAGED_ENTRIES // PAGE_SIZE
    requests = -(-rows // 6)
    table = place.distinct(requests * pages, requests * pages).view(requests, pages)
    return {
        "q": place.normal(rows, heads, width).round().clamp(-4, 4).bfloat16(),
        "weights": place.normal(rows, heads, scale=0.05, dtype=place.dtype("weights")),
        "cache": filled_pages(place, requests * PAGED_ENTRIES, "index_k_page68"),
        "page_table": table.repeat_interleave(6, 0)[:rows].contiguous(),
        "lengths": _full(place, PAGED_ENTRIES),
        "page_size": PAGE_SIZE,
    }


def _paged_logits(place: Place) -> dict[str, Any]:
    batch, rows_each, heads, scales = place.rows, place.axis("N"), place.axis("H"), place.axis("S")
    pages = PAGED_ENTRIES // 64
    q_scale = place.integers(122, 131, batch, rows_each, 1, 4, 16, scales, dtype="uint8")
    q_scale[..., heads // 16 :] = 0
    return {
        "q": place.integers(0, 256, batch, rows_each, heads, 64, dtype="uint8") & 0x77,
        "q_scale": q_scale,
        "kv": place.integers(0, 256, batch * pages, 1, 4, 64, 16, dtype="uint8"),
        "kv_scale": place.integers(122, 131, batch * pages, 1, 4, 64, dtype="uint8"),
        "block_tables": place.distinct(batch * pages, batch * pages).view(batch, pages),
        "weights": place.normal(batch * rows_each, heads, scale=0.1, dtype="bfloat16"),
        "context_lens": _full(place, PAGED_ENTRIES),
        "max_seq_len": PAGED_ENTRIES,
    }


def _varctx(place: Place) -> dict[str, Any]:
    return {
        "context_lens": place.integers(1, ENTRIES, place.rows, dtype="int32"),
        "programs": _PROGRAMS_PER_ROW * max(place.rows, 64),
        "max_seq_len": ENTRIES,
    }


MAKERS: Final[dict[str, Maker]] = {
    "candidate_blocks": _candidates,
    "candidate_lengths": _lengths,
    "topk_rows": _topk,
    "filter_topk_pages": _pages,
    "finish_topk_pages": _finish,
    "index_scores": _index_scores,
    "paged_mqa_logits_fp4": _paged_logits,
    "varctx_schedule": _varctx,
}

"""Portable ``candidate_lengths`` and ``filter_topk_pages``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks import candidate_counts
from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent_stages import let_next_be_set_up, wait_for_earlier
from dspark_ops_triton.blocks.page_slots import page_and_slot, page_unit, slot_of_page

#: A row per thread.
LENGTHS_CUT = Cut(items=128, warps=4)
#: A choice per thread.
PAGES_CUT = Cut(items=128, warps=4)

_STRIDES = ["score_stride", "index_stride", "table_stride", "page_stride", "raw_stride"]


@triton.jit(
    do_not_specialize=["width", "chosen", "pages", "page_unit", *_STRIDES],
    do_not_specialize_on_alignment=["scores", "indices", "page_table", "page_indices", "raw_indices"],
)
def pages_kernel(
    scores, indices, page_table, page_indices, raw_indices, width, chosen, pages, page_unit,
    score_stride, index_stride, table_stride, page_stride, raw_stride,
    RAW: tl.constexpr, BLOCK: tl.constexpr, SHIFT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the slots of BLOCK choices of one row. Scores and pages are loaded side by side.

    `page_unit` and SHIFT are those of `page_slots.page_unit`.
    """
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = lane < chosen
    wait_for_earlier(PDL)
    choice = tl.load(indices + row * index_stride + lane, mask=live, other=-1)
    inside = live & (choice >= 0) & (choice < width)
    score = tl.load(scores + row * score_stride + choice, mask=inside, other=float("-inf"))
    # the table need not reach to a choice that does not count
    place, slot = page_and_slot(tl.where(inside, choice, 0).to(tl.int32), page_unit, SHIFT)
    page = tl.load(page_table + row * table_stride + place, mask=inside & (place < pages), other=0)
    let_next_be_set_up(PDL)
    counts = inside & (score > float("-inf"))
    slot = slot_of_page(page, slot, page_unit, SHIFT)
    tl.store(page_indices + row * page_stride + lane, tl.where(counts, slot, -1), mask=live)
    if RAW:
        tl.store(raw_indices + row * raw_stride + lane, tl.where(counts, choice, -1), mask=live)


def candidate_lengths(
    seq_lens: Tensor, topk_blocks: int = 2048, block_size: int = 8, exact_tail: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many blocks each row has, how long its packed candidates are, and their page table.

    Args:
        seq_lens: [R] int32, visible entries of each row, not negative.
        topk_blocks: blocks that a row keeps at most.
        block_size: entries of a block.
        exact_tail: count only the visible entries of the newest block.

    Returns:
        block_lens [R], compact_lens [R] and compact_page_table [R, 1] (zeros), all int32.

    Raises:
        ValueError: `topk_blocks` or `block_size` is not positive.

    Bytes moved: 16 per row. Launches: 1, none for no rows.

    Source: A15, N10.5.
    """
    return candidate_counts.candidate_lengths(LENGTHS_CUT, seq_lens, topk_blocks, block_size, exact_tail)


def filter_topk_pages(
    scores: Tensor,
    indices: Tensor,
    page_table: Tensor,
    page_indices: Tensor,
    page_size: int,
    raw_indices: Tensor | None = None,
) -> None:
    """Write the cache slot of each chosen entry, and -1 for a choice that is none; the order stays.

    Args:
        scores: [R, W] float32, last stride 1.
        indices: [R, K] int32 or int64, last stride 1; may be negative or beyond W.
        page_table: [R, P] int32, last stride 1; it covers every choice that counts.
        page_indices: [R, K] int32, last stride 1, written.
        page_size: entries of a page.
        raw_indices: [R, K] of the dtype of `indices`, last stride 1, written if given.

    Raises:
        ValueError: shapes or dtypes do not fit each other, or the page size is not positive. Nothing is written.

    Bytes moved: 16 to 32 per choice. Launches: 1, none for no choices.

    Source: N10.6.
    """
    _filter(PAGES_CUT, scores, indices, page_table, page_indices, page_size, raw_indices)


def _filter(
    cut: Cut, scores: Tensor, indices: Tensor, page_table: Tensor, page_indices: Tensor, page_size: int,
    raw_indices: Tensor | None = None,
) -> None:  # fmt: skip
    fits = raw_indices is None or (raw_indices.shape == indices.shape and raw_indices.dtype == indices.dtype)
    if page_size < 1 or page_indices.shape != indices.shape or not fits:
        got = f"page_size {page_size}, {list(page_indices.shape)} and raw_indices that {'fit' if fits else 'do not'}"
        wanted = f"a page_size of 1 or more, page_indices {list(indices.shape)} and raw_indices like indices"
        raise ValueError(f"filter_topk_pages: wanted {wanted}, got {got}")
    rows, chosen = indices.shape
    if rows and chosen:
        raw = indices if raw_indices is None else raw_indices
        unit, shift = page_unit(page_size)
        pages_kernel[(rows, triton.cdiv(chosen, cut.items))](
            scores, indices, page_table, page_indices, raw, scores.shape[1], chosen, page_table.shape[1], unit,
            scores.stride(0), indices.stride(0), page_table.stride(0), page_indices.stride(0), raw.stride(0),
            **page_constants(cut, raw_indices is not None, shift), **cut_options(cut),
        )  # fmt: skip


def page_constants(cut: Cut, raw: bool, shift: bool) -> dict[str, Any]:
    """Return the compile-time arguments of `filter_topk_pages`."""
    return {"RAW": raw, "BLOCK": cut.items, "SHIFT": shift, "PDL": cut.pdl}


def prepare_candidate_lengths(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `candidate_lengths`, compiled."""
    compiled = candidate_counts.compile_candidate_lengths
    return prepare_cut(candidate_counts.candidate_lengths, LENGTHS_CUT, candidate_lengths, compiled, device, site, rows)


def prepare_filter_topk_pages(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `filter_topk_pages`, compiled for both dtypes of the choices, with and without their copy.

    Pages whose size is a power of two have builds of their own.
    """
    return prepare_cut(_filter, PAGES_CUT, filter_topk_pages, _compile_filter, device, site, rows)


def _compile_filter(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    scores = torch.zeros(1, 1, dtype=torch.float32, device="cuda")
    ids = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
    for indices in (ids, ids.long()):
        for raw in (None, indices.clone()):
            for page_size in (1, 3):
                call(scores, indices, ids, ids.clone(), page_size, raw)

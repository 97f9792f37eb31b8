"""Portable ``finish_topk_pages``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options, prepare_cut
from dspark_ops_triton.blocks.dependent import begin

#: Choices of a row at most: each is compared with all others.
MOST_CHOSEN = 2048
#: Choices that a program places, and the warps that compare them with others.
CUT = Cut(items=32, warps=8)
#: Others that it holds at a time to compare them with: all of a usual row, and of
#: wider ones what an AMD wave's scalar registers have room for.
USUAL = 512
OTHERS = 256
#: Behind every entry.
NONE = tl.constexpr(0x7FFFFFFF)

_STRIDES = ["score_stride", "index_stride", "table_stride", "page_stride", "raw_stride"]


@triton.jit
def chosen_entries(indices, lane, choices, visible):
    """Return the choices of some lanes of a row, NONE for those beyond what is visible."""
    choice = tl.load(indices + lane, mask=lane < choices, other=-1)
    return tl.where((choice >= 0) & (choice < visible), choice, NONE).to(tl.int32)


@triton.jit
def counted_entries(scores, entry, CHECKED: tl.constexpr):
    """Return entries as they are, NONE for those that do not count."""
    if CHECKED:
        score = tl.load(scores + entry, mask=entry < NONE, other=float("-inf"))
        entry = tl.where(score > float("-inf"), entry, NONE)
    return entry


@triton.jit(
    do_not_specialize=["rows", "width", "chosen", "columns", "page_count", "page_size", *_STRIDES],
    do_not_specialize_on_alignment=["scores", "indices", "lengths", "page_table", "page_indices", "raw_indices"],
)
def finish_kernel(
    scores, indices, lengths, page_table, page_indices, raw_indices, rows, width, chosen, columns, page_count,
    page_size, score_stride, index_stride, table_stride, page_stride, raw_stride,
    SLOTS: tl.constexpr, OWN: tl.constexpr, OTHERS: tl.constexpr, CHECKED: tl.constexpr, RAW: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Write the slots of OWN choices of one row at their places among all of the row that count, and its share of -1.

    A place is the number of choices before it: programs of a row need nothing of each other.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    # a row of the output beyond the rows of the call has no choices
    choices = tl.where(row < rows, chosen, 0)
    visible = tl.minimum(tl.load(lengths + row, mask=row < rows, other=0), width)
    scores += row * score_stride
    indices += row * index_stride
    lane = tl.program_id(1) * OWN + tl.arange(0, OWN)
    entry = chosen_entries(indices, lane, choices, visible)
    # the table need not reach to a choice that does not count
    page = tl.load(
        page_table + row * table_stride + entry // page_size,
        mask=(entry < NONE) & (entry // page_size < page_count), other=0,
    )  # fmt: skip
    entry = counted_entries(scores, entry, CHECKED)
    place = tl.zeros((OWN,), tl.int32)
    found = tl.sum(place, axis=0)
    for first in range(0, SLOTS, OTHERS):
        other = first + tl.arange(0, OTHERS)
        theirs = counted_entries(scores, chosen_entries(indices, other, choices, visible), CHECKED)
        found += tl.sum((theirs < NONE).to(tl.int32), axis=0)
        # of equal entries those of lower lanes come first
        limit = entry[None, :] + (other[:, None] < lane[None, :]).to(tl.int32)
        # the others along the first axis: most of their sum then stays within a thread
        place += tl.sum((theirs[:, None] < limit).to(tl.int32), axis=0)
    counts = entry < NONE
    pages = page_indices + row * page_stride
    raws = raw_indices + row * raw_stride
    tl.store(pages + place, page * page_size + entry % page_size, mask=counts)
    if RAW:
        tl.store(raws + place, entry.to(raw_indices.dtype.element_ty), mask=counts)
    for first in range(tl.program_id(1) * OWN, columns, tl.num_programs(1) * OWN):
        column = first + tl.arange(0, OWN)
        behind = (column >= found) & (column < columns)
        tl.store(pages + column, tl.full((OWN,), -1, tl.int32), mask=behind)
        if RAW:
            tl.store(raws + column, tl.full((OWN,), -1, raw_indices.dtype.element_ty), mask=behind)


def finish_topk_pages(
    scores: Tensor,
    indices: Tensor,
    lengths: Tensor,
    page_table: Tensor,
    page_indices: Tensor,
    page_size: int,
    raw_indices: Tensor | None = None,
    check_scores: bool = True,
) -> None:
    """Write the cache slots of each row's choices in rising order of entry, and -1 in all that is left of the output.

    Args:
        scores: [R, W] float32, last stride 1.
        indices: [R, K] int32 or int64, last stride 1, K up to `MOST_CHOSEN`; may be negative or beyond W.
        lengths: [R] int32, visible columns: a choice counts below ``min(W, lengths[r])``.
        page_table: [R, P] int32, last stride 1; it covers every choice that counts.
        page_indices: [at least R, at least K] int32, last stride 1, written whole; apart from the other arguments.
        page_size: entries of a page.
        raw_indices: of the shape of `page_indices` and the dtype of `indices`, last stride 1, written whole if given;
            it may be `indices`, which are then copied before.
        check_scores: drop choices whose score is not above -inf, too.

    Raises:
        ValueError: shapes or dtypes do not fit each other, too many choices, or the page size is not positive. Nothing
            is written.

    Bytes moved: 16 to 24 per choice, 4 to 12 per column of the output, and per 32 choices all indices and scores of
    the row from the cache. Launches: 1, none for an empty output.

    Source: N10.6.
    """
    _finish(CUT, scores, indices, lengths, page_table, page_indices, page_size, raw_indices, check_scores)


def _finish(
    cut: Cut,
    scores: Tensor,
    indices: Tensor,
    lengths: Tensor,
    page_table: Tensor,
    page_indices: Tensor,
    page_size: int,
    raw_indices: Tensor | None = None,
    check_scores: bool = True,
) -> None:
    rows, chosen = indices.shape
    raw_fits = raw_indices is None or (raw_indices.shape == page_indices.shape and raw_indices.dtype == indices.dtype)
    out_rows, columns = page_indices.shape
    if page_size < 1 or out_rows < rows or columns < chosen or chosen > MOST_CHOSEN or not raw_fits:
        fit = "fit" if raw_fits else "do not"
        got = f"page_size {page_size}, {chosen} choices, {list(page_indices.shape)} and raw_indices that {fit}"
        raise ValueError(
            f"finish_topk_pages: wanted a page_size of 1 or more, up to {MOST_CHOSEN} choices, page_indices of {rows} "
            f"or more rows and {chosen} or more columns, and raw_indices of its shape and the choices' dtype, got {got}"
        )
    if page_indices.numel():
        raw = page_indices if raw_indices is None else raw_indices
        if raw.data_ptr() == indices.data_ptr():
            indices = indices.clone()
        constants = launch_constants(cut, chosen, check_scores, raw_indices is not None)
        finish_kernel[(out_rows, constants["SLOTS"] // cut.items)](
            scores, indices, lengths, page_table, page_indices, raw, rows, scores.shape[1], chosen, columns,
            page_table.shape[1], page_size, scores.stride(0), indices.stride(0), page_table.stride(0),
            page_indices.stride(0), raw.stride(0), **constants, **cut_options(cut),
        )  # fmt: skip


def launch_constants(cut: Cut, chosen: int, checked: bool, raw: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    slots = max(128, triton.next_power_of_2(chosen))
    return {
        "SLOTS": slots, "OWN": cut.items, "OTHERS": slots if slots <= USUAL else OTHERS, "CHECKED": checked, "RAW": raw,
        "PDL": cut.pdl,
    }  # fmt: skip


def prepare_finish_topk_pages(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `finish_topk_pages`, compiled for the site's choices of both dtypes, with and without their copy."""
    return prepare_cut(_finish, CUT, finish_topk_pages, _compile, device, site, rows)


def _compile(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    scores = torch.zeros(1, 1, device="cuda")
    out = torch.zeros(1, site.axes["K"], dtype=torch.int32, device="cuda")
    for indices in (out, out.long()):
        for raw in (None, indices.clone()):
            for checked in (True, False):
                call(scores, indices, out[:, 0], out, out.clone(), 1, raw, checked)

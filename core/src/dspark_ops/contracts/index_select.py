"""Selection of the entries that a row attends to: the best scores, then their slots in the paged cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts._index_select_cases import filter_cases, finish_cases, topk_cases
from dspark_ops.contracts.contract import Argument, Contract, Option, Output, Semantic, Site
from dspark_ops.contracts.exactness import bitwise
from dspark_ops.contracts.ordering import order_by_score
from dspark_ops.contracts.values import between
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes

ORDERS = ("position", "score")


def topk_rows(scores: Tensor, lengths: Tensor, top_k: int, order: str = "position") -> Tensor:
    """Return the columns of each row's best visible scores.

    Chosen are the `top_k` largest of the first ``lengths[r]`` scores, a NaN before +inf, the lowest column of equal
    ones first; all of them if there are no more. A visible -inf is a score like any other.

    Args:
        scores: [R, W] float32, last stride 1; columns count from where the row starts, wherever that is in memory.
        lengths: [R] int32, visible columns, 0 to W.
        top_k: columns chosen.
        order: ``position`` lists them in rising order, as attention sums them; ``score`` from the best one down.

    Returns:
        [R, top_k] int32; -1 only behind the visible columns.

    Raises:
        ContractError: `top_k` is not positive, or an unknown order.

    Source: N10.6, choices 1 and 2 of the index, O03.
    """
    return _topk(scores, lengths, top_k, order, "first")


def topk_rows_nan_last(scores: Tensor, lengths: Tensor, top_k: int, order: str = "position") -> Tensor:
    """Return what `topk_rows` means under its semantic ``nan = "last"``: a NaN is chosen when nothing else is left.

    Arguments, result and errors are those of `topk_rows`.
    """
    return _topk(scores, lengths, top_k, order, "last")


def _topk(scores: Tensor, lengths: Tensor, top_k: int, order: str, nan: str) -> Tensor:
    if top_k < 1:
        raise ContractError(f"topk_rows: top_k is {top_k}: wanted 1 or more")
    if order not in ORDERS:
        raise ContractError(f"topk_rows: order is {order!r}: wanted {' or '.join(ORDERS)}")
    width = scores.shape[1]
    visible = torch.arange(width, device=scores.device) < lengths[:, None]
    ids = order_by_score(scores, visible, nan)[:, :top_k]
    ids = torch.nn.functional.pad(ids, (0, top_k - ids.shape[1]), value=width)
    ids = torch.where(torch.arange(top_k, device=scores.device) < lengths[:, None], ids, width)
    if order == "position":
        ids = ids.sort(dim=-1).values
    return torch.where(ids < width, ids, -1).int()


def filter_topk_pages(
    scores: Tensor,
    indices: Tensor,
    page_table: Tensor,
    page_indices: Tensor,
    page_size: int,
    raw_indices: Tensor | None = None,
) -> None:
    """Write the cache slot of each chosen entry, and -1 for a choice that is none; the order stays.

    A choice counts if it is a column of `scores` whose score is above -inf: this drops NaN and keeps +inf.

    Args:
        scores: [R, W] float32, any row stride.
        indices: [R, K] int32 or int64; may be negative or beyond W.
        page_table: [R, P] int32, pages of each row's cache; page i holds entries ``i * page_size`` on. It covers every
            choice that counts.
        page_indices: [R, K] int32, written: ``page_table[r, i // page_size] * page_size + i % page_size``, or -1.
            Attention wants rows of a multiple of 64 columns: the caller keeps those behind K at -1.
        page_size: entries of a page.
        raw_indices: [R, K] of the dtype of `indices`, written if given: the choice itself, or -1.

    Raises:
        ContractError: shapes or dtypes do not fit each other, or the page size is not positive. Nothing is written.

    Source: N10.6.
    """
    _require_pages("filter_topk_pages", indices, page_indices, raw_indices, page_size)
    if page_indices.shape != indices.shape:
        raise ContractError(
            f"filter_topk_pages: wanted page_indices {list(indices.shape)}, got {list(page_indices.shape)}"
        )
    width = scores.shape[1]
    counts = _scored(scores, indices, (indices >= 0) & (indices < width))
    page_indices.copy_(torch.where(counts, _slots(indices, page_table, page_size), -1))
    if raw_indices is not None:
        raw_indices.copy_(torch.where(counts, indices, -1))


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
        scores: [R, W] float32, any row stride.
        indices: [R, K] int32 or int64; may be negative or beyond W.
        lengths: [R] int32, visible columns: a choice counts below ``min(W, lengths[r])``.
        page_table: as in `filter_topk_pages`.
        page_indices: [at least R, at least K] int32, written whole.
        page_size: entries of a page.
        raw_indices: of the shape of `page_indices` and the dtype of `indices`, written whole if given: the choices.
        check_scores: drop choices whose score is not above -inf, too.

    Raises:
        ContractError: as `filter_topk_pages`.

    Source: N10.6, the form that replaced `filter_topk_pages`.
    """
    _require_pages("finish_topk_pages", indices, page_indices, raw_indices, page_size)
    rows, chosen = indices.shape
    if page_indices.shape[0] < rows or page_indices.shape[1] < chosen:
        raise ContractError(
            f"finish_topk_pages: wanted page_indices of {rows} or more rows and {chosen} or more columns, "
            f"got {list(page_indices.shape)}"
        )
    width = scores.shape[1]
    counts = (indices >= 0) & (indices < lengths[:, None].clamp(max=width))
    if check_scores:
        counts = _scored(scores, indices, counts)
    entries = torch.where(counts, indices.long(), width).sort(dim=-1).values
    counts = entries < width
    for out, values in ((page_indices, _slots(entries, page_table, page_size)), (raw_indices, entries)):
        if out is not None:
            out.fill_(-1)
            out[:rows, :chosen] = torch.where(counts, values, -1).to(out.dtype)


def _scored(scores: Tensor, indices: Tensor, inside: Tensor) -> Tensor:
    """Return which choices are `inside` and have a score above -inf. Choices outside are not looked up."""
    if not scores.shape[1]:
        return torch.zeros_like(inside)
    return inside & (scores.gather(1, torch.where(inside, indices, 0).long()) > -torch.inf)


def _slots(entries: Tensor, page_table: Tensor, page_size: int) -> Tensor:
    """Return the slot of each entry, int32; one beyond the table gives that of some page, for the caller to drop."""
    pages = page_table.shape[1]
    if not pages:
        return torch.zeros_like(entries, dtype=torch.int32)
    page = (entries.long() // page_size).clamp(0, pages - 1)
    return (page_table.gather(1, page) * page_size + entries.long() % page_size).int()


def _require_pages(
    operator: str, indices: Tensor, page_indices: Tensor, raw_indices: Tensor | None, page_size: int
) -> None:
    if page_size < 1:
        raise ContractError(f"{operator}: page_size is {page_size}: wanted 1 or more")
    if raw_indices is not None and (raw_indices.shape != page_indices.shape or raw_indices.dtype != indices.dtype):
        raise ContractError(
            f"{operator}: wanted raw_indices {indices.dtype} {list(page_indices.shape)}, "
            f"got {raw_indices.dtype} {list(raw_indices.shape)}"
        )


def _topk_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    return (Site("verify", strides={"scores": "unit_last"}, options={"top_k": shapes.index_topk}),)


def _page_sites(shapes: ModelShapes) -> tuple[Site, ...]:
    # The page size is left open: a page of ratio 2 holds half as many entries as one of ratio 1.
    strides = dict.fromkeys(("scores", "page_table", "page_indices", "raw_indices"), "unit_last")
    return (Site("verify", axes={"K": shapes.index_topk}, strides=strides),)


_SCORES = Argument("scores", ("R", "*"), ("float32",), strides="unit_last", doc="index scores")
_LENGTHS = Argument("lengths", ("R",), ("int32",), doc="visible columns", values=between(0, None))
_INDICES = Argument("indices", ("R", "K"), ("int32", "int64"), strides="unit_last", doc="chosen columns")
_PAGE_TABLE = Argument("page_table", ("R", "*"), ("int32",), strides="unit_last", doc="pages of each row's cache")
_PAGE_SIZE = Option("page_size", "int", doc="entries of a page")

TOPK_ROWS = Contract(
    name="topk_rows",
    summary="Columns of each row's best visible scores.",
    source="N10.6, O03",
    phases=("verify",),
    parameters=(
        *(_SCORES, replace(_LENGTHS, values=between(0, "scores[1]"))),
        Option("top_k", "int", doc="columns chosen"),
        Option("order", "str", "position", ORDERS, "how they are listed"),
    ),
    outputs=(Output("ids", ("R", "K"), "int32", bitwise(), "chosen columns, then -1"),),
    rows="R",
    reference=topk_rows,
    cases=topk_cases,
    sites=_topk_sites,
    sizes={"K": "top_k"},
    semantics=(
        Semantic("nan", "first", ("first", "last"), "whether a NaN is chosen before or after every number"),
        Semantic("ties", "lowest", ("lowest", "torch", "any"), "which of several equal scores are chosen"),
    ),
)

FILTER_TOPK_PAGES = Contract(
    name="filter_topk_pages",
    summary="Cache slots of the chosen entries in the order of choice, -1 for a choice that is none.",
    source="N10.6",
    phases=("verify",),
    parameters=(
        *(_SCORES, _INDICES, _PAGE_TABLE),
        Argument("page_indices", ("R", "K"), ("int32",), strides="unit_last", written=True, doc="cache slots"),
        _PAGE_SIZE,
        Argument(
            "raw_indices", ("R", "K"), ("int32", "int64"), strides="unit_last", optional=True, written=True,
            doc="the choices that count",
        ),
    ),
    outputs=(
        Output("page_indices", ("R", "K"), "int32", bitwise(), "cache slots, -1 for none"),
        Output("raw_indices", ("R", "K"), "like indices", bitwise(), "choices that count, -1 for none"),
    ),
    rows="R",
    reference=filter_topk_pages,
    cases=filter_cases,
    sites=_page_sites,
)  # fmt: skip

FINISH_TOPK_PAGES = Contract(
    name="finish_topk_pages",
    summary="Cache slots of the chosen entries in rising order, -1 in the rest of the output.",
    source="N10.6",
    phases=("verify",),
    parameters=(
        *(_SCORES, _INDICES, _LENGTHS, _PAGE_TABLE),
        Argument("page_indices", ("*", "*"), ("int32",), strides="unit_last", written=True, doc="cache slots"),
        _PAGE_SIZE,
        Argument(
            "raw_indices", ("*", "*"), ("int32", "int64"), strides="unit_last", optional=True, written=True,
            doc="the choices that count",
        ),
        Option("check_scores", "bool", True, doc="drop choices whose score is not above -inf"),
    ),
    outputs=(
        Output("page_indices", ("*", "*"), "int32", bitwise(), "cache slots, then -1"),
        Output("raw_indices", ("*", "*"), "like indices", bitwise(), "choices that count, then -1"),
    ),
    rows="R",
    reference=finish_topk_pages,
    cases=finish_cases,
    sites=_page_sites,
)  # fmt: skip

CONTRACTS = (TOPK_ROWS, FILTER_TOPK_PAGES, FINISH_TOPK_PAGES)

"""The small copies that make a step's inputs, each in one launch, cut as data; items are rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent_stages import begin_at

_STRIDES = ["first_row", "first_column", "second_row", "second_column"]


@triton.jit
def copy_columns(source, row_stride, column_stride, out, row, column, flat, mask):
    """Copy ``source[row, column]`` to ``out[flat]``, lane by lane."""
    place = row.to(tl.int64) * row_stride + column.to(tl.int64) * column_stride
    tl.store(out + flat, tl.load(source + place, mask=mask), mask=mask)


@triton.jit(
    do_not_specialize=["elements", "bonus_stride", *_STRIDES],
    do_not_specialize_on_alignment=["bonus", "positions", "cache_loc", "draft_ids"],
)
def draft_inputs_kernel(
    bonus, positions, cache_loc, draft_ids, positions_out, cache_out, elements, bonus_stride,
    first_row, first_column, second_row, second_column,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK of the flat positions and slots, and the anchors of the blocks that begin among them."""
    flat = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = flat < elements
    row, column = flat // COLUMNS, flat % COLUMNS
    begin_at((bonus, positions, cache_loc, draft_ids, positions_out, cache_out, bonus_stride, second_column), PDL)
    copy_columns(positions, first_row, first_column, positions_out, row, column, flat, mask)
    copy_columns(cache_loc, second_row, second_column, cache_out, row, column, flat, mask)
    begins = mask & (column == 0)
    tl.store(draft_ids + flat, tl.load(bonus + row.to(tl.int64) * bonus_stride, mask=begins), mask=begins)


@triton.jit(
    do_not_specialize=["elements", "third_row", "third_column", *_STRIDES],
    do_not_specialize_on_alignment=["ids", "positions", "cache_loc"],
)
def verify_inputs_kernel(
    ids, positions, cache_loc, ids_out, positions_out, cache_out, elements,
    first_row, first_column, second_row, second_column, third_row, third_column,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK of the flat ids, positions and slots."""
    flat = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = flat < elements
    row, column = flat // COLUMNS, flat % COLUMNS
    begin_at((ids, positions, cache_loc, ids_out, positions_out, cache_out, third_column), PDL)
    copy_columns(ids, first_row, first_column, ids_out, row, column, flat, mask)
    copy_columns(positions, second_row, second_column, positions_out, row, column, flat, mask)
    copy_columns(cache_loc, third_row, third_column, cache_out, row, column, flat, mask)


@triton.jit(
    do_not_specialize=["requests", "rows", "width"], do_not_specialize_on_alignment=["seq_lens", "request_indices"]
)
def expand_kernel(
    seq_lens, request_indices, causal_lens, request_rows, requests, rows, width,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write what BLOCK rows see and to which request they belong; rows behind the last request are padding."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    request = tl.minimum(row // width, requests - 1)
    newest = row % width + 1 - width
    begin_at((seq_lens + request, causal_lens, request_rows, newest), PDL)
    length = tl.load(seq_lens + request, mask=mask, other=0)
    seen = (length + newest).to(tl.int32)
    tl.store(causal_lens + row, tl.where(row < requests * width, seen, 1), mask=mask)
    tl.store(request_rows + row, tl.load(request_indices + request, mask=mask, other=0), mask=mask)


def draft_inputs(
    cut: Cut, bonus: Tensor, positions: Tensor, cache_loc: Tensor, draft_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Put anchors into the ids, return positions and slots: ``draft_inputs`` (A12), arguments as in its contract."""
    requests, width = draft_ids.shape
    if width < 1 or min(positions.shape[1], cache_loc.shape[1]) < width:
        got = f"{positions.shape[1]} and {cache_loc.shape[1]}"
        raise ValueError(f"draft_inputs: wanted {width} (1 or more) columns in positions and cache_loc, got {got}")
    elements = requests * width
    outs = tuple(torch.empty(elements, dtype=torch.int64, device=draft_ids.device) for _ in range(2))
    if elements:
        draft_inputs_kernel[(triton.cdiv(elements, cut.items),)](
            bonus, positions, cache_loc, draft_ids, *outs, elements, bonus.stride(0),
            *positions.stride(), *cache_loc.stride(), **launch_constants(cut, width), **cut_options(cut),
        )  # fmt: skip
    return outs


def verify_inputs(
    cut: Cut, ids: Tensor, positions: Tensor, cache_loc: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first columns of each argument, flat: ``verify_inputs`` (A12), arguments as in its contract."""
    if not ids.shape == positions.shape == cache_loc.shape or not 1 <= width <= ids.shape[1]:
        got = f"{list(ids.shape)}, {list(positions.shape)}, {list(cache_loc.shape)} and width {width}"
        raise ValueError(f"verify_inputs: wanted three equal shapes [B, W] and a width of 1 to W, got {got}")
    elements = ids.shape[0] * width
    ids_out, positions_out, cache_out = (
        torch.empty(elements, dtype=torch.int64, device=ids.device) for _ in range(3)
    )  # fmt: skip
    if elements:
        verify_inputs_kernel[(triton.cdiv(elements, cut.items),)](
            ids, positions, cache_loc, ids_out, positions_out, cache_out, elements,
            *ids.stride(), *positions.stride(), *cache_loc.stride(), **launch_constants(cut, width), **cut_options(cut),
        )  # fmt: skip
    return ids_out, positions_out, cache_out


def expand_uniform(
    cut: Cut, seq_lens: Tensor, request_indices: Tensor, width: int, padded_rows: int = 0
) -> tuple[Tensor, Tensor]:
    """Return what rows see and whose they are: ``expand_uniform`` (A3), arguments as in its contract."""
    requests = seq_lens.shape[0]
    if width < 1 or (padded_rows != 0 and padded_rows < requests * width):
        got = f"width {width}, padded_rows {padded_rows} for {requests} requests"
        raise ValueError(f"expand_uniform: wanted a width of 1 or more and padded_rows of 0 or B * width, got {got}")
    rows = (padded_rows or requests * width) if requests else 0
    causal_lens = torch.empty(rows, dtype=torch.int32, device=seq_lens.device)
    request_rows = torch.empty(rows, dtype=request_indices.dtype, device=seq_lens.device)
    if rows:
        expand_kernel[(triton.cdiv(rows, cut.items),)](
            seq_lens, request_indices, causal_lens, request_rows, requests, rows, width,
            BLOCK=cut.items, PDL=cut.pdl, **cut_options(cut),
        )  # fmt: skip
    return causal_lens, request_rows


def launch_constants(cut: Cut, columns: int) -> dict[str, Any]:
    """Return the compile-time arguments of the kernels that copy columns."""
    return {"COLUMNS": columns, "BLOCK": cut.items, "PDL": cut.pdl}


def compile_draft_inputs(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `draft_inputs`, cut somehow, once per build that a site needs."""
    ids = torch.zeros(1, site.axes["Q"], dtype=torch.int64, device="cuda")
    call(ids[:, 0], ids, ids, ids.clone())


def compile_verify_inputs(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `verify_inputs`, cut somehow, once per build that a site needs."""
    ids = torch.zeros(1, site.axes["W"], dtype=torch.int64, device="cuda")
    for width in range(1, site.axes["W"] + 1):
        call(ids, ids, ids, width)


def compile_expand_uniform(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `expand_uniform`, cut somehow, once per build that a site needs."""
    one = torch.zeros(1, dtype=torch.int64, device="cuda")
    for lens in (one, one.int()):
        for owners in (one, one.int()):
            call(lens, owners, 1)

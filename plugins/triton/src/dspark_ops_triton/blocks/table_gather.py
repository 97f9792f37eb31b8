"""Dequantised rows of a table by id, cut as data; items are bytes of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.codes import power_of_two
from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent import begin
from dspark_ops_triton.blocks.e4m3_bits import e4m3_value_of_any_code

GROUP = 32


MOST_COLUMNS = 8192


@triton.jit(
    do_not_specialize=["count", "each", "token_stride", "id_stride", "low", "high"],
    do_not_specialize_on_alignment=["ids", "scales"],
)
def gather_kernel(
    table, scales, ids, out, count, each, token_stride, id_stride, low, high,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write ROWS rows of the result."""
    begin(PDL)
    place = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = place < count
    id = tl.load(ids + place // each * token_stride + place % each * id_stride, mask=live, other=-1).to(tl.int64)
    held = live & (id >= low) & (id < high)
    row = tl.where(held, id - low, 0)
    column = tl.arange(0, COLUMNS)
    code = tl.load(table + row[:, None] * COLUMNS + column[None, :], mask=held[:, None], other=0)
    group = tl.arange(0, COLUMNS // GROUP)
    scale = tl.load(scales + row[:, None] * (COLUMNS // GROUP) + group[None, :], mask=held[:, None], other=127)
    factor = power_of_two(scale.to(tl.int32))
    value = tl.reshape(e4m3_value_of_any_code(code), (ROWS, COLUMNS // GROUP, GROUP)) * factor[:, :, None]
    value = tl.reshape(value, (ROWS, COLUMNS)).to(tl.bfloat16)
    tl.store(out + place[:, None] * COLUMNS + column[None, :], value, mask=live[:, None])


def engram_gather(cut: Cut, table: Tensor, scales: Tensor, ids: Tensor, lo: int, hi: int) -> Tensor:
    """Return the dequantised row of each id held: ``engram_gather`` (A16), arguments as in its contract."""
    rows, columns = table.shape
    fits = scales.shape[0] == rows and scales.shape[1] * GROUP == columns and 0 <= lo <= hi <= lo + rows
    if not GROUP <= columns <= MOST_COLUMNS or columns & (columns - 1) or not fits:
        got = f"table {list(table.shape)}, scales {list(scales.shape)}, lo {lo} and hi {hi}"
        raise ValueError(
            f"engram_gather: wanted a table [hi - lo or more, D] with D a power of two of {GROUP} to {MOST_COLUMNS} "
            f"and scales [rows, D / {GROUP}], got {got}"
        )
    count = ids.numel()
    out = torch.empty(count, columns, dtype=torch.bfloat16, device=ids.device)
    if count:
        constants = launch_constants(cut, columns)
        gather_kernel[(triton.cdiv(count, constants["ROWS"]),)](
            table.view(torch.uint8), scales, ids, out, count, ids.shape[1], ids.stride(0), ids.stride(1), lo, hi,
            **constants, **cut_options(cut),
        )  # fmt: skip
    return out


def launch_constants(cut: Cut, columns: int) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"ROWS": max(1, cut.items // columns), "COLUMNS": columns, "GROUP": GROUP, "PDL": cut.pdl}


def compile_engram_gather(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `engram_gather`, cut somehow, once per build that a site needs."""
    columns = site.axes["D"]
    table = torch.zeros(1, columns, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    scales = torch.full((1, columns // GROUP), 127, dtype=torch.uint8, device="cuda")
    for dtype in (torch.int64, torch.int32):
        call(table, scales, torch.zeros(1, 1, dtype=dtype, device="cuda"), 0, 1)

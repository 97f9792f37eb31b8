"""Packed fp4 codes and scale words of rows, cut as data by the number of rows; items are rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark_ops_triton.blocks.codes import (
    e2m1_code_without_minus_zero,
    e2m1_round,
    e2m1_round_ties_to_smaller,
    power_of_two,
    ue8m0_index,
)
from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.dependent_stages import begin_at
from dspark_ops_triton.blocks.rotary import split_pairs

#: Cuts, each with the least number of rows that it is used for, descending; the last one is for 0.
Cuts = tuple[tuple[int, Cut], ...]


@triton.jit(do_not_specialize=["rows"])
def fp4_rows_kernel(
    x, payload, scales, rows, GROUPS: tl.constexpr, ROWS: tl.constexpr, TO_EVEN: tl.constexpr, PDL: tl.constexpr
):
    """Quantise ROWS rows of GROUPS groups of 32 values; a row's scale word is written as four bytes."""
    begin_at((x, payload, scales, rows), PDL)
    cell = tl.arange(0, ROWS * 4)
    row, group = tl.program_id(0).to(tl.int64) * ROWS + cell // 4, cell % 4
    here = row < rows
    live = here & (group < GROUPS)
    first = row * GROUPS + group
    place = first[:, None] * 32 + tl.arange(0, 32)[None, :]
    values = tl.load(x + place, mask=live[:, None], other=0.0).to(tl.float32)
    byte = ue8m0_index(tl.max(tl.abs(values), axis=1))
    scaled = values * power_of_two(254 - byte)[:, None]
    code = e2m1_code_without_minus_zero(e2m1_round(scaled) if TO_EVEN else e2m1_round_ties_to_smaller(scaled))
    low, high = split_pairs(code, ROWS * 4, 32)
    target = payload + first[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(target, (low | (high << 4)).to(tl.uint8), mask=live[:, None])
    tl.store(scales + row * 4 + group, tl.where(group < GROUPS, byte, 0).to(tl.uint8), mask=here)


def fp4_quantize_rows(cuts: Cuts, x: Tensor, rounding: str = "rne") -> tuple[Tensor, Tensor]:
    """Return packed rows and their scale words: ``fp4_quantize_rows`` (A1), arguments as in its contract."""
    rows, columns = x.shape
    if columns not in (32, 64, 96, 128) or rounding not in ("rne", "half_down"):
        wanted = "rows of 32, 64, 96 or 128 columns and rounding rne or half_down"
        raise ValueError(f"fp4_quantize_rows: wanted {wanted}, got {columns} and {rounding!r}")
    payload = torch.empty(rows, columns // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, dtype=torch.int32, device=x.device)
    if rows:
        cut = cut_of(cuts, rows)
        fp4_rows_kernel[(triton.cdiv(rows, cut.items),)](
            x, payload, scales.view(torch.uint8), rows,
            **launch_constants(cut, columns, rounding), **cut_options(cut),
        )  # fmt: skip
    return payload, scales


def cut_of(cuts: Cuts, rows: int) -> Cut:
    """Return the cut for a number of rows."""
    return next(cut for least, cut in cuts if rows >= least)


def launch_constants(cut: Cut, columns: int, rounding: str) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"GROUPS": columns // 32, "ROWS": cut.items, "TO_EVEN": rounding == "rne", "PDL": cut.pdl}


def compile_fp4_quantize_rows(cuts: Cuts, call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call `fp4_quantize_rows`, cut as `cuts` says, once per build that a site needs."""
    columns = site.axes["D"]
    dtype = getattr(torch, site.dtypes.get("x", "bfloat16"))
    used = {cut_of(cuts, count) for count in rows if count}
    for count in (max(1, least) for least, cut in cuts if cut in used):
        buffer = torch.zeros(count * columns + 1, dtype=dtype, device="cuda")
        for x in (buffer[:-1], buffer[1:]):
            for rounding in ("rne", "half_down"):
                call(x.view(count, columns), rounding)

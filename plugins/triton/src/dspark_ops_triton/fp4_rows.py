"""Portable ``fp4_quantize_rows``: packed fp4 codes and scale words of the indexer's rows."""

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
from dspark_ops_triton.blocks.rotary import split_pairs

#: Rows of a program, by the number of rows from which it is used, and the threads that share them: four lanes to a
#: group. A verify step's few hundred rows are spread; blocks of rows save programs where a prefill brings thousands.
ROW_BLOCKS = ((4096, 32, 512), (0, 8, 128))


@triton.jit(do_not_specialize=["rows"])
def fp4_rows_kernel(x, payload, scales, rows, GROUPS: tl.constexpr, ROWS: tl.constexpr, TO_EVEN: tl.constexpr):
    """Quantise ROWS rows of GROUPS groups of 32 values; a row's scale word is written as four bytes."""
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


def fp4_quantize_rows(x: Tensor, rounding: str = "rne") -> tuple[Tensor, Tensor]:
    """Return fp4 rows of the indexer: two e2m1 codes to a byte, and up to four scale bytes in one int32.

    Args:
        x: [R, D] bfloat16, float16 or float32, contiguous; D is 32, 64, 96 or 128; finite.
        rounding: where midpoints between codes go: ``rne`` to the even code, ``half_down`` to the smaller one.

    Returns:
        payload [R, D / 2] uint8, even columns in the low nibble, never minus zero; scales [R] int32, the byte of
        columns 32i to 32i + 31 in bits 8i to 8i + 7.

    Raises:
        ValueError: D is none of these, or the rounding is unknown.

    Bytes moved: D elements in, D / 2 + 4 bytes out per row. Launches: 1, none for no rows.

    Source: A1, A0.2.
    """
    rows, columns = x.shape
    if columns not in (32, 64, 96, 128) or rounding not in ("rne", "half_down"):
        wanted = "rows of 32, 64, 96 or 128 columns and rounding rne or half_down"
        raise ValueError(f"fp4_quantize_rows: wanted {wanted}, got {columns} and {rounding!r}")
    payload = torch.empty(rows, columns // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, dtype=torch.int32, device=x.device)
    if rows:
        _, block, threads = block_of(rows)
        fp4_rows_kernel[(triton.cdiv(rows, block),)](
            x, payload, scales.view(torch.uint8), rows,
            **launch_constants(columns, block, rounding), **launch_options(threads, torch.version.hip is not None),
        )  # fmt: skip
    return payload, scales


def block_of(rows: int) -> tuple[int, int, int]:
    """Return the line of `ROW_BLOCKS` for a number of rows."""
    return next(line for line in ROW_BLOCKS if rows >= line[0])


def launch_constants(columns: int, block: int, rounding: str) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"GROUPS": columns // 32, "ROWS": block, "TO_EVEN": rounding == "rne"}


def launch_options(threads: int, amd: bool) -> dict[str, Any]:
    """Return the compiler options of a launch. Contraction is off: it would merge roundings that the contract names."""
    return {"num_warps": threads // (64 if amd else 32), "enable_fp_fusion": False}


def prepare_fp4_quantize_rows(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `fp4_quantize_rows`, compiled for the site's width and dtype, both roundings and its row blocks."""
    if device.arch.vendor != "cpu":
        columns = site.axes["D"]
        dtype = getattr(torch, site.dtypes.get("x", "bfloat16"))
        for count in {max(1, block_of(count)[0]) for count in rows if count}:
            buffer = torch.zeros(count * columns + 1, dtype=dtype, device="cuda")
            for x in (buffer[:-1], buffer[1:]):
                for rounding in ("rne", "half_down"):
                    fp4_quantize_rows(x.view(count, columns), rounding)
    return fp4_quantize_rows


__all__ = [
    "ROW_BLOCKS",
    "block_of",
    "fp4_quantize_rows",
    "fp4_rows_kernel",
    "launch_constants",
    "launch_options",
    "prepare_fp4_quantize_rows",
]

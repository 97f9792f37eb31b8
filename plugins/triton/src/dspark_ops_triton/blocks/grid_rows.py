"""Each 32 columns on the fp8 grid, as codes or as values, cut as data; items are groups (A0.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from dspark_ops_triton.blocks.cutting import Cut, cut_options
from dspark_ops_triton.blocks.fp8_grid import grid_codes_kernel, grid_values_kernel
from dspark_ops_triton.blocks.ptx import takes_ptx


def fp8_grid_quantize(cut: Cut, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and scale bytes: ``fp8_grid_quantize``, arguments as in its contract."""
    rows, columns = x.shape
    codes = torch.empty(rows, columns, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, columns // 32, dtype=torch.uint8, device=x.device)
    if rows:
        grid_codes_kernel[(triton.cdiv(scales.numel(), cut.items),)](
            x, codes, scales, scales.numel(), **launch_constants(cut, takes_ptx(grid_codes_kernel)), **cut_options(cut)
        )
    return codes.view(torch.float8_e4m3fn), scales


def fp8_grid_round(cut: Cut, x: Tensor) -> Tensor:
    """Return the values that the codes mean: ``fp8_grid_round``, arguments as in its contract."""
    out = torch.empty_like(x)
    if count := x.numel() // 32:
        grid_values_kernel[(triton.cdiv(count, cut.items),)](
            x, out, count, **launch_constants(cut, takes_ptx(grid_values_kernel)), **cut_options(cut)
        )
    return out


def launch_constants(cut: Cut, ptx: bool) -> dict[str, Any]:
    """Return the compile-time arguments of a launch."""
    return {"GROUPS": cut.items, "PTX": ptx, "PDL": cut.pdl}


def compile_fp8_grid(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call either operator, cut somehow, for rows at 16-byte boundaries and not."""
    buffer = torch.zeros(33, dtype=torch.bfloat16, device="cuda")
    for x in (buffer[None, :32], buffer[None, 1:]):
        call(x)

"""A launch for the combined and normalised copies of tokens with their MXFP8; what a token gets is data (N3.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from dspark_ops_triton.blocks.alignment import stride_unit
from dspark_ops_triton.blocks.combine_norm import combine_norm_kernel, launch_constants
from dspark_ops_triton.blocks.copy_tiles import Tiles, sample_inputs, shared_options
from dspark_ops_triton.blocks.mxfp8 import TILE_GROUPS, scale_rows
from dspark_ops_triton.blocks.ptx import takes_ptx

#: So many programs, or clusters, clear the scale bytes of rows that are none, if there are no more tokens.
LEAST_PROGRAMS = 4


def mhc_combine_norm_mxfp8(
    tiles: Tiles, x: Tensor, pre: Tensor, weight: Tensor, eps: float = 1e-20
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, codes and scale bytes: ``mhc_combine_norm_mxfp8`` (N3.4), arguments as in its contract."""
    tokens, copies, hidden = x.shape[0], pre.shape[1], weight.shape[0]
    y = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=x.device)
    q = torch.empty(tokens, hidden, dtype=torch.uint8, device=x.device)
    rows, groups = scale_rows(tokens), triton.cdiv(hidden // 32, TILE_GROUPS) * TILE_GROUPS
    scales = torch.empty(rows * groups, dtype=torch.uint8, device=x.device)
    if tokens:
        unit = stride_unit(x)
        aligned = weight.data_ptr() % 16 == 0
        constants = launch_constants(tiles, copies, hidden, unit, takes_ptx(combine_norm_kernel), aligned)
        combine_norm_kernel[(max(tokens, LEAST_PROGRAMS),)](
            x, pre, weight, y, q, scales, tokens, x.stride(0) // unit, pre.stride(0), float(eps),
            **constants, **shared_options(tiles, torch.version.hip is not None, constants["PROGRAMS"]),
        )  # fmt: skip
    return y, q.view(torch.float8_e4m3fn), scales


def compile_mhc_combine_norm_mxfp8(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator once per build that a site needs."""
    weight = torch.zeros(site.axes["H"], dtype=torch.bfloat16, device="cuda")
    for x, pre in sample_inputs(site):
        call(x, pre, weight)

"""The fp8 grid for gfx950, by itself and folded into the activation: portable bodies, cut for waves of 64 lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import grid_rows
from dspark_ops_triton.blocks.cutting import Cut, prepared
from dspark_ops_triton.blocks.swiglu import compile_swiglu_grid, swiglu_grid

#: One wave and 16 bytes a lane: 16 groups. Six rows of 5120 are 60 programs, 24 are 240 on 256 units.
GROUPS = Cut(items=16, warps=1)
#: One wave and 16 bytes a lane.
COLUMNS = Cut(items=512, warps=1)

#: ``fp8_grid_quantize`` (A0.2) as the contract has it. Launches: 1.
fp8_grid_quantize = partial(grid_rows.fp8_grid_quantize, GROUPS)
prepare_fp8_grid_quantize = partial(prepared, fp8_grid_quantize, grid_rows.compile_fp8_grid)

#: ``fp8_grid_round`` (A0.2) as the contract has it. Launches: 1.
fp8_grid_round = partial(grid_rows.fp8_grid_round, GROUPS)
prepare_fp8_grid_round = partial(prepared, fp8_grid_round, grid_rows.compile_fp8_grid)


def silu_mul_clamp_fp8_grid(gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor]:
    """Return the clamped SwiGLU of each row, and that on the fp8 grid: [M, I] bfloat16 each; see `swiglu_grid`.

    Bytes moved: 8 per result. Launches: 1, none for no rows.

    Source: A9 (mode fp8_grid), A0.2.
    """
    return swiglu_grid(COLUMNS, False, gate_up, limit)[:2]


def silu_mul_clamp_mxfp8(gate_up: Tensor, limit: float | None = 10.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the clamped SwiGLU of each row, its fp8 grid codes [M, I] float8_e4m3fn, and scale bytes [M, I / 32].

    Bytes moved: 7 per result and 1/32 for its scale. Launches: 1, none for no rows.

    Source: A9 (mode mxfp8), A0.2.
    """
    y, codes, scales = swiglu_grid(COLUMNS, True, gate_up, limit)
    return y, codes.view(torch.float8_e4m3fn), scales


def prepare_silu_mul_clamp_fp8_grid(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `silu_mul_clamp_fp8_grid`, compiled for the site's width and for rows that begin on 16 bytes, or not."""
    return prepared(silu_mul_clamp_fp8_grid, compile_swiglu_grid, device, site, rows)


def prepare_silu_mul_clamp_mxfp8(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `silu_mul_clamp_mxfp8`, compiled for the site's width and for rows that begin on 16 bytes, or not."""
    return prepared(silu_mul_clamp_mxfp8, compile_swiglu_grid, device, site, rows)

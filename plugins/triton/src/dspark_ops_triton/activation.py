"""Portable ``silu_mul_clamp``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dspark_ops_triton.blocks import clamped_silu
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: Columns of a program, one warp or wave each: 4 per thread, 8 on AMD, 16 bytes of a 16-bit dtype.
CUT, AMD_CUT = Cut(items=128, warps=1), Cut(items=512, warps=1)


def silu_mul_clamp(gate_up: torch.Tensor, limit: float | None = 10.0) -> torch.Tensor:
    """Return ``g / (1 + exp(-g)) * u`` with g = min(gate, limit) and u = clamp(up, -limit, limit).

    Args:
        gate_up: [M, 2 * I] bfloat16, float16 or float32, last stride 1: the gate, then the up projection.
        limit: the clamp, or None for no clamp.

    Returns:
        [M, I] of the same dtype.

    Of 16-bit values the exponential and the quotient are the device's quick ones: a result may be the one next to the
    correctly rounded one. Of float32 values both round as from float64.

    Bytes moved: three times those of the result. Launches: 1, none for no rows.

    Source: A9 (plain mode), O15.
    """
    return clamped_silu.silu_mul_clamp(AMD_CUT if torch.version.hip else CUT, gate_up, limit)


def prepare_silu_mul_clamp(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., torch.Tensor]:
    """Return `silu_mul_clamp`, compiled for the site's width and dtype and for rows that begin on 16 bytes, or not."""
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    compiled = clamped_silu.compile_silu_mul_clamp
    return prepare_cut(clamped_silu.silu_mul_clamp, cut, silu_mul_clamp, compiled, device, site, rows)

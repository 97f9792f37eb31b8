"""Portable ``rope_tail_fp4_fake_quant``: heads whose last lanes are rotated, all lanes rounded to fp4 values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import fp4_rounding
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: Heads of one program, and the warps that share them: 8 bytes per thread at 128 lanes, 16 on AMD.
CUT, AMD_CUT = Cut(items=4, warps=4), Cut(items=4, warps=1)


def rope_tail_fp4_fake_quant(
    x: Tensor, freqs: Tensor, positions: Tensor | None = None, inverse: bool = False, scale: str = "ue8m0_32"
) -> Tensor:
    """Return the heads with their last P lanes rotated and all lanes rounded to fp4 values, [T, A, D] bfloat16.

    Args:
        x: [T, A, D] bfloat16, last stride 1, D a power of two of 32 or more; finite.
        freqs: [S, P] float32 interleaved, the table; [T, P], a row per token, without positions.
        positions: [T] int32 or int64, or None. One that is negative or not below S counts as 0.
        inverse: rotate backward.
        scale: ``ue8m0_32``: a power of two per 32 lanes; ``e4m3_16``: an e4m3 number per 16 lanes.

    Raises:
        ValueError: an unknown scale, another number of lanes, or more rotated lanes than lanes.

    Bytes moved: ``T * (4*A*D + 4*P)``. Launches: 1, none for no tokens.

    Source: A2 (stages A and B and the related operator).
    """
    return fp4_rounding.rope_tail_fp4_fake_quant(
        AMD_CUT if torch.version.hip else CUT, x, freqs, positions, inverse, scale
    )


def prepare_rope_tail_fp4_fake_quant(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `rope_tail_fp4_fake_quant`, compiled forward for the site's sizes, both scales and all forms of positions.

    Backward rotation, and heads or a table that do not begin at 16-byte boundaries, are compiled at their first call.
    """
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    compiled = fp4_rounding.compile_rope_tail_fp4_fake_quant
    return prepare_cut(
        fp4_rounding.rope_tail_fp4_fake_quant, cut, rope_tail_fp4_fake_quant, compiled, device, site, rows
    )

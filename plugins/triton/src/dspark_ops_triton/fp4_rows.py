"""Portable ``fp4_quantize_rows``: packed fp4 codes and scale words of the indexer's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import fp4_packing
from dspark_ops_triton.blocks.cutting import Cut
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.launching import prepare_launch

#: A verify step's few hundred rows are spread; blocks of rows save programs where a prefill brings thousands.
#: Four lanes share a group.
CUTS = ((4096, Cut(items=32, warps=16)), (0, Cut(items=8, warps=4)))
AMD_CUTS = ((4096, Cut(items=32, warps=8)), (0, Cut(items=8, warps=2)))


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
    return fp4_packing.fp4_quantize_rows(AMD_CUTS if torch.version.hip else CUTS, x, rounding)


def prepare_fp4_quantize_rows(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `fp4_quantize_rows`, compiled for the site's width and dtype, both roundings and its row blocks."""
    by_rows = AMD_CUTS if device.arch.vendor == "amd" else CUTS
    cuts = tuple((least, replace(cut, pdl=has_pdl(device))) for least, cut in by_rows)
    compiled = partial(fp4_packing.compile_fp4_quantize_rows, cuts)
    return prepare_launch(fp4_packing.fp4_quantize_rows, cuts, fp4_quantize_rows, compiled, device, site, rows)

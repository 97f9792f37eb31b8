"""Portable ``engram_gather``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import table_gather
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: The fastest on an H200 of 256 to 4096 bytes with 1 to 4 warps, for 24 to 1536 ids: 8 bytes of the table per thread.
CUT = Cut(items=512, warps=2)
#: 16 bytes of the table per lane.
AMD_CUT = Cut(items=2048, warps=2)


def engram_gather(table: Tensor, scales: Tensor, ids: Tensor, lo: int, hi: int) -> Tensor:
    """Return the dequantised table row of each id that this rank holds, and zeros for every other id.

    Args:
        table: [rows, D] float8_e4m3fn, contiguous, global rows `lo` to `hi` - 1; D a power of two of 32 to 8192.
        scales: [rows, D / 32] uint8, contiguous: byte e is 2**(e - 127), 1 to 254.
        ids: [T, I] int32 or int64, any strides.
        lo: first global row held.
        hi: row after the last one held.

    Returns:
        [T * I, D] bfloat16, row after row of `ids`.

    Raises:
        ValueError: another D, scales that do not fit the table, or a table of fewer than `hi - lo` rows.

    Bytes moved: D + D / 32 per id held, 2 * D per id. Launches: 1, none for no ids.

    Source: A16.
    """
    return table_gather.engram_gather(AMD_CUT if torch.version.hip else CUT, table, scales, ids, lo, hi)


def prepare_engram_gather(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `engram_gather`, compiled for the site's columns and ids of both dtypes."""
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    compiled = table_gather.compile_engram_gather
    return prepare_cut(table_gather.engram_gather, cut, engram_gather, compiled, device, site, rows)

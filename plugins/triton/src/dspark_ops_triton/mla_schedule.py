"""Portable ``mla_sched_meta``: the work records of the split-KV decode attention in one launch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.launching import prepare_launch
from dspark_ops_triton.blocks.mla_records import compile_mla_sched_meta
from dspark_ops_triton.blocks.mla_records import mla_sched_meta as _launch
from dspark_ops_triton.blocks.row_argmax import unit_count


def mla_sched_meta(
    lengths: Tensor,
    meta: Tensor,
    num_splits: Tensor,
    extra_lengths: Tensor | None = None,
    extra_topk: int = 0,
    form: str = "sparse",
    overhead: int = 5,
    block_size: int = 64,
) -> None:
    """Write one work record per part and the running number of splits, for attention over paged KV in P parts.

    Args:
        lengths: [B] int32, entries of each request; blocks and overheads of all requests together stay below 2**30.
        meta: [P, 8] int32, contiguous, written whole.
        num_splits: [B + 1] int32, written.
        extra_lengths: [B] int32, entries of the second cache, or None: `extra_topk` for every request.
        extra_topk: columns of the second cache's index row; 0 means that there is none.
        form: ``sparse`` counts a length of 0 as 1; ``dense`` keeps it.
        overhead: cost of one more request or split of a part, in blocks.
        block_size: entries of a block.

    Raises:
        ValueError: no request, no part, sizes that do not fit each other, an unknown form, a second cache of a dense
            one, or extra lengths without a second cache. Nothing is launched then.

    Bytes moved: 32 per part, 12 per request. Launches: 1.

    Source: N4, choice 15 of the index.
    """
    _launch(False, lengths, meta, num_splits, extra_lengths, extra_topk, form, overhead, block_size)


def prepare_mla_sched_meta(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `mla_sched_meta`, compiled for the planned requests and for as many parts as the device has units.

    Other numbers of parts, block sizes and records that are not 16-byte aligned are compiled at their first call, which
    must not be in a graph: call it once before.
    """
    units = device.units or (0 if device.arch.vendor == "cpu" else unit_count(torch.device("cuda")))
    compiled = functools.partial(compile_mla_sched_meta, units)
    return prepare_launch(_launch, has_pdl(device), mla_sched_meta, compiled, device, site, rows)

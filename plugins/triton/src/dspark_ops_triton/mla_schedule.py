"""Portable ``mla_sched_meta``: the work records of the split-KV decode attention in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.launching import bind_launch
from dspark_ops_triton.blocks.mla_walk import (
    lanes_of,
    records_of,
    schedule_constants,
    schedule_kernel,
    schedule_options,
)


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


def _launch(
    pdl: bool,
    lengths: Tensor,
    meta: Tensor,
    num_splits: Tensor,
    extra_lengths: Tensor | None = None,
    extra_topk: int = 0,
    form: str = "sparse",
    overhead: int = 5,
    block_size: int = 64,
) -> None:
    requests, parts = lengths.shape[0], meta.shape[0]
    if (
        form not in ("sparse", "dense")
        or (form == "dense" and extra_topk)
        or (extra_lengths is not None and not extra_topk)
    ):
        given = None if extra_lengths is None else "given"
        got = f"form {form!r}, extra_topk {extra_topk}, extra_lengths {given}"
        raise ValueError(f"mla_sched_meta: wanted form sparse, or dense without a second cache, got {got}")
    if requests < 1 or parts < 1 or meta.shape[1] != 8 or num_splits.shape[0] != requests + 1:
        got = f"{list(lengths.shape)}, {list(meta.shape)}, {list(num_splits.shape)}"
        raise ValueError(f"mla_sched_meta: wanted lengths [B], meta [P, 8] and num_splits [B + 1], got {got}")
    extra = 0 if not extra_topk else 1 if extra_lengths is None else 2
    schedule_kernel[(1,)](
        lengths, lengths if extra_lengths is None else extra_lengths, meta, num_splits,
        requests, parts, extra_topk, overhead,
        **schedule_constants(requests, parts, form, extra, block_size, pdl), **schedule_options(requests, pdl),
    )  # fmt: skip


def prepare_mla_sched_meta(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `mla_sched_meta`, compiled for the planned requests and for as many parts as the device has units.

    Other numbers of parts, block sizes and records that are not 16-byte aligned are compiled at their first call, which
    must not be in a graph: call it once before.
    """
    if device.arch.vendor == "cpu":
        return mla_sched_meta
    bound = bind_launch(_launch, has_pdl(device), mla_sched_meta)
    units = device.units or torch.cuda.get_device_properties("cuda").multi_processor_count
    for requests in sorted({lanes_of(count) for count in rows if count}):
        lengths = torch.ones(requests, dtype=torch.int32, device="cuda")
        num_splits = torch.empty(requests + 1, dtype=torch.int32, device="cuda")
        for parts in sorted({records_of(parts) for parts in (units, units // 2)}):
            meta = torch.empty(parts, 8, dtype=torch.int32, device="cuda")
            bound(lengths, meta, num_splits)
            if site.options.get("extra_topk"):
                for extra in (None, lengths):
                    bound(lengths, meta, num_splits, extra, site.options["extra_topk"])
    return bound

"""The work records of the split-KV decode attention in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.mla_walk import (
    lanes_of,
    records_of,
    schedule_constants,
    schedule_kernel,
    schedule_options,
)


def mla_sched_meta(
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
    """Write records and splits: ``mla_sched_meta`` (N4), arguments as in its contract; `pdl`: it is set up early."""
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


def compile_mla_sched_meta(units: int, call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
    """Call the operator once per build that the planned requests need, for as many parts as there are `units`."""
    for requests in sorted({lanes_of(count) for count in rows if count}):
        lengths = torch.ones(requests, dtype=torch.int32, device="cuda")
        num_splits = torch.empty(requests + 1, dtype=torch.int32, device="cuda")
        for parts in sorted({records_of(parts) for parts in (units, units // 2)}):
            meta = torch.empty(parts, 8, dtype=torch.int32, device="cuda")
            call(lengths, meta, num_splits)
            if site.options.get("extra_topk"):
                for extra in (None, lengths):
                    call(lengths, meta, num_splits, extra, site.options["extra_topk"])

"""``mla_sched_meta`` for SM100 and SM103: set up early, for the numbers of parts of these devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks import mla_records
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.launching import prepare_launch

#: Rows of a request that share a length: FlashMLA has so many parts fewer for them (N4.1).
SHARING_ROWS = (1, 6)


def mla_sched_meta(
    lengths: Tensor, meta: Tensor, num_splits: Tensor, extra_lengths: Tensor | None = None, extra_topk: int = 0,
    form: str = "sparse", overhead: int = 5, block_size: int = 64,
) -> None:  # fmt: skip
    """Write one work record per part and the running number of splits, for attention over paged KV in P parts.

    Arguments are those of the contract. Launches: 1.

    Source: N4, choice 15 of the index.
    """
    mla_records.mla_sched_meta(False, lengths, meta, num_splits, extra_lengths, extra_topk, form, overhead, block_size)


def prepare_mla_sched_meta(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `mla_sched_meta`, compiled for the planned requests, and for as many parts as FlashMLA has here.

    Other numbers of parts are compiled at their first call, which must not be in a graph: call it once before.
    """

    def compiled(call: Callable[..., Any], site: Any, rows: Sequence[int]) -> None:
        for shared in SHARING_ROWS:
            mla_records.compile_mla_sched_meta(max(device.units // shared, 1), call, site, rows)

    body = mla_records.mla_sched_meta
    return prepare_launch(body, has_pdl(device), mla_sched_meta, compiled, device, site, rows)

"""``paged_mqa_logits_fp4`` for gfx950: stored codes and scales go to the matrix unit as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.paged_logits import Tiles, compile_paged_logits, paged_logits

#: One page to a program of two waves, so that short contexts spread over the compute units. Reasoned, not measured.
TILES = Tiles(keys=64, warps=2, codes=True, instruction=16)


def paged_mqa_logits_fp4(
    q: Tensor,
    q_scale: Tensor,
    kv: Tensor,
    kv_scale: Tensor,
    block_tables: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    max_seq_len: int,
    weight_scale: float = 1.0,
    cta_info: Tensor | None = None,
    block_k: int = 256,
) -> Tensor:
    """Return the index logits of each query row over its request's keys, -inf for keys that the row may not see.

    The arguments are those of the contract; `cta_info` and `block_k` are not used, since a program per row and tile of
    keys needs no work list.

    Bytes moved: 68 per key and query row, ``68*H`` of queries per tile and row, mostly from cache, and 4 per result.
    Launches: 1, none for no results.

    Source: A17b.
    """
    return paged_logits(TILES, q, q_scale, kv, kv_scale, block_tables, weights, context_lens, max_seq_len, weight_scale)


def prepare_paged_mqa_logits_fp4(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `paged_mqa_logits_fp4`, compiled for the site's heads."""
    if device.arch.vendor != "cpu":
        compile_paged_logits(TILES, site)
    return paged_mqa_logits_fp4

"""Portable ``paged_mqa_logits_fp4``: queries and keys decoded to bfloat16, which holds them exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks.launching import bind_launch
from dspark_ops_triton.blocks.paged_logits import Tiles, compile_paged_logits, paged_logits
from dspark_ops_triton.blocks.tile_table import tiles_for

#: One page to a program, so that a short context still spreads.
TILES = Tiles(keys=64, warps=4, programs=2112)
#: Reasoned, not measured.
AMD_TILES = Tiles(keys=64, warps=4, instruction=16)


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

    Args:
        q: [B, next_n, H, 64] uint8, e2m1 codes, the even lane in the low nibble; H is 128 at most.
        q_scale: [B, next_n, 1, 4, 16, S] uint8, scale byte of head h and group c at ``[..., c, h % 16, h // 16]``.
        kv: [pages, 1, 4, 64, 16] uint8, keys.
        kv_scale: [pages, 1, 4, 64] uint8, scale byte of slot o at place ``o % 16 * 4 + o // 16``.
        block_tables: [B, W] int32, pages of each request.
        weights: [B * next_n, H] bfloat16, of the heads.
        context_lens: [B] int32, keys of each request.
        max_seq_len: columns of the result.
        weight_scale: factor of the result.
        cta_info: not used: a program per page and row needs no work list, and the result is the same.
        block_k: not used.

    Returns:
        [B * next_n, max_seq_len] float32, every element written.

    Raises:
        ValueError: sizes that do not fit each other, or more than 128 heads.

    Products are exact, sums float32.

    Bytes moved: 68 per key and query row, ``68*H`` of queries per program, mostly from cache, and 4 per result.
    Launches: 1, none for no results.

    Source: A17b.
    """
    return _logits(
        AMD_TILES if torch.version.hip else TILES, q, q_scale, kv, kv_scale, block_tables, weights, context_lens,
        max_seq_len, weight_scale,
    )  # fmt: skip


def _logits(
    tiles: Tiles, q: Tensor, q_scale: Tensor, kv: Tensor, kv_scale: Tensor, block_tables: Tensor, weights: Tensor,
    context_lens: Tensor, max_seq_len: int, weight_scale: float = 1.0, cta_info: Tensor | None = None,
    block_k: int = 256,
) -> Tensor:  # fmt: skip
    return paged_logits(
        tiles, q, q_scale, kv, kv_scale, block_tables, weights, context_lens, max_seq_len, weight_scale
    )  # fmt: skip


def prepare_paged_mqa_logits_fp4(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `paged_mqa_logits_fp4`, compiled for the site's heads."""
    if device.arch.vendor == "cpu":
        return paged_mqa_logits_fp4
    tiles = AMD_TILES if device.arch.vendor == "amd" else TILES
    tiles = tiles_for("paged_mqa_logits_fp4", device, site, tiles)
    compile_paged_logits(tiles, site)
    return bind_launch(_logits, tiles, paged_mqa_logits_fp4)


__all__ = ["AMD_TILES", "TILES", "paged_mqa_logits_fp4", "prepare_paged_mqa_logits_fp4"]

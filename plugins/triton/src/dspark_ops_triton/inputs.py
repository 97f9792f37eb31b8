"""Portable ``draft_inputs``, ``verify_inputs`` and ``expand_uniform``: small copies, each in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks import step_inputs
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: A row per thread.
CUT = Cut(items=64, warps=2)


def draft_inputs(bonus: Tensor, positions: Tensor, cache_loc: Tensor, draft_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Put each request's anchor into its block of ids, and return the flat positions and cache slots of the blocks.

    Args:
        bonus: [B] int64, any stride.
        positions: [B, at least Q] int64, any strides.
        cache_loc: [B, at least Q] int64, any strides.
        draft_ids: [B, Q] int64, contiguous; column 0 is written.

    Returns:
        positions_out and cache_out, [B * Q] int64 each.

    Raises:
        ValueError: `positions` or `cache_loc` is narrower than `draft_ids`, or that has no column.

    Bytes moved: 32 per row. Launches: 1, none for no requests.

    Source: A12.
    """
    return step_inputs.draft_inputs(CUT, bonus, positions, cache_loc, draft_ids)


def verify_inputs(ids: Tensor, positions: Tensor, cache_loc: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first `width` columns of each argument, flat, request after request.

    Args:
        ids: [B, W] int64, any strides.
        positions: [B, W] int64, any strides.
        cache_loc: [B, W] int64, any strides.
        width: rows per request that this step verifies, 1 to W.

    Returns:
        Three [B * width] int64.

    Raises:
        ValueError: shapes differ, or `width` is not in 1 to W.

    Bytes moved: 48 per row. Launches: 1, none for no requests.

    Source: A12.
    """
    return step_inputs.verify_inputs(CUT, ids, positions, cache_loc, width)


def expand_uniform(
    seq_lens: Tensor, request_indices: Tensor, width: int, padded_rows: int = 0
) -> tuple[Tensor, Tensor]:
    """Return for each verify row how far it sees and which request it belongs to.

    Args:
        seq_lens: [B] int32 or int64, lengths that include the `width` rows of this step.
        request_indices: [B] int32 or int64.
        width: rows per request.
        padded_rows: rows of the result; 0: B * width.

    Returns:
        causal_lens [N] int32 and request_rows [N] of `request_indices`' dtype; N is 0 without a request.

    Raises:
        ValueError: `width` is below 1, or `padded_rows` is neither 0 nor at least B * width.

    Bytes moved: about 12 per row. Launches: 1, none for no requests.

    Source: A3.
    """
    return step_inputs.expand_uniform(CUT, seq_lens, request_indices, width, padded_rows)


def prepare_draft_inputs(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `draft_inputs`, compiled for the site's block."""
    compiled = step_inputs.compile_draft_inputs
    return prepare_cut(step_inputs.draft_inputs, CUT, draft_inputs, compiled, device, site, rows)


def prepare_verify_inputs(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `verify_inputs`, compiled for every width that a step at the site may have."""
    compiled = step_inputs.compile_verify_inputs
    return prepare_cut(step_inputs.verify_inputs, CUT, verify_inputs, compiled, device, site, rows)


def prepare_expand_uniform(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `expand_uniform`, compiled for the dtypes of the contract."""
    compiled = step_inputs.compile_expand_uniform
    return prepare_cut(step_inputs.expand_uniform, CUT, expand_uniform, compiled, device, site, rows)

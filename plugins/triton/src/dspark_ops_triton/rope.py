"""Portable ``q_rope_store`` and ``rope_tail_copy``: heads whose last lanes are rotated on their way into a buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_ops_triton.blocks import turned_copy
from dspark_ops_triton.blocks.cutting import Cut, prepare_cut

#: Heads of one program, and the warps that share them: 16 bytes per thread at 512 lanes, so that the few rows of a
#: verify step still spread over many programs.
CUT, AMD_CUT = Cut(items=2, warps=4), Cut(items=2, warps=2)


def q_rope_store(q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor) -> None:
    """Write the query heads, their last P lanes rotated forward, into the first A heads of a wider buffer.

    Args:
        q: [T, A, D] bfloat16, last stride 1; not modified.
        out: [T, B, D] bfloat16, B >= A, last stride 1; written at heads 0 to A - 1, others are left as they are.
        freqs: [S, P] float32 interleaved.
        positions: [T] int32 or int64, below S.

    Raises:
        ValueError: `out` has fewer heads than `q`. Nothing is written then.

    Bytes moved: ``T * (4*A*D + 4*P)``. Launches: 1, none for no tokens.

    Source: N6.
    """
    turned_copy.q_rope_store(AMD_CUT if torch.version.hip else CUT, q, out, freqs, positions)


def rope_tail_copy(
    q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor | None = None, inverse: bool = False
) -> None:
    """Write each head with its last P lanes rotated into `out`; the other lanes are copied bit for bit.

    Args:
        q: [T, A, D] bfloat16, any strides; not modified unless it is `out` itself.
        out: [T, A, D] bfloat16, any strides. It is `q` or apart from it.
        freqs: [S, P] float32 interleaved, the table; [T, P], a row per token, without positions.
        positions: [T] int32 or int64, below S, or None.
        inverse: rotate backward.

    Raises:
        ValueError: `out` has another shape than `q`. Nothing is written then.

    Bytes moved: ``T * (4*A*D + 4*P)``. Launches: 1, none for no tokens.

    Source: A14.
    """
    turned_copy.rope_tail_copy(AMD_CUT if torch.version.hip else CUT, q, out, freqs, positions, inverse)


def prepare_q_rope_store(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `q_rope_store`, compiled for the site's sizes and both dtypes of positions.

    Compiled are heads at 16-byte boundaries in both tensors and in none, and a table at one; other mixtures are
    compiled at their first call.
    """
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    compiled = turned_copy.compile_q_rope_store
    return prepare_cut(turned_copy.q_rope_store, cut, q_rope_store, compiled, device, site, rows)


def prepare_rope_tail_copy(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `rope_tail_copy`, compiled for the site's sizes, both directions, and positions of either dtype or none.

    Heads whose lanes are not adjacent, or that begin at 16-byte boundaries in one tensor only, and a table that does
    not, are compiled at their first call.
    """
    cut = AMD_CUT if device.arch.vendor == "amd" else CUT
    compiled = turned_copy.compile_rope_tail_copy
    return prepare_cut(turned_copy.rope_tail_copy, cut, rope_tail_copy, compiled, device, site, rows)

"""Portable ``compress_c1`` and ``compress_c2`` for the layout ``kv_v4``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.compression import (
    FORMS,
    compile_compress_c1,
    compile_compress_c2,
    compress_c1_kernel,
    compress_c2_kernel,
)
from dspark_ops_triton.blocks.compression import compress_c1 as _compress_c1
from dspark_ops_triton.blocks.compression import compress_c2 as _compress_c2
from dspark_ops_triton.blocks.keep_last import SEARCHED, keep_last_kernel
from dspark_ops_triton.blocks.launching import RowTiles, prepare_launch
from dspark_ops_triton.blocks.tile_table import tiles_for

#: A warp per two groups of 64 lanes: their codes, made from bits, are most of the work.
TILES = RowTiles(warps=4)


def compress_c1(
    kv: Tensor,
    weight: Tensor,
    freqs: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    layout: str = "kv_v4",
    eps: float = 1e-20,
) -> Tensor:
    """Return the latent of each token, [N, 512] bfloat16, and store its entry at the token's own slot.

    Args:
        kv: [N, 512] bfloat16, last stride 1.
        weight: [512] bfloat16, of the norm.
        freqs: [S, 64] float32 interleaved.
        positions: [N] int32 or int64, below S.
        out_loc: [N] int32 or int64 slots; those that are not positive, or beyond the last page, store nothing.
        cache: [pages, page_bytes] uint8, contiguous, written at the kept slots only.
        page_size: slots of a page, a power of two.
        layout: ``kv_v4``.
        eps: added to the mean square, under the root.

    Raises:
        ValueError: another layout, rows that are not 512 wide, or a cache that has not this page size. Nothing is
            written then.

    Bytes moved: about 2900 per row. Launches: 1, none for no rows.

    Source: N8.1, N8.2.
    """
    return _compress_c1(TILES, kv, weight, freqs, positions, out_loc, cache, page_size, layout, eps)


def compress_c2(
    kv_score: Tensor,
    state: Tensor,
    weight: Tensor,
    freqs: Tensor,
    positions: Tensor,
    requests: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    ring_size: int,
    form: str = "decode",
    draft_len: int = 1,
    layout: str = "kv_v4",
    eps: float = 1e-20,
) -> Tensor:
    """Return the latent of each pair that an odd position completes, and store its entry at half the token's slot.

    Args:
        kv_score: [N, 1024] float32, contiguous, the values and then the scores of each token.
        state: [slots, 1024] float32, contiguous, the rings of the requests, written as `form` says.
        weight: [512] bfloat16, of the norm.
        freqs: [S, 64] float32 interleaved.
        positions: [N] int32 or int64, below S.
        requests: [N] int64, the ring of each row.
        out_loc: [N] int32 or int64, the tokens' full slots; 0 marks a padded row, which writes nothing.
        cache: [pages, page_bytes] uint8, contiguous, written at the kept slots only.
        page_size: slots of a page, a power of two.
        ring_size: rows of a request in `state`, above `draft_len`.
        form: ``decode``, ``verify`` or ``extend``.
        draft_len: rows per request in the form ``verify``.
        layout: ``kv_v4``.
        eps: added to the mean square, under the root.

    Returns:
        [N, 512] bfloat16; rows that complete no pair, and padded rows, hold zeros.

    Raises:
        ValueError: an unknown form, rows that are no multiple of `draft_len`, a ring that is too small for it, or what
            `compress_c1` refuses. Nothing is written then.

    Bytes moved: about 10 kB per completed pair, 9 kB per row that goes into the ring. Launches: 1, and 2 in the form
    ``extend``, where the second one reads all positions once per row; none for no rows.

    Source: N8.1, N8.3.
    """
    return _compress_c2(
        TILES, kv_score, state, weight, freqs, positions, requests, out_loc, cache,
        page_size, ring_size, form, draft_len, layout, eps,
    )  # fmt: skip


def prepare_compress_c1(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `compress_c1`, compiled for positions and slots of either dtype, and for rows at 16-byte boundaries.

    Rows elsewhere, or a table that does not begin at one, are compiled at their first call.
    """
    tiles = tiles_for("compress_c1", device, site, TILES)
    return prepare_launch(_compress_c1, tiles, compress_c1, compile_compress_c1, device, site, rows)


def prepare_compress_c2(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `compress_c2`, compiled for its forms, and for positions and slots of one dtype.

    Positions and slots of different dtypes, or a table that does not begin at a 16-byte boundary, are compiled at their
    first call.
    """
    tiles = tiles_for("compress_c2", device, site, TILES)
    return prepare_launch(_compress_c2, tiles, compress_c2, compile_compress_c2, device, site, rows)


__all__ = [
    "FORMS",
    "SEARCHED",
    "TILES",
    "compress_c1",
    "compress_c1_kernel",
    "compress_c2",
    "compress_c2_kernel",
    "keep_last_kernel",
    "prepare_compress_c1",
    "prepare_compress_c2",
]

"""Portable ``k_norm_rope_store`` for the layouts of V4 and of V4.1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.kv_rows import compile_k_norm_rope_store, norm_rope_store_kernel
from dspark_ops_triton.blocks.kv_rows import k_norm_rope_store as _store
from dspark_ops_triton.blocks.launching import RowTiles, prepare_launch
from dspark_ops_triton.blocks.tile_table import tiles_for

#: A warp per two groups of 64 lanes: their codes, made from bits, are most of the work.
TILES = RowTiles(warps=4)


def k_norm_rope_store(
    kv: Tensor,
    weight: Tensor,
    freqs: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    cache: Tensor,
    page_size: int,
    layout: str = "kv_v4",
    eps: float = 1e-20,
) -> None:
    """Write the normalised, rotated and quantised latent row of each token into its cache slot.

    Args:
        kv: [B, 512] bfloat16, last stride 1.
        weight: [512] bfloat16, of the norm.
        freqs: [S, 64] float32 interleaved.
        positions: [B] int32 or int64, below S.
        out_loc: [B] int32 cache slots. A row with a negative slot, or one beyond the last page, writes nothing.
        cache: [pages, page_bytes] uint8, contiguous, written at the kept slots only.
        page_size: slots of a page, a power of two.
        layout: ``kv_v4``, ``kv_v41``, ``kv_v41_fp4``, or one of the last two with ``_new``.
        eps: added to the mean square, under the root.

    Raises:
        ValueError: another layout, rows that are not 512 wide, or a cache that has not this page size. Nothing is
            written then.

    Bytes moved: about 1870 per row: 1024 read, 256 of the table, 583 written, or 528 and 288 in the layouts of V4.1.
    Launches: 1, none for no rows.

    Source: N7.2, N7.3.
    """
    _store(TILES, kv, weight, freqs, positions, out_loc, cache, page_size, layout, eps)


def prepare_k_norm_rope_store(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `k_norm_rope_store`, compiled for the site's layout and both dtypes of positions.

    Compiled are rows at 16-byte boundaries and rows that are not, and a table at one; another table is compiled at its
    first call.
    """
    tiles = tiles_for("k_norm_rope_store", device, site, TILES)
    return prepare_launch(_store, tiles, k_norm_rope_store, compile_k_norm_rope_store, device, site, rows)


__all__ = ["TILES", "k_norm_rope_store", "norm_rope_store_kernel", "prepare_k_norm_rope_store"]

"""``k_norm_rope_store``, ``compress_c1`` and ``compress_c2`` for SM100 and SM103: warps of a latent row as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks import compression, kv_rows
from dspark_ops_triton.blocks.dependent import has_pdl
from dspark_ops_triton.blocks.launching import RowTiles, prepare_launch

#: 512 lanes are four to each of 128 threads. These rows run beside the queries' chain (N9): a row is one small program,
#: so that the few of a step take few multiprocessors from it. Reasoned, not measured.
TILES = RowTiles(warps=4)


def k_norm_rope_store(
    kv: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, out_loc: Tensor, cache: Tensor, page_size: int,
    layout: str = "kv_v4", eps: float = 1e-20,
) -> None:  # fmt: skip
    """Write the normalised, rotated and quantised latent row of each token into its cache slot.

    Arguments are those of the contract. Launches: 1, none for no rows.

    Source: N7.2, N7.3.
    """
    kv_rows.k_norm_rope_store(TILES, kv, weight, freqs, positions, out_loc, cache, page_size, layout, eps)


def compress_c1(
    kv: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, out_loc: Tensor, cache: Tensor, page_size: int,
    layout: str = "kv_v4", eps: float = 1e-20,
) -> Tensor:  # fmt: skip
    """Return the latent of each token, [N, 512] bfloat16, and store its entry at the token's own slot.

    Arguments are those of the contract. Launches: 1, none for no rows.

    Source: N8.1, N8.2.
    """
    return compression.compress_c1(TILES, kv, weight, freqs, positions, out_loc, cache, page_size, layout, eps)


def compress_c2(
    kv_score: Tensor, state: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, requests: Tensor,
    out_loc: Tensor, cache: Tensor, page_size: int, ring_size: int, form: str = "decode", draft_len: int = 1,
    layout: str = "kv_v4", eps: float = 1e-20,
) -> Tensor:  # fmt: skip
    """Return the latent of each pair that an odd position completes, and store its entry at half the token's slot.

    Arguments are those of the contract. Launches: 1, and 2 in the form ``extend``; none for no rows.

    Source: N8.1, N8.3.
    """
    return compression.compress_c2(
        TILES, kv_score, state, weight, freqs, positions, requests, out_loc, cache, page_size, ring_size, form,
        draft_len, layout, eps,
    )  # fmt: skip


def prepare_k_norm_rope_store(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., None]:
    """Return `k_norm_rope_store`, set up early, compiled for the site's layout."""
    body, compiled = kv_rows.k_norm_rope_store, kv_rows.compile_k_norm_rope_store
    return prepare_launch(body, _tiles(device), k_norm_rope_store, compiled, device, site, rows)


def prepare_compress_c1(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `compress_c1`, set up early, compiled for positions and slots of either dtype."""
    body, compiled = compression.compress_c1, compression.compile_compress_c1
    return prepare_launch(body, _tiles(device), compress_c1, compiled, device, site, rows)


def prepare_compress_c2(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Tensor]:
    """Return `compress_c2`, set up early, compiled for its forms."""
    body, compiled = compression.compress_c2, compression.compile_compress_c2
    return prepare_launch(body, _tiles(device), compress_c2, compiled, device, site, rows)


def _tiles(device: Any) -> RowTiles:
    return replace(TILES, pdl=has_pdl(device))

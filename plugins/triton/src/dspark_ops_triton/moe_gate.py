"""Portable ``moe_gate_topk`` and ``moe_gate_topk_packed``: one body, one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dspark_ops_triton.blocks.expert_gate import compile_moe_gate_topk, gate_kernel, launch_constants
from dspark_ops_triton.blocks.expert_gate import moe_gate_topk as _chosen
from dspark_ops_triton.blocks.expert_gate import moe_gate_topk_packed as _packed
from dspark_ops_triton.blocks.launching import RowTiles, prepare_launch
from dspark_ops_triton.blocks.tile_table import tiles_for

#: Each warp of a row has a group of the experts to itself and chooses from it without the others.
TILES = RowTiles(warps=4)


def moe_gate_topk(
    logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float = 1.5, renorm_eps: float = 1e-20, pad_id: int = -1,
    num_valid: Tensor | None = None, bias_alt: Tensor | None = None, input_ids: Tensor | None = None,
    alt_token_id: int = -1, numerics: str = "log1p",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the weights and ids of the experts chosen for each token.

    Args:
        logits: [M, E] float32, bfloat16 or float16, any strides.
        bias: [E] float32 or bfloat16.
        top_k: experts per token, at most E.
        routed_scaling: factor applied after the division.
        renorm_eps: added to the sum of the chosen scores; 0: the sum itself divides, or 1 where it is 0.
        pad_id: id of padded rows.
        num_valid: [1] int32; rows from it on are padding. None: none is.
        bias_alt: [E] float32 or bfloat16, of rows whose token is `alt_token_id`.
        input_ids: [M] int64, needed with `bias_alt`.
        alt_token_id: the token that asks for `bias_alt`.
        numerics: ``log1p``.

    Returns:
        weights [M, top_k] float32 and ids [M, top_k] int32.

    Bytes moved: the logits once, 8 per choice, the bias from cache. Launches: 1, none for no rows.

    Source: N2, O04.
    """
    return _chosen(
        TILES, logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt, input_ids, alt_token_id
    )


def moe_gate_topk_packed(
    logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float = 1.5, renorm_eps: float = 1e-20, pad_id: int = -1,
    num_valid: Tensor | None = None, bias_alt: Tensor | None = None, input_ids: Tensor | None = None,
    alt_token_id: int = -1, numerics: str = "log1p",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what `moe_gate_topk` returns, and the same choice as packed words, [M, top_k] int32.

    Arguments are those of `moe_gate_topk`; `pad_id` fits 16 bits.

    Bytes moved: those of `moe_gate_topk`, and 4 per choice. Launches: 1, none for no rows.

    Source: N2.
    """
    return _packed(
        TILES, logits, bias, top_k, routed_scaling, renorm_eps, pad_id, num_valid, bias_alt, input_ids, alt_token_id
    )


def prepare_moe_gate_topk(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `moe_gate_topk`, compiled for the site's sizes and dtypes, with and without what is optional."""
    tiles, compiled = tiles_for("moe_gate_topk", device, site, TILES), compile_moe_gate_topk
    return prepare_launch(_chosen, tiles, moe_gate_topk, compiled, device, site, rows)


def prepare_moe_gate_topk_packed(device: Any, site: Any, rows: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return `moe_gate_topk_packed`, compiled as `prepare_moe_gate_topk` does."""
    tiles, compiled = tiles_for("moe_gate_topk", device, site, TILES), compile_moe_gate_topk
    return prepare_launch(_packed, tiles, moe_gate_topk_packed, compiled, device, site, rows)


__all__ = [
    "TILES",
    "gate_kernel",
    "launch_constants",
    "moe_gate_topk",
    "moe_gate_topk_packed",
    "prepare_moe_gate_topk",
    "prepare_moe_gate_topk_packed",
]

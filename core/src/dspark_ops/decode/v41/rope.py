"""The two rotary tables of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.rope import rope_table
from dspark_ops.decode.v41.config import MAX_GAMMA, V41Config

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["rotary_tables"]


def rotary_tables(config: V41Config, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tables of window-only layers and draft stages, and of compressed layers: float32 [S, 64] each.

    They are a draft block longer than the context, since a block may start at its last position (C2.7.3).

    Source: N-G.1.
    """
    positions = config.max_positions + MAX_GAMMA
    plain = rope_table(config.rope_dim, positions, config.rope_theta)
    compressed = rope_table(config.rope_dim, positions, config.compress_rope_theta, yarn=config.yarn)
    return plain.to(device), compressed.to(device)

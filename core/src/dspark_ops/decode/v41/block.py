"""One target layer or draft stage: attention and mixture of experts, each inside a hyper-connection site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.ranks.group import SOLO, RankGroup
from dspark_ops.decode.v41.attention import Attention
from dspark_ops.decode.v41.config import V41Config
from dspark_ops.decode.v41.moe import MixtureOfExperts

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Block", "spread"]


class Block:
    """One layer. `prefix` is ``layers.0`` or ``mtp.0``; `top_k` is the number of experts per row; `group` its ranks."""

    def __init__(
        self, config: V41Config, weights: Mapping[str, Tensor], prefix: str, top_k: int, group: RankGroup = SOLO
    ) -> None:
        self.attention = Attention(config, weights, f"{prefix}.attn", group)
        self._experts = MixtureOfExperts(config, weights, f"{prefix}.ffn", top_k, group)
        self._attention_mix = _Mix(config, weights, f"{prefix}.hc_attn")
        self._expert_mix = _Mix(config, weights, f"{prefix}.hc_ffn")
        self._attention_norm = weights[f"{prefix}.attn_norm.weight"]
        self._expert_norm = weights[f"{prefix}.ffn_norm.weight"]
        self._eps = config.rms_eps

    def __call__(
        self, ops: Any, streams: Tensor, pre: Tensor, attend: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the streams after this layer and the ``pre`` that the next one combines with (N3.1).

        Args:
            ops: operators of the site.
            streams: [T, N, hidden] bfloat16.
            pre: [T, N] float32, from the layer before.
            attend: maps the attention input [T, hidden] to its output; this is where the caches come in.
        """
        flat = streams.flatten(1)
        attention_pre, post, comb = self._attention_mix(ops, flat)
        attended = attend(ops.mhc_combine_norm(flat, pre, self._attention_norm, self._eps))
        streams = ops.mhc_post(attended, streams, post, comb)
        flat = streams.flatten(1)
        expert_pre, post, comb = self._expert_mix(ops, flat)
        mixed = self._experts(ops, ops.mhc_combine_norm(flat, attention_pre, self._expert_norm, self._eps))
        return ops.mhc_post(mixed, streams, post, comb), expert_pre


class _Mix:
    def __init__(self, config: V41Config, weights: Mapping[str, Tensor], prefix: str) -> None:
        self._fn, self._base, self._scale = (weights[f"{prefix}_{part}"] for part in ("fn", "base", "scale"))
        self._constants = (config.rms_eps, config.hc_eps, config.hc_iterations)

    def __call__(self, ops: Any, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mix: tuple[Tensor, Tensor, Tensor] = ops.mhc_mix_sinkhorn(
            flat, self._fn, self._scale, self._base, *self._constants
        )
        return mix


def spread(embedded: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """Return the first streams, `copies` copies of embedded [T, hidden], and the first ``pre``, one-hot on copy 0."""
    pre = torch.zeros(embedded.shape[0], copies, device=embedded.device)
    pre[:, 0] = 1.0
    return embedded.unsqueeze(1).expand(-1, copies, -1).contiguous(), pre

"""The one inverse-CDF draw that every sampled operator uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def inverse_cdf(weights: Tensor, coins: Tensor) -> Tensor:
    """Return per row the first index whose running sum of weights exceeds ``coin * total``.

    Args:
        weights: [..., V] finite, not negative; they need not sum to 1. Float32 values are summed in float64: a sum of
            a hundred thousand entries in a short format is not monotone.
        coins: [...] uniforms of [0, 1).

    Returns:
        [...] int64. A coin that no running sum exceeds (1.0, NaN, or rounding just below 1) gives the last index of
        positive weight, so that an id of weight zero is never drawn; a row without positive weight gives 0.

    Source: C2.3.7.
    """
    running = weights.double().cumsum(-1)
    hit = running > coins.double().unsqueeze(-1) * running[..., -1:]
    first = hit.int().argmax(-1)
    columns = torch.arange(weights.shape[-1], device=weights.device)
    last_positive = torch.where(weights > 0, columns, 0).amax(-1)
    return torch.where(hit.any(-1), first, last_positive)

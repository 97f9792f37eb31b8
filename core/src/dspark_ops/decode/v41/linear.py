"""Linears, norm and the mean over streams, with results that do not depend on how many rows are in a call.

Greedy speculative decoding equals plain decoding only if a row of a verify step has the very bits that it has alone
(C2.2.4, C10.8). That is had by accumulating in float64, on the CPU and on an accelerator: products of bfloat16 values
are exact there, and so are their sums as long as the terms lie within some 2^28 of each other, so that the order in
which a matrix product adds them leaves no trace. An engine would use its own matrix products, without this promise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Linear", "mean_of_streams", "rms_norm"]


class Linear:
    """A linear layer without bias.

    Args:
        weight: [out, in] bfloat16 or float32, or [groups, out, in] for one such layer per group (experts).

    A float64 copy of the weight is kept, four times the bytes of the stored one.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._transposed = weight.double().mT

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [T, in] through the layer, rounded once to bfloat16: [T, out]."""
        return self._product(x, self._transposed).to(torch.bfloat16)

    def float32(self, x: Tensor) -> Tensor:
        """Return x [T, in] through the layer in float32, for logits, router and pooling scores (N8.1): [T, out]."""
        return self._product(x, self._transposed).float()

    def float64(self, x: Tensor, group: int) -> Tensor:
        """Return x [T, in] through one group's layer, unrounded: [T, out]."""
        return self._product(x, self._transposed[group])

    def of_groups(self, x: Tensor, groups: Tensor) -> Tensor:
        """Return each row of x [T, in] through the layer of its own group [T] int64, as `float64` rounds: [T, out].

        The host reads nothing, so this may be captured in a graph. It reads a group's weight once per row.
        """
        return torch.bmm(x.to(self._transposed.dtype).unsqueeze(1), self._transposed[groups]).squeeze(1)

    @staticmethod
    def _product(x: Tensor, transposed: Tensor) -> Tensor:
        return x.to(transposed.dtype) @ transposed


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``x * rsqrt(mean(x^2) + eps) * weight`` rounded once: [T, D] bfloat16."""
    wide = x.double()
    inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * inverse * weight.double()).to(torch.bfloat16)


def mean_of_streams(x: Tensor) -> Tensor:
    """Return the mean over the residual streams, [T, N, D] to [T, D] bfloat16: the draft's tap (C1.3)."""
    return x.double().mean(1).to(torch.bfloat16)

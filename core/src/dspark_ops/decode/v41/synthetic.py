"""Weights of made-up models: for tests and benchmarks that need a model's shape and not its knowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.decode.v41.config import V41Config
from dspark_ops.decode.v41.tensors import tensor_specs

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["random_weights"]


def random_weights(config: V41Config, seed: int) -> dict[str, Tensor]:
    """Return a full set of weights that the loader accepts, drawn from a seed, on the CPU.

    Linear weights keep the scale of what they map, norms are near 1, sinks and biases near 0, and the hyper-connections
    mix noticeably, so that a fault in any part shows in the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, spec in tensor_specs(config).items():
        values = torch.randn(spec.shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.1 * values
        elif len(spec.shape) > 1:
            values = values * (1.0 if name == "embed.weight" else spec.shape[-1] ** -0.5)
        else:
            values = 0.2 * values
        weights[name] = values.to(getattr(torch, spec.dtype))
    return weights

"""Which part of the weights each rank holds, and the operator shapes that follow.

Everything that is cut is cut into as many equal parts as there are ranks, each of ``ceil(size / ranks)``; where that is
more than there is, the last ones are padded with zeros. So every rank has the same shapes, and therefore the same plan,
for any number of ranks. The results of padding are dropped where columns are gathered, and ignored by the argmax.

- output head and Markov head: rows of the vocabulary (the embeddings, which are looked up and not multiplied, stay
  whole);
- attention: output groups with their heads; then the rows of the last projection;
- experts, routed and shared: rows of the inner dimension; then the rows of the second projection.

The rest is on every rank: latents and caches (all heads share one), compressors, router, hyper-connections, norms, the
draft's projection and confidence head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dspark_ops._lazy import torch
from dspark_ops.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.contracts.model_shapes import ModelShapes
    from dspark_ops.decode.v41.config import V41Config

__all__ = ["HEAD", "Shards", "cut_weights", "norms_text", "rank_shapes"]

HEAD: Final = "head.weight"
"""Name of a rank's part of the output head. A model on one rank has none: its head is its embedding."""

_ROWS: Final = {
    "attn.wo_a.weight": 0,
    "attn.wo_b.weight": 0,
    "ffn.experts.w1": 1,
    "ffn.experts.w2": 1,
    "ffn.experts.w3": 1,
    "ffn.shared_experts.w1": 0,
    "ffn.shared_experts.w2": 0,
    "ffn.shared_experts.w3": 0,
    "markov_head.head.weight": 0,
}
"""Dimension along which a tensor is cut, by the end of its name."""

_GROUPED: Final = ("attn.wq_b.weight", "attn.attn_sink")
"""Tensors whose first dimension is cut by output groups."""


@dataclass(frozen=True, slots=True)
class Shards:
    """How `size` things lie on `ranks` ranks: in order, equally many places on each, the last places perhaps empty.

    Raises:
        ModelError: a number is below 1.
    """

    size: int
    ranks: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.ranks < 1:
            raise ModelError(f"{self.size} things on {self.ranks} ranks: wanted at least one of each")

    @property
    def width(self) -> int:
        """Places on each rank."""
        return -(-self.size // self.ranks)

    def valid(self, rank: int) -> int:
        """Return how many places of a rank are taken; 0 on a rank that is behind the end."""
        return max(0, min(self.width, self.size - rank * self.width))

    def cut(self, tensor: Tensor, rank: int, dim: int = 0) -> Tensor:
        """Return a copy of a rank's part along a dimension of `size`, padded with zeros to `width`."""
        if tensor.shape[dim] != self.size:
            raise ModelError(f"a tensor of {list(tensor.shape)} cannot be cut along {dim}: wanted {self.size} there")
        shape = list(tensor.shape)
        shape[dim] = self.width
        part = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        count = self.valid(rank)
        if count:
            part.narrow(dim, 0, count).copy_(tensor.narrow(dim, rank * self.width, count))
        return part


def cut_weights(config: V41Config, weights: Mapping[str, Tensor], rank: int, ranks: int) -> dict[str, Tensor]:
    """Return the tensors that one of `ranks` ranks holds, under their names; on one rank all of them, untouched.

    Args:
        config: the model.
        weights: the whole model's checked tensors.
        rank: from 0.
        ranks: how many there are.
    """
    if ranks == 1:
        return dict(weights)
    held = {name: _cut(config, name, tensor, rank, ranks) for name, tensor in weights.items()}
    held[HEAD] = Shards(config.vocab, ranks).cut(weights["embed.weight"], rank)
    return held


def _cut(config: V41Config, name: str, tensor: Tensor, rank: int, ranks: int) -> Tensor:
    for ending, dim in _ROWS.items():
        if name.endswith(ending):
            return Shards(tensor.shape[dim], ranks).cut(tensor, rank, dim)
    if name.endswith(_GROUPED):
        grouped = tensor.unflatten(0, (config.o_groups, -1))
        return Shards(config.o_groups, ranks).cut(grouped, rank).flatten(0, 1)
    return tensor


def norms_text(weights: Mapping[str, Tensor]) -> str:
    """Return the norm weights as a text: every rank holds them whole, and no two checkpoints have the same ones."""
    norms = sorted(name for name in weights if name.endswith("norm.weight"))
    return "".join(f"{name} {weights[name].float().cpu().numpy().tobytes().hex()}\n" for name in norms)


def rank_shapes(shapes: ModelShapes, ranks: int) -> ModelShapes:
    """Return the sizes that operators have on each of `ranks` ranks, padding included."""
    if ranks == 1:
        return shapes
    groups = Shards(shapes.o_groups, ranks).width
    return replace(
        shapes,
        name=f"{shapes.name}/tp{ranks}",
        ranks=ranks,
        o_groups=groups,
        heads=shapes.heads // shapes.o_groups * groups,
        moe_intermediate=Shards(shapes.moe_intermediate, ranks).width,
        shared_intermediate=Shards(shapes.shared_intermediate, ranks).width,
    )

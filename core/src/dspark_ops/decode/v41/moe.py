"""The mixture of experts: router, routed experts, shared expert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.ranks.group import SOLO, RankGroup, joined_columns
from dspark_ops.decode.v41.config import V41Config
from dspark_ops.decode.v41.geometry import MAX_STEP_ROWS
from dspark_ops.decode.v41.linear import Linear

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MixtureOfExperts"]


class MixtureOfExperts:
    """One feed-forward site.

    Args:
        config: the model.
        weights: the model's tensors.
        prefix: names start with this, such as ``layers.0.ffn``.
        top_k: experts per row.
        group: ranks that the experts' inner dimension and outputs are spread over; the weights are this rank's part.

    Source: C5.4. The routing weight multiplies the activation, before the second projection.
    """

    def __init__(
        self, config: V41Config, weights: Mapping[str, Tensor], prefix: str, top_k: int, group: RankGroup = SOLO
    ) -> None:
        self._group, self._inner, self._hidden = group, config.intermediate, config.hidden
        self._limit = config.swiglu_limit
        self._scaling = config.routed_scaling
        self._top_k = top_k
        self._router = Linear(weights[f"{prefix}.gate.weight"])
        self._bias = weights[f"{prefix}.gate.bias"]
        # The shared expert has the routed ones' shape (n_shared_experts is 1): it is the last of one stack.
        stacks = {name: weights[f"{prefix}.experts.{name}"] for name in ("w1", "w3", "w2")}
        shared = {name: weights[f"{prefix}.shared_experts.{name}"].unsqueeze(0) for name in stacks}
        both = {name: torch.cat((stacks[name], shared[name])) for name in stacks}
        self._shared = stacks["w1"].shape[0]
        self._up = Linear(torch.cat((both["w1"], both["w3"]), 1))
        self._down = Linear(both["w2"])

    def __call__(self, ops: Any, x: Tensor) -> Tensor:
        """Return the site's output for x [T, hidden]: the same shape, bfloat16, rounded once after the last sum."""
        rows = x.shape[0]
        weights, ids = ops.moe_gate_topk(self._router.float32(x), self._bias, self._top_k, self._scaling)
        slots = self._top_k + 1
        shared_id = torch.full((rows, 1), self._shared, dtype=ids.dtype, device=ids.device)
        experts = torch.cat((ids, shared_id), 1).flatten()
        factors = torch.cat((weights, torch.ones_like(weights[:, :1])), 1).view(-1, 1)
        members = torch.arange(rows * slots, device=x.device) // slots
        gate_up = self._through(self._up, x[members], experts).to(x.dtype)
        active = torch.cat([ops.silu_mul_clamp(part, self._limit) for part in gate_up.split(MAX_STEP_ROWS)])
        active = joined_columns(self._group, (active.float() * factors).to(x.dtype), self._inner)
        terms = self._through(self._down, active, experts).double()
        return joined_columns(self._group, terms.view(rows, slots, -1).sum(1).to(x.dtype), self._hidden)

    @staticmethod
    def _through(layers: Linear, x: Tensor, experts: Tensor) -> Tensor:
        """Return each row of x [S, in] through its own expert's layer, [S, out].

        On the CPU rows are grouped by expert, which asks the host what the groups are; on an accelerator they are not,
        since nothing there may wait for the host. Both give the same values: see `linear`.
        """
        if x.is_cuda:
            return layers.of_groups(x, experts)
        groups = list(_groups(experts))
        out = torch.empty(x.shape[0], layers.weight.shape[-2], dtype=torch.float64)
        for expert, members in groups:
            out[members] = layers.float64(x[members], expert)
        return out


def _groups(experts: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Return each expert that occurs, with the positions at which it does, in ascending order."""
    order = experts.argsort(stable=True)
    found, counts = torch.unique_consecutive(experts[order], return_counts=True)
    return zip(found.tolist(), order.split(counts.tolist()), strict=True)

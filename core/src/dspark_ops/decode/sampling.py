"""The target law of a request: temperature, top-k and top-p applied to logits, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.contracts.argmax import argmax_rows
from dspark_ops.errors import ContractError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GREEDY_BELOW", "SamplingParams", "greedy_rows", "target_law"]

GREEDY_BELOW = 1e-5
"""Temperature under which a request is greedy (C1.7.3)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request samples.

    Attributes:
        temperature: divides the logits; below 1e-5 the request is greedy.
        top_k: tokens kept, the most probable first; 0 keeps all, 1 is greedy.
        top_p: probability mass kept; 1 keeps all.
        seed: seed of the request's uniforms, a signed 64-bit integer.

    Raises:
        ContractError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):  # a NaN fails too
            raise ContractError(f"temperature is {self.temperature}: wanted a finite number, 0 (greedy) or more")
        if self.top_k < 0:
            raise ContractError(f"top_k is {self.top_k}: wanted 0 (all tokens) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise ContractError(f"top_p is {self.top_p}: wanted a number above 0 and at most 1")
        if not -(2**63) <= self.seed < 2**63:
            raise ContractError(f"seed is {self.seed}: wanted a signed 64-bit integer")

    @property
    def greedy(self) -> bool:
        """The request takes the most probable token at every step."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def greedy_rows(temperature: Tensor, top_k: Tensor) -> Tensor:
    """Return which rows are greedy: temperature below 1e-5, or top_k 1.

    Args:
        temperature: [N] float.
        top_k: [N] integer, 0 for all tokens.
    """
    return (temperature < GREEDY_BELOW) | (top_k == 1)


def target_law(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the law each row would be sampled from without speculation, and which rows are greedy.

    Softmax of logits / temperature; then only the `top_k` most probable tokens, renormalised; then only the most
    probable tokens up to a mass of `top_p` (the token that reaches it is kept, so at least one is), renormalised. Of
    equal tokens the lower id counts as more probable. A greedy row is one-hot at its first NaN, else at its maximum,
    the lowest index of equal ones, so that verifying it by this law is verifying it by argmax. A row whose softmax does
    not exist (NaN, +inf, or nothing above -inf) stays NaN: accepting refuses it.

    Args:
        logits: [N, V] float.
        temperature: [N] float.
        top_k: [N] integer, 0 for all tokens.
        top_p: [N] float in (0, 1].
        dtype: dtype of the law; float32 by default. All work is in float64.

    Returns:
        law: [N, V].
        greedy: [N] bool.

    Source: C2.3.1, C2.3.10.
    """
    greedy = greedy_rows(temperature, top_k)
    scale = torch.where(greedy, 1.0, temperature.double()).unsqueeze(1)
    law = (logits.double() / scale).softmax(-1)
    ranked, order = law.sort(dim=-1, descending=True, stable=True)
    vocab = logits.shape[1]
    keep = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab).unsqueeze(1)
    ranked = torch.where(torch.arange(vocab, device=logits.device) < keep, ranked, 0.0)
    ranked = ranked / ranked.sum(-1, keepdim=True)
    before = torch.nn.functional.pad(ranked.cumsum(-1)[:, :-1], (1, 0))
    share = top_p.double().unsqueeze(1)
    # a row that keeps everything must not lose its tail to the rounding of the running sum
    ranked = torch.where((before < share) | (share >= 1.0), ranked, 0.0)
    ranked = ranked / ranked.sum(-1, keepdim=True)
    law = torch.empty_like(law).scatter_(-1, order, ranked)
    one_hot = torch.zeros_like(law).scatter_(-1, argmax_rows(logits).unsqueeze(1), 1.0)
    return torch.where(greedy.unsqueeze(1), one_hot, law).to(dtype or torch.float32), greedy

"""Which uniform number decides what, and the target laws of a batch: from requests to tensors, one row per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch
from dspark_ops.decode.sampling import target_law
from dspark_ops.decode.uniforms import Stream, uniforms

if TYPE_CHECKING:
    from torch import Tensor

    from dspark_ops.decode.running import Running

__all__ = ["accept_draws", "draft_draws", "next_draws", "target_laws"]

_DRAFT_KEYS = 64
"""Keys per anchor position in the draft stream; more than a block has drafts."""


def draft_draws(running: Sequence[Running], gamma: int, device: str) -> Tensor:
    """Return the numbers that draw the drafts, [R, gamma] float32.

    They are keyed by anchor and draft, not by the draft's own position: a position is drafted again after a rejection,
    and numbers that an earlier draft has used may already have moved a lagged schedule (C1.10.7).
    """
    keys = _starts(running, device).unsqueeze(1) * _DRAFT_KEYS + torch.arange(1, gamma + 1, device=device)
    return uniforms(_seeds(running, device).unsqueeze(1), keys, Stream.DRAFT)


def accept_draws(running: Sequence[Running], gamma: int, device: torch.device) -> Tensor:
    """Return the numbers of the accept tests, [R, gamma] float32, keyed by the draft's position.

    A number is looked at only up to the first rejection, and the next block starts behind it, so none is used twice.
    """
    positions = _starts(running, device).unsqueeze(1) + torch.arange(1, gamma + 1, device=device)
    return uniforms(_seeds(running, device).unsqueeze(1), positions, Stream.ACCEPT)


def next_draws(running: Sequence[Running], device: torch.device) -> Tensor:
    """Return the numbers that draw a final token, [R] float32, keyed by the first position that is still open.

    A prefill's token, a verify step's final token and a token of plain decoding each take one, at growing positions.
    """
    positions = torch.tensor([len(item.tokens) for item in running], device=device)
    return uniforms(_seeds(running, device), positions, Stream.FINAL)


def target_laws(logits: Tensor, running: Sequence[Running]) -> Tensor:
    """Return the laws that sampled requests would have without speculation (C2.3.1), float32 like logits [R, W, V]."""
    rows, width, _ = logits.shape

    def column(values: list[float] | list[int]) -> Tensor:
        return torch.tensor(values, device=logits.device).repeat_interleave(width)

    sampling = [item.request.sampling for item in running]
    law, _ = target_law(
        logits.flatten(0, 1),
        column([entry.temperature for entry in sampling]),
        column([entry.top_k for entry in sampling]),
        column([entry.top_p for entry in sampling]),
    )
    return law.view(rows, width, -1)


def _starts(running: Sequence[Running], device: str | torch.device) -> Tensor:
    return torch.tensor([item.start for item in running], device=device)


def _seeds(running: Sequence[Running], device: str | torch.device) -> Tensor:
    return torch.tensor([item.request.sampling.seed for item in running], device=device)

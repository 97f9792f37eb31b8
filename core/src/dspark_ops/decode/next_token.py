"""The token after a row of logits, greedy or sampled: what a prefill and plain decoding take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.contracts.draws import inverse_cdf
from dspark_ops.decode.draws import next_draws, target_laws
from dspark_ops.decode.ranks.ops import same, whole_rows
from dspark_ops.decode.running import Running

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["next_tokens"]


def next_tokens(ops: Any, logits: Tensor, running: Sequence[Running]) -> Tensor:
    """Return the token that follows each request's last row, [R] int64.

    Args:
        ops: operators of the verify site.
        logits: [R, V] float32, one row per request; on a rank, its columns.
        running: the requests; their last token is at the row's position.
    """
    tokens: Tensor = ops.argmax_rows(logits)
    sampled = [row for row, item in enumerate(running) if not item.greedy]
    if sampled:
        rows = torch.tensor(sampled, device=logits.device)
        requests = [running[row] for row in sampled]
        laws = target_laws(whole_rows(ops, logits[rows]).unsqueeze(1), requests).squeeze(1)
        tokens[rows] = same(ops, inverse_cdf(laws, next_draws(requests, logits.device)))
    return tokens

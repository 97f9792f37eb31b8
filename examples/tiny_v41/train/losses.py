"""The losses of the two trainings."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats; logits fp32 ``[..., vocab]``, labels int64 ``[...]``."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


@dataclasses.dataclass(frozen=True, slots=True)
class DraftWeights:
    """Weights of the drafter's loss terms.

    ``decay`` is the factor from one row to the next: a row counts only when all rows before it were accepted, so early
    rows matter more. ``hard`` pulls toward the target's argmax (what greedy acceptance measures), ``soft`` toward its
    whole distribution, ``distance`` shrinks the total variation that sampled acceptance is made of.
    """

    decay: float = 0.85
    hard: float = 0.5
    soft: float = 0.5
    distance: float = 0.5
    confidence: float = 0.2


def draft_loss(
    draft: torch.Tensor, target: torch.Tensor, confidence: torch.Tensor, live: torch.Tensor, w: DraftWeights
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(loss, per-term means) of draft logits against target logits, both fp32 ``[B, A, rows, vocab]``.

    ``confidence [B, A, rows]`` are the confidence logits and ``live`` marks rows inside their block. The confidence
    label is ``1 - TV(draft, target)``, the probability that a sampled draft token is accepted (C1.8).
    """
    log_draft = F.log_softmax(draft, dim=-1)
    law = F.softmax(target, dim=-1)
    best = target.argmax(-1)
    hard = -log_draft.gather(-1, best[..., None])[..., 0]
    soft = -(law * log_draft).sum(-1)
    distance = 0.5 * (log_draft.exp() - law).abs().sum(-1)
    trust = F.binary_cross_entropy_with_logits(confidence, 1 - distance.detach(), reduction="none")
    weight = live * w.decay ** torch.arange(draft.shape[-2], device=draft.device)
    weight = weight / weight.sum()
    loss = (weight * (w.hard * hard + w.soft * soft + w.distance * distance + w.confidence * trust)).sum()
    same = (log_draft.argmax(-1) == best).float()
    names = ("hard", "soft", "distance", "trust", "same")
    return loss, {
        k: (weight * v).sum().detach() for k, v in zip(names, (hard, soft, distance, trust, same), strict=True)
    }

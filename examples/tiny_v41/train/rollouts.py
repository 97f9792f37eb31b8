"""What the drafter trains on: the frozen target's features over real text and over its own greedy continuations.

A draft is right when it equals what the target would do next, so most anchors lie in the target's own continuations;
real text keeps the drafter usable when sampling. The target is frozen, so features and last rows are computed once.
"""

from __future__ import annotations

import dataclasses

import torch
from blocks import Params
from model import Target, greedy_rollout

SLICE = 256
"""Tokens of one training item."""

MARGIN = 8
"""Places at the end of an item where no block may start: longest block plus one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """Sequences with the target's view of them: ids ``[N, S]``, features ``[N, S, 3 d]``, last rows ``[N, S, d]``.

    ``first [N]`` is the first place at which a block may start.
    """

    ids: torch.Tensor
    features: torch.Tensor
    hidden: torch.Tensor
    first: torch.Tensor

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """``count`` random items of ``SLICE`` tokens: (ids, features, hidden, first allowed anchor, offset).

        An item that does not start its sequence allows no anchor in its first 128 places, whose context is cut off.
        """
        device = self.ids.device
        row = torch.randint(len(self.ids), (count,), device=device)
        choices = (self.ids.shape[1] - SLICE) // 128 + 1
        offset = torch.randint(choices, (count,), device=device) * 128
        places = offset[:, None] + torch.arange(SLICE, device=device)
        row_ = row[:, None]
        first = torch.maximum(self.first[row] - offset, torch.where(offset > 0, 128, 1))
        return self.ids[row_, places], self.features[row_, places], self.hidden[row_, places], first, offset


@torch.no_grad()
def observe(target: Target, p: Params, ids: torch.Tensor, first: torch.Tensor, batch: int = 256) -> Store:
    """Run the target over ids ``[N, S]`` and keep what the drafter needs."""
    features, hidden = [], []
    for part in ids.split(batch):
        rows, taps, _ = target.forward(p, part)
        features.append(taps), hidden.append(rows)
    return Store(ids, torch.cat(features), torch.cat(hidden), first)


@torch.no_grad()
def continue_prompts(target: Target, p: Params, starts: torch.Tensor, count: int, batch: int, bos: int) -> Store:
    """Greedy continuations of ``count`` prompts of 16..96 tokens, each ``SLICE`` tokens long in all."""
    device = starts.device
    picks = torch.randperm(len(starts), device=device)[:count]
    ids = torch.zeros(len(picks), SLICE, dtype=torch.long, device=device)
    # Every second prompt has no <bos>: both ways of prompting must work.
    ids[0::2, 0] = bos
    ids[0::2, 1:96] = starts[picks[0::2], :95]
    ids[1::2, :96] = starts[picks[1::2]]
    lengths = torch.randint(16, 97, (len(picks),), device=device)
    parts = [greedy_rollout(target, p, a, b) for a, b in zip(ids.split(batch), lengths.split(batch), strict=True)]
    return observe(target, p, torch.cat(parts), lengths)

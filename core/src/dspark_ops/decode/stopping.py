"""Where a request's output ends inside the tokens of one step, on the device (C2.7)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from dspark_ops._lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Ending", "cut_emitted"]


class Ending(IntEnum):
    """Whether and why a request ends with a step."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2


def cut_emitted(
    out_tokens: Tensor, commit_lens: Tensor, budgets: Tensor, stop_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many tokens of a step each request emits, whether it ends, and how many drafts were emitted.

    The output is cut behind the first stop token, then to the budget; a stop token inside the budget is the reason of
    the end even if it is the budget's last token. Accepting knows nothing of this: rows behind the cut hold state that
    nobody reads. No value is read by the host.

    Args:
        out_tokens: [B, W] int64, of which the first ``commit_lens`` are the step's tokens.
        commit_lens: [B] int32; 0 for a padded request, which emits nothing and does not end.
        budgets: [B] int32 or int64, tokens that each request may still emit, 0 or more.
        stop_ids: [E] int64, tokens that end the output; empty to ignore them.

    Returns:
        emitted: [B] int32, tokens to give out, the stop token included; old length plus this is the length to keep.
        ending: [B] int32, values of `Ending`.
        accepted: [B] int32, drafts among the emitted tokens.

    Source: C2.7, O18.
    """
    columns = torch.arange(out_tokens.shape[1], device=out_tokens.device)
    live = columns < commit_lens.unsqueeze(1)
    stops = live & (out_tokens.unsqueeze(-1) == stop_ids).any(-1)
    whole = torch.where(stops.any(-1), stops.int().argmax(-1) + 1, commit_lens.long())
    emitted = torch.minimum(whole, budgets.long())
    stopped = stops.any(-1) & (whole <= budgets)
    out = (emitted >= budgets) & (commit_lens > 0)
    ending = torch.where(stopped, int(Ending.STOP), torch.where(out, int(Ending.LENGTH), int(Ending.RUNNING)))
    accepted = torch.minimum(emitted, (commit_lens.long() - 1).clamp(min=0))
    return emitted.int(), ending.int(), accepted.int()

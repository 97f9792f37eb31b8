"""From the logits of a verify step to what each request keeps: greedy and sampled requests in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.drafting import Proposal
from dspark_ops.decode.draws import accept_draws, next_draws, target_laws
from dspark_ops.decode.ranks.ops import same, whole_rows
from dspark_ops.decode.running import Running

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Accepted", "accept_step"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a verify step gives.

    Attributes:
        correct_len: [R] int32, drafts accepted.
        commit_lens: [R] int32, rows that become valid; also the number of tokens in `tokens`.
        tokens: [R, W] int64, of which the first ``commit_lens`` are emitted.
        capped: [R] int32, drafts that would have been accepted behind the rows allowed; 0 where those were not run.
    """

    correct_len: Tensor
    commit_lens: Tensor
    tokens: Tensor
    capped: Tensor


def accept_step(
    ops: Any,
    running: Sequence[Running],
    candidates: Tensor,
    logits: Tensor,
    proposal: Proposal,
    lens: Tensor,
    forced: Tensor | None = None,
) -> Accepted:
    """Return what each request accepts.

    Greedy requests go through `accept_tail`, sampled ones through `accept_sampled` and `accept_finalize`; a batch of
    both is split, since neither kind's result depends on the other (C2.3.10). With forced lengths `accept_forced`
    stands in the place of `accept_tail` and `accept_finalize` (C3.5).

    Args:
        ops: operators of the verify site.
        running: the requests, in the order of the rows.
        candidates: [R, W] int64, anchors and the drafts that may be verified, the first ones of the proposal.
        logits: [R * W, V] float32, strided.
        proposal: what the drafter gave.
        lens: [R] int32, rows that may be accepted.
        forced: [R] int32, tokens that each request is to emit whatever the target says, or None.
    """
    prefix = torch.tensor([request.start for request in running], device=candidates.device)
    greedy = [row for row, item in enumerate(running) if item.greedy]
    if len(greedy) == len(running):
        correct, _, trim, commit, _, tokens = _tail(ops, candidates, logits, prefix, lens, forced)
        return Accepted(correct, commit, tokens, trim)
    sampled = [row for row, item in enumerate(running) if not item.greedy]
    kept = _sampled(ops, running, candidates, logits, proposal, lens, prefix, sampled, forced)
    if not greedy:
        return kept
    rows = torch.tensor(greedy, device=candidates.device)
    strided = logits.view(*candidates.shape, -1)[rows].flatten(0, 1)
    drawn = None if forced is None else forced[rows]
    correct, _, trim, commit, _, tokens = _tail(ops, candidates[rows], strided, prefix[rows], lens[rows], drawn)
    order = torch.tensor(greedy + sampled, device=candidates.device).argsort()
    pairs = ((correct, kept.correct_len), (commit, kept.commit_lens), (tokens, kept.tokens), (trim, kept.capped))
    return Accepted(*(torch.cat(pair)[order] for pair in pairs))


def _tail(
    ops: Any,
    candidates: Tensor,
    logits: Tensor,
    prefix: Tensor,
    lens: Tensor,
    forced: Tensor | None,
    bonus: Tensor | None = None,
) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = (
        ops.accept_tail(candidates, logits, prefix, lens)
        if forced is None
        else ops.accept_forced(candidates, logits, prefix, forced, lens, bonus)
    )
    return found


def _sampled(
    ops: Any,
    running: Sequence[Running],
    candidates: Tensor,
    logits: Tensor,
    proposal: Proposal,
    lens: Tensor,
    prefix: Tensor,
    chosen: list[int],
    forced: Tensor | None,
) -> Accepted:
    if proposal.probs is None:
        raise ValueError("a sampled request needs the laws that its drafts were drawn from, and the drafter gave none")
    rows = torch.tensor(chosen, device=candidates.device)
    requests = [running[row] for row in chosen]
    laws = target_laws(whole_rows(ops, logits.view(*candidates.shape, -1)[rows]), requests)
    own = candidates[rows]
    gamma = own.shape[1] - 1
    correct, bonus, trim = ops.accept_sampled(
        own,
        laws,
        proposal.probs[rows, :gamma],
        accept_draws(requests, gamma, own.device),
        next_draws(requests, own.device),
        lens[rows],
    )
    found = same(ops, torch.stack((correct.long(), bonus, trim.long())))
    correct, bonus, trim = found[0].int(), found[1], found[2].int()
    if forced is not None:
        strided = logits.view(*candidates.shape, -1)[rows].flatten(0, 1)
        correct, _, trim, commit, _, tokens = _tail(ops, own, strided, prefix[rows], lens[rows], forced[rows], bonus)
        return Accepted(correct, commit, tokens, trim)
    commit, _, tokens = ops.accept_finalize(correct, bonus, trim, own[:, 1:], prefix[rows])
    return Accepted(correct, commit, tokens, trim)

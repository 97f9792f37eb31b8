"""The steps of a cycle over static buffers. The host reads nothing in them, and every shape is fixed ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_ops._lazy import torch
from dspark_ops.decode.drafting import DraftRequests, Proposal
from dspark_ops.decode.lanes import Lanes
from dspark_ops.decode.model import Model
from dspark_ops.decode.runtimes.buffers import StepBuffers
from dspark_ops.decode.stopping import Ending, cut_emitted
from dspark_ops.decode.v41.rows import Rows
from dspark_ops.decode.v41.state import DecodeState

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["REPORT_COLUMNS", "Verified", "draft_step", "fold_step", "verify_step"]


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target says of the rows of a step.

    Attributes:
        candidates: [R, W] int64, anchors and drafts.
        rows: the R * W rows, request by request; those behind a request's verify length are not live.
        logits: [R * W, V] float32.
        features: [R * W, taps * hidden] bfloat16.
    """

    candidates: Tensor
    rows: Rows
    logits: Tensor
    features: Tensor


REPORT_COLUMNS = 4
"""Columns behind the tokens of a report: rows verified, drafts accepted, tokens emitted, ending."""


def draft_step(
    model: Model,
    ops: Any,
    state: DecodeState,
    buffers: StepBuffers,
    gamma: int,
    sampled: bool,
    temperatures: Tensor | None,
) -> Proposal:
    """Draft for every row, write drafts and confidences into the buffers, and return the proposal.

    Args:
        model: whose drafter runs.
        ops: operators of the draft site.
        state: caches; scratch rows of live requests are written.
        buffers: of exactly the requests of the step.
        gamma: drafts per request.
        sampled: whether the drafts are drawn (the proposal then has its laws) or the most likely ones.
        temperatures: of the confidences, [gamma] float32, or None.
    """
    requests = DraftRequests(
        tuple(range(len(buffers))),
        buffers.slot,
        buffers.anchor,
        buffers.start,
        gamma,
        buffers.temperature if sampled else None,
        buffers.uniforms[:, :gamma].contiguous() if sampled else None,
        buffers.live,
    )
    proposal = model.drafter.propose(ops, state, requests, temperatures)
    buffers.drafts[:, :gamma] = proposal.drafts
    buffers.confidence[:, :gamma] = proposal.confidence
    buffers.survival[:, :gamma] = proposal.survival
    return proposal


def verify_step(model: Model, ops: Any, state: DecodeState, buffers: StepBuffers, width: int, lanes: Lanes) -> Verified:
    """Run the target over `width` rows of every request; those behind its verify length are padding.

    Args:
        model: whose target runs.
        ops: operators of the verify site.
        state: caches, written for live rows.
        buffers: of exactly the requests of the step, with drafts and verify lengths.
        width: rows per request, the anchor included.
        lanes: run what comes before attention in each layer.
    """
    columns = torch.arange(width, device=buffers.slot.device)
    candidates = torch.cat((buffers.anchor.unsqueeze(1), buffers.drafts[:, : width - 1]), 1)
    live = (columns < buffers.lens.unsqueeze(1)) & buffers.live.unsqueeze(1)
    rows = Rows(
        buffers.slot.repeat_interleave(width),
        (buffers.start.unsqueeze(1) + columns).flatten(),
        torch.where(live, candidates, 0).flatten(),
        live.flatten(),
    )
    output = model.target.forward(ops, state, rows, lanes=lanes)
    return Verified(candidates, rows, output.logits, output.features)


def fold_step(
    model: Model,
    ops: Any,
    commit_ops: Any,
    state: DecodeState,
    buffers: StepBuffers,
    verified: Verified,
    stop_ids: Tensor,
    simulated: bool = False,
) -> Tensor:
    """Accept what a greedy verify step gave, commit it, and make the buffers ready for the next cycle (C2.8, C2.9).

    Returns:
        [R, W + 4] int64, all that the host is told of the step: tokens, of which the first ones go to the caller, then
        rows verified, drafts accepted, tokens emitted (0 for padding), and a value of `Ending`.

    Args:
        model: whose drafter takes the committed rows.
        ops: operators of the verify site.
        commit_ops: operators of the commit site.
        state: caches; the draft context of committed rows is written.
        buffers: anchors, starts, budgets and `live` are written.
        verified: what `verify_step` returned.
        stop_ids: [E] int64, tokens that end a request.
        simulated: accept as many tokens as ``buffers.forced`` says, with `accept_forced` in the place of `accept_tail`.
    """
    lens = torch.where(buffers.live, buffers.lens, 0)
    step = verified.candidates, verified.logits, buffers.start
    accepting = ops.accept_forced(*step, buffers.forced, lens) if simulated else ops.accept_tail(*step, lens)
    correct, _, _, commit, _, tokens = accepting
    commit = torch.minimum(commit, lens)
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    kept = (columns < commit.unsqueeze(1)).flatten()
    rows = verified.rows
    committed = Rows(rows.request, rows.position, rows.token, kept)
    model.drafter.commit(commit_ops, state, committed, verified.features)
    emitted, ending, _ = cut_emitted(tokens, commit, buffers.budget, stop_ids)
    last = tokens.gather(1, (emitted.long() - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    buffers.anchor.copy_(torch.where(emitted > 0, last, buffers.anchor))
    buffers.start.add_(emitted)
    buffers.budget.sub_(emitted)
    buffers.live.logical_and_(ending == int(Ending.RUNNING))
    accepted = correct.clamp(min=0)  # -1 where nothing was verified
    return torch.cat((tokens, torch.stack((lens, accepted, emitted, ending), 1).long()), 1)

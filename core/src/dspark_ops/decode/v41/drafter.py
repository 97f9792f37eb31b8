"""The DSpark drafter of a V4.1 model: context from the target's features, a block of drafts, their confidences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.decode.drafting import DraftRequests, Proposal
from dspark_ops.decode.lanes import SerialLanes
from dspark_ops.decode.ranks.group import SOLO, RankGroup
from dspark_ops.decode.ranks.shards import HEAD
from dspark_ops.decode.v41.attention import AttentionCaches
from dspark_ops.decode.v41.block import Block, spread
from dspark_ops.decode.v41.config import V41Config
from dspark_ops.decode.v41.geometry import MAX_STEP_ROWS, NO_SLOT, Geometry
from dspark_ops.decode.v41.linear import Linear, rms_norm
from dspark_ops.decode.v41.rope import rotary_tables
from dspark_ops.decode.v41.rows import CacheReads, Rows
from dspark_ops.decode.v41.state import DecodeState

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["V41Drafter"]

_SERIAL: Final = SerialLanes()


class V41Drafter:
    """The draft stages, Markov head and confidence head over given weights (C1.4 to C1.8)."""

    def __init__(self, config: V41Config, weights: Mapping[str, Tensor], group: RankGroup = SOLO) -> None:
        last = f"mtp.{config.stages - 1}"
        self.config = config
        self._embed = weights["embed.weight"]
        self._head = Linear(weights.get(HEAD, self._embed))
        self._project = Linear(weights["mtp.0.main_proj.weight"])
        self._project_norm = weights["mtp.0.main_norm.weight"]
        self._stages = [Block(config, weights, f"mtp.{s}", config.draft_top_k, group) for s in range(config.stages)]
        self._norm = weights[f"{last}.norm.weight"]
        self._markov = (weights[f"{last}.markov_head.embed.weight"], weights[f"{last}.markov_head.head.weight"])
        self._confidence = weights[f"{last}.confidence_head.weight"]
        self._table, _ = rotary_tables(config, self._embed.device)

    def commit(self, ops: Any, state: DecodeState, rows: Rows, features: Tensor) -> None:
        """Write the draft context of committed rows (C1.4): one latent per stage, from the same projected features.

        Args:
            ops: operators of the commit site.
            state: caches, written.
            rows: committed rows; of a longer run than the ring only the last rows matter, so give them in order.
            features: [T, taps * hidden] bfloat16 of these rows.
        """
        for start in range(0, len(rows), MAX_STEP_ROWS):
            part = rows.part(start, start + MAX_STEP_ROWS)
            context = self._project(features[start : start + MAX_STEP_ROWS])
            context = rms_norm(context, self._project_norm, self.config.rms_eps)
            slot = part.stored_at(state.geometry.context_slot(part.request, part.position), NO_SLOT).int()
            for stage, cache in zip(self._stages, state.draft, strict=True):
                stage.attention.store(ops, context, part.position, self._table, slot, cache)

    def propose(
        self, ops: Any, state: DecodeState, requests: DraftRequests, temperatures: Tensor | None = None
    ) -> Proposal:
        """Return `requests.gamma` drafts per request, the laws they were drawn from, and their confidences.

        Requests are run in parts of at most 64 rows; the context rows must have been committed.

        Args:
            ops: operators of the draft site.
            state: caches; the scratch rows of the requests are written.
            requests: what to draft for.
            temperatures: [gamma] float32 scaling temperatures of the confidence logits (C1.9), or None for 1.
        """
        size = max(1, MAX_STEP_ROWS // requests.gamma)
        parts = [
            self._propose(ops, state, requests.part(start, start + size), temperatures)
            for start in range(0, len(requests), size)
        ]
        return parts[0] if len(parts) == 1 else Proposal.joined(parts)

    def _propose(self, ops: Any, state: DecodeState, requests: DraftRequests, temperatures: Tensor | None) -> Proposal:
        count, gamma = len(requests), requests.gamma
        hidden = self._block(ops, state, requests)
        normed = rms_norm(hidden, self._norm, self.config.rms_eps)
        base = self._head.float32(normed).view(count, gamma, -1)
        embed, head = self._markov
        drafts, probs = ops.markov_block(
            base, requests.anchor, embed, head, uniforms=requests.uniforms, temperature=requests.temperature
        )
        previous = torch.cat((requests.anchor.unsqueeze(1), drafts[:, :-1]), 1)
        # The confidence head reads the state before the final norm (C1.5.5).
        confidence, survival = ops.confidence_survival(
            hidden.view(count, gamma, -1), previous, embed, self._confidence, temperatures=temperatures
        )
        return Proposal(drafts, probs, confidence, survival)

    def _block(self, ops: Any, state: DecodeState, requests: DraftRequests) -> Tensor:
        """Return the reduced state of every block row, before the final norm: [requests * gamma, hidden] bfloat16."""
        gamma, device = requests.gamma, self._embed.device
        tokens = torch.full((len(requests), gamma), self.config.noise_token, device=device)
        tokens[:, 0] = requests.anchor
        offsets = torch.arange(gamma, device=device)
        positions = (requests.start.unsqueeze(1) + offsets).flatten()
        slot = state.geometry.block_slot(requests.slot.unsqueeze(1), offsets)
        if requests.live is not None:
            slot = torch.where(requests.live.unsqueeze(1), slot, NO_SLOT)
        reads = _block_reads(state.geometry, requests)
        streams, pre = spread(self._embed[tokens.flatten()], self.config.hc_mult)
        for stage, cache in zip(self._stages, state.draft, strict=True):
            caches = AttentionCaches(positions, self._table, slot.flatten().int(), cache, reads)

            def attend(x: Tensor, stage: Block = stage, caches: AttentionCaches = caches) -> Tensor:
                return stage.attention(ops, x, caches, _SERIAL)

            streams, pre = stage(ops, streams, pre, attend)
        hidden: Tensor = ops.mhc_combine(streams.flatten(1), pre)
        return hidden


def _block_reads(geometry: Geometry, requests: DraftRequests) -> CacheReads:
    """Return what block rows read: the last min(128, s) context rows, then all rows of the block (C1.5.3).

    The rows of one block read alike; there is no causal mask inside it.
    """
    window, gamma, device = geometry.config.window, requests.gamma, requests.start.device
    owner = requests.slot.unsqueeze(1)
    seen = requests.start.clamp(max=window).unsqueeze(1)
    columns = torch.arange(window + gamma, device=device)
    context = geometry.context_slot(owner, (requests.start.unsqueeze(1) - seen + columns).clamp(min=0))
    block = geometry.block_slot(owner, columns - seen)
    slots = torch.where(columns < seen, context, block)
    slots = torch.where(columns < seen + gamma, slots, -1).int()
    lengths = (seen + gamma).int()
    return CacheReads(slots.repeat_interleave(gamma, 0), lengths.repeat_interleave(gamma, 0).squeeze(1))

"""The drafter in training form: many blocks of one sequence at once, each at its own anchor (C1.4 to C1.8)."""

from __future__ import annotations

import torch
from blocks import (
    Params,
    combine,
    first_streams,
    latent,
    linear,
    project,
    queries,
    rmsnorm,
    stored,
    sublayers,
    vocabulary,
    weights_of,
)
from settings import Settings, rope_table


class Drafter:
    """The drafter's forward for one compute dtype and device; the weights come with each call."""

    def __init__(self, settings: Settings, device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> None:
        self.settings, self.dtype = settings, dtype
        self.table = rope_table(settings, 0, settings.length + 16).to(device)

    def forward(
        self,
        p: Params,
        features: torch.Tensor,
        ids: torch.Tensor,
        anchors: torch.Tensor,
        gamma: torch.Tensor,
        rows: int,
        offset: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pre-norm rows ``[B, A, rows, d]`` and expert shares ``[stages, experts]`` of one block an anchor.

        ``features [B, S, 3 d]`` are the target's taps at positions ``offset .. offset + S - 1`` (``offset [B]``);
        ``ids [B, A]`` are the anchor tokens and ``anchors [B, A]`` their places in the slice; ``gamma [B, A]`` is
        each block's length: rows at or past it are computed, but no other row sees them. A block sees the features
        of the last ``min(window, anchor)`` positions before its anchor and all its own rows, without a causal mask.
        """
        s = self.settings
        batch, count = anchors.shape
        context = rmsnorm(linear(features, p["mtp.0.main_proj.weight"]), p["mtp.0.main_norm.weight"], s.eps)
        context = context.to(self.dtype)
        places = torch.arange(features.shape[1], device=features.device)
        slots = torch.arange(rows, device=features.device)
        at_context = self.table[:, offset[:, None] + places]
        at_block = self.table[:, offset[:, None, None] + anchors[..., None] + slots]
        age = anchors[..., None] - places
        mask = torch.cat([(age > 0) & (age <= s.window), slots < gamma[..., None]], dim=-1)
        noise = torch.full((batch, count, rows - 1), s.noise, dtype=ids.dtype, device=ids.device)
        x, pre = first_streams(p, torch.cat([ids[..., None], noise], dim=-1), s, self.dtype)
        shares = []
        for i in range(s.stages):
            prefix = f"mtp.{i}.attn."
            keys = latent(p, prefix, context, at_context, s)

            def attention(row: torch.Tensor, prefix: str = prefix, keys: torch.Tensor = keys) -> torch.Tensor:
                q = queries(p, prefix, row, at_block, s)
                own = latent(p, prefix, row, at_block, s).flatten(0, 1)
                far = torch.bmm(q.reshape(batch, -1, s.head_dim), keys.mT)
                near = torch.bmm(q.reshape(batch * count, -1, s.head_dim), own.mT)
                shape = (batch, count, rows, s.heads)
                scores = torch.cat([far.view(*shape, -1), near.view(*shape, -1)], dim=-1)
                weights = weights_of(
                    scores.float() * s.head_dim**-0.5, mask[:, :, None, None], p[prefix + "attn_sink"]
                ).to(self.dtype)
                split = [keys.shape[1], rows]
                far, near = weights.split(split, dim=-1)
                out = torch.bmm(far.reshape(batch, -1, split[0]), keys).view(*shape, -1)
                out = out + torch.bmm(near.reshape(batch * count, -1, rows), own).view(*shape, -1)
                return project(p, prefix, out, at_block, s)

            x, pre, share = sublayers(p, f"mtp.{i}.", x, pre, attention, s, s.draft_top_k)
            shares.append(share)
        return combine(x, pre), torch.stack(shares)

    def logits(self, p: Params, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Draft logits fp32 ``[..., vocab]``: tied head of the normed rows plus the Markov bias of ``previous`` ids."""
        base = vocabulary(p, hidden, f"mtp.{self.settings.stages - 1}.norm.weight", self.settings)
        return base + self.bias(p, previous)

    def bias(self, p: Params, previous: torch.Tensor) -> torch.Tensor:
        """Markov bias ``W2 W1[previous]``, rounded to the compute dtype, as fp32 ``[..., vocab]``."""
        w2 = p[f"mtp.{self.settings.stages - 1}.markov_head.head.weight"]
        return linear(self.embedded(p, previous).to(self.dtype), w2).float()

    def embedded(self, p: Params, previous: torch.Tensor) -> torch.Tensor:
        """Markov embeddings ``W1[previous]``, fp32 ``[..., r]``."""
        w1 = p[f"mtp.{self.settings.stages - 1}.markov_head.embed.weight"]
        return torch.nn.functional.embedding(previous, stored(w1))

    def confidence(self, p: Params, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Confidence logits fp32 ``[...]`` from the pre-norm rows and the embeddings of the tokens before them."""
        w = p[f"mtp.{self.settings.stages - 1}.confidence_head.weight"]
        return torch.nn.functional.linear(torch.cat([hidden.float(), self.embedded(p, previous)], dim=-1), w)[..., 0]


@torch.no_grad()
def greedy_chain(drafter: Drafter, p: Params, hidden: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Draft tokens ``[..., rows]``: row by row the argmax given the token before; ``first [...]``: anchors (C1.7)."""
    norm = f"mtp.{drafter.settings.stages - 1}.norm.weight"
    base = vocabulary(p, hidden, norm, drafter.settings)
    tokens = [first]
    for j in range(hidden.shape[-2]):
        tokens.append((base[..., j, :] + drafter.bias(p, tokens[-1])).argmax(-1))
    return torch.stack(tokens[1:], dim=-1)

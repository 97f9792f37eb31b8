"""The target model in training form: all positions at once, or a few at a time over a cache (for rollouts)."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from blocks import (
    Params,
    combine,
    first_streams,
    latent,
    linear,
    project,
    queries,
    rmsnorm,
    rotate,
    stored,
    sublayers,
    vocabulary,
    weights_of,
)
from quant import compressed_page
from settings import Settings, rope_table


@dataclasses.dataclass
class Cache:
    """What a rollout keeps: window rows of each layer, compressed rows of each source, an open pair's first row."""

    window: dict[int, torch.Tensor]
    compressed: dict[int, torch.Tensor]
    open_row: dict[int, torch.Tensor]


class Target:
    """The target's forward for one compute dtype and device; holds tables only, the weights come with each call."""

    def __init__(self, settings: Settings, device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> None:
        self.settings, self.dtype, self.device = settings, dtype, torch.device(device)
        self.tables = {bool(ratio): rope_table(settings, ratio, settings.length).to(device) for ratio in (0, 1)}

    def new_cache(self, batch: int, length: int) -> Cache:
        """An empty cache for ``batch`` sequences of up to ``length`` tokens."""
        s = self.settings

        def rows(count: int) -> torch.Tensor:
            return torch.zeros(batch, count, s.head_dim, dtype=self.dtype, device=self.device)

        return Cache(
            window={i: rows(length) for i in range(s.layers)},
            compressed={i: rows(length // s.ratios[i]) for i in s.kv_sources},
            open_row={},
        )

    def forward(
        self, p: Params, ids: torch.Tensor, start: int = 0, cache: Cache | None = None, drop: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run ids ``[B, T]`` at positions ``start ..``; without a cache ``start`` must be 0.

        Returns (pre-norm rows ``[B, T, d]``, DSpark features ``[B, T, 3 d]``, expert shares ``[layers, experts]``).
        """
        s = self.settings
        x, pre = first_streams(p, ids, s, self.dtype)
        compressed: dict[int, torch.Tensor] = {}
        taps, shares = [], []
        for i in range(s.layers):
            if i in s.taps:
                taps.append(x.float().mean(-2).to(self.dtype))

            def attention(row: torch.Tensor, layer: int = i) -> torch.Tensor:
                return self._attention(p, layer, row, start, cache, compressed)

            x, pre, share = sublayers(p, f"layers.{i}.", x, pre, attention, s, s.top_k, drop)
            shares.append(share)
        return combine(x, pre), torch.cat(taps, dim=-1), torch.stack(shares)

    def logits(self, p: Params, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits, fp32 ``[..., vocab]``, of the rows ``forward`` returned first."""
        return vocabulary(p, hidden, "norm.weight", self.settings)

    def _attention(
        self, p: Params, i: int, row: torch.Tensor, start: int, cache: Cache | None, compressed: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        """Attention of layer ``i`` for rows ``[B, T, d]``; fills ``compressed`` when the layer is a source."""
        s, prefix, ratio = self.settings, f"layers.{i}.attn.", self.settings.ratios[i]
        batch, length, _ = row.shape
        end = start + length
        table = self.tables[bool(ratio)]
        here = table[:, start:end]
        position = torch.arange(start, end, device=row.device)
        q = queries(p, prefix, row, here, s)
        keys = latent(p, prefix, row, here, s)
        low = 0
        if cache is not None:
            cache.window[i][:, start:end] = keys
            low = max(0, start - s.window + 1)
            keys = cache.window[i][:, low:end]
        age = position[:, None] - torch.arange(low, end, device=row.device)
        mask = (age >= 0) & (age < s.window)
        if ratio:
            source = s.kv_source(i)
            if source == i:
                compressed[i] = self._compress(p, i, row, start, cache)
            entries = compressed[source]
            visible = torch.arange(entries.shape[1], device=row.device) < ((position + 1) // ratio)[:, None]
            keys = torch.cat([keys, entries], dim=1)
            mask = torch.cat([mask, visible], dim=1)
        scores = torch.bmm(q.reshape(batch, length * s.heads, -1), keys.mT).view(batch, length, s.heads, -1)
        weights = weights_of(scores.float() * s.head_dim**-0.5, mask[:, None], p[prefix + "attn_sink"])
        out = torch.bmm(weights.to(self.dtype).view(batch, length * s.heads, -1), keys)
        return project(p, prefix, out.view(batch, length, s.heads, -1), here, s)

    def _compress(self, p: Params, i: int, row: torch.Tensor, start: int, cache: Cache | None) -> torch.Tensor:
        """All compressed entries ``[B, entries, 512]`` that exist after these rows (N8.1)."""
        s, prefix, ratio = self.settings, f"layers.{i}.attn.compressor.", self.settings.ratios[i]
        if ratio == 2:
            if start % 2:
                row = torch.cat([cache.open_row[i], row], dim=1)
            pairs = row.shape[1] // 2
            if cache is not None and row.shape[1] % 2:
                cache.open_row[i] = row[:, -1:]
            # Projections stay fp32 up to the pooling, and the pooled value is rounded once.
            pair = row[:, : 2 * pairs].float().unflatten(1, (pairs, 2))
            values = F.linear(pair, stored(p[prefix + "wkv.weight"]))
            weight = torch.softmax(F.linear(pair, stored(p[prefix + "wgate.weight"])), dim=2)
            pooled = (values * weight).sum(2).to(self.dtype)
        else:
            pooled = linear(row, p[prefix + "wkv.weight"])
        first = start // ratio
        count = pooled.shape[1]
        spot = self.tables[True][:, first * ratio : (first + count) * ratio : ratio]
        entry = rmsnorm(pooled, p[prefix + "norm.weight"], s.eps).to(self.dtype).float()
        entry = rotate(entry, spot).to(self.dtype).float()
        entry = compressed_page(entry).to(self.dtype)
        if cache is None:
            return entry
        cache.compressed[i][:, first : first + count] = entry
        return cache.compressed[i][:, : first + count]


@torch.no_grad()
def greedy_rollout(target: Target, p: Params, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Ids ``[B, T]`` with everything at or past ``lengths [B]`` replaced by the target's greedy continuation.

    All sequences advance in lockstep over one cache; a sequence still inside its prompt keeps its own next token.
    """
    ids = ids.clone()
    cache = target.new_cache(*ids.shape)
    start, end = 0, int(lengths.min())
    while end < ids.shape[1]:
        hidden, _, _ = target.forward(p, ids[:, start:end], start, cache)
        guess = target.logits(p, hidden[:, -1]).argmax(-1)
        ids[:, end] = torch.where(lengths > end, ids[:, end], guess)
        start, end = end, end + 1
    return ids

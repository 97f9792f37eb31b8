"""The target model: logits and draft features of flat rows, with the caches brought up to date on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.decode.lanes import Lanes, SerialLanes
from dspark_ops.decode.ranks.group import SOLO, RankGroup
from dspark_ops.decode.ranks.shards import HEAD
from dspark_ops.decode.v41.attention import AttentionCaches, Compressor, ExtraCache
from dspark_ops.decode.v41.block import Block, spread
from dspark_ops.decode.v41.config import V41Config
from dspark_ops.decode.v41.geometry import MAX_STEP_ROWS
from dspark_ops.decode.v41.linear import Linear, mean_of_streams
from dspark_ops.decode.v41.rope import rotary_tables
from dspark_ops.decode.v41.rows import Rows, TargetSites, target_sites
from dspark_ops.decode.v41.state import DecodeState

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Target", "TargetOutput"]

_SERIAL: Final = SerialLanes()


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What a forward returns.

    Attributes:
        logits: [L, V] float32, one row per row asked for; on a rank [L, C], its own columns.
        features: [T, taps * hidden] bfloat16, the drafter's input for every row (C1.3.4).
    """

    logits: Tensor
    features: Tensor


class Target:
    """The target model over given weights (V41 structure: N3.1, C5); on a rank, over that rank's (`cut_weights`)."""

    def __init__(self, config: V41Config, weights: Mapping[str, Tensor], group: RankGroup = SOLO) -> None:
        self.config = config
        self._embed = weights["embed.weight"]
        self._head = Linear(weights.get(HEAD, self._embed))
        self._norm = weights["norm.weight"]
        self._layers = [
            Block(config, weights, f"layers.{layer}", config.top_k, group) for layer in range(config.layers)
        ]
        self._compressors = {
            source: Compressor(config, weights, f"layers.{source}.attn.compressor", config.ratios[source])
            for source in config.kv_sources
        }
        self._plain_table, self._compressed_table = rotary_tables(config, self._embed.device)

    def forward(
        self,
        ops: Any,
        state: DecodeState,
        rows: Rows,
        logits_of: Tensor | None = None,
        lanes: Lanes = _SERIAL,
    ) -> TargetOutput:
        """Return logits and features of `rows`, whose cache entries are stored.

        More than 64 rows are run in parts, in order, so that every call of an operator stays within the plan. The rows
        of a request must ascend by position and continue what is committed; several requests may follow one another.

        Args:
            ops: operators of the verify site.
            state: caches, written.
            rows: at least one row.
            logits_of: [L] int64 row numbers, ascending, whose logits are wanted; None: all.
            lanes: run what comes before attention in each layer.
        """
        parts = range(0, len(rows), MAX_STEP_ROWS)
        hidden, features = zip(
            *(self._part(ops, state, rows.part(start, start + MAX_STEP_ROWS), lanes) for start in parts), strict=True
        )
        final = torch.cat(hidden)
        wanted = final if logits_of is None else final[logits_of]
        return TargetOutput(self._head.float32(wanted), torch.cat(features))

    def _part(self, ops: Any, state: DecodeState, rows: Rows, lanes: Lanes) -> tuple[Tensor, Tensor]:
        """Return the normed final hidden rows and the features of at most 64 rows."""
        sites = target_sites(state.geometry, rows)
        streams, pre = spread(self._embed[rows.token], self.config.hc_mult)
        taps: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            if index in self.config.taps:
                taps[index] = mean_of_streams(streams)
            streams, pre = layer(ops, streams, pre, self._attend(ops, state, rows, sites, index, lanes))
        hidden = ops.mhc_combine_norm(streams.flatten(1), pre, self._norm, self.config.rms_eps)
        return hidden, torch.cat([taps[layer] for layer in self.config.taps], 1)

    def _attend(
        self, ops: Any, state: DecodeState, rows: Rows, sites: TargetSites, index: int, lanes: Lanes
    ) -> Callable[[Tensor], Tensor]:
        attention, caches = self._layers[index].attention, self._caches(state, rows, sites, index)
        compressor = self._compressors.get(index)

        def compress(x: Tensor) -> None:
            if compressor is not None:
                places = sites.compressed[self.config.ratios[index]]
                open_groups = state.open_groups.get(index)
                compressor(ops, x, rows, caches.freqs, places, state.compressed[index], open_groups)

        return lambda x: attention(ops, x, caches, lanes, None if compressor is None else compress)

    def _caches(self, state: DecodeState, rows: Rows, sites: TargetSites, index: int) -> AttentionCaches:
        ratio = self.config.ratios[index]
        extra = None
        if ratio:
            extra = ExtraCache(state.compressed[self.config.kv_source(index)], sites.compressed[ratio].reads)
        return AttentionCaches(
            positions=rows.position,
            freqs=self._compressed_table if ratio else self._plain_table,
            slot=sites.window_slot,
            cache=state.window[index],
            reads=sites.window,
            extra=extra,
        )

"""Attention with one shared latent as key and value, over a window and compressed entries, and the compressors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.contracts.prepare_plan import PreparePlan, low_ratio_prepare
from dspark_ops.decode.lanes import Lanes
from dspark_ops.decode.ranks.group import SOLO, RankGroup, joined_columns
from dspark_ops.decode.ranks.shards import Shards
from dspark_ops.decode.v41.config import V41Config
from dspark_ops.decode.v41.geometry import LAYOUT, PAGE_SIZE
from dspark_ops.decode.v41.linear import Linear, rms_norm
from dspark_ops.decode.v41.rows import CacheReads, CompressedSites, Rows

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Attention", "AttentionCaches", "Compressor", "ExtraCache"]

_WINDOW_ONLY: Final = low_ratio_prepare(kv_source=False, index_source=False, fused_qkv=False)
_COMPRESSING: Final = low_ratio_prepare(kv_source=True, index_source=False, fused_qkv=False)


@dataclass(frozen=True, slots=True)
class ExtraCache:
    """A second cache that joins the same softmax, and what each row reads of it."""

    cache: Tensor
    reads: CacheReads


@dataclass(frozen=True, slots=True)
class AttentionCaches:
    """What one attention call writes and reads.

    Attributes:
        positions: [T] int64.
        freqs: [S, 64] float32, interleaved cosines and sines of the layer's rotary table.
        slot: [T] int32, where each row's own latent is stored before anything is read.
        cache: uint8 pages, written.
        reads: what each row reads of `cache`.
        extra: the compressed entries, or None.
    """

    positions: Tensor
    freqs: Tensor
    slot: Tensor
    cache: Tensor
    reads: CacheReads
    extra: ExtraCache | None = None


class Attention:
    """One attention site (C5.2). `prefix` is such as ``layers.0.attn``; heads and output may be spread over a group."""

    def __init__(self, config: V41Config, weights: Mapping[str, Tensor], prefix: str, group: RankGroup = SOLO) -> None:
        self._head_dim, self._eps, self._hidden = config.head_dim, config.rms_eps, config.hidden
        self._group, self._low_rank = group, config.o_groups * config.o_lora_rank
        # this rank's, padding included
        self._groups = Shards(config.o_groups, group.size).width
        self._heads = config.heads // config.o_groups * self._groups
        self._query_down = Linear(weights[f"{prefix}.wq_a.weight"])
        self._query_norm = weights[f"{prefix}.q_norm.weight"]
        self._query_up = Linear(weights[f"{prefix}.wq_b.weight"])
        self._latent = Linear(weights[f"{prefix}.wkv.weight"])
        self._latent_norm = weights[f"{prefix}.kv_norm.weight"]
        self._sink = weights[f"{prefix}.attn_sink"]
        self._out_grouped = weights[f"{prefix}.wo_a.weight"]
        self._out = Linear(weights[f"{prefix}.wo_b.weight"])

    def __call__(
        self,
        ops: Any,
        x: Tensor,
        caches: AttentionCaches,
        lanes: Lanes,
        compress: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Return the site's output for x [T, hidden] bfloat16, [T, hidden] bfloat16; stores the rows' latents first.

        Args:
            ops: operators of the site.
            x: the attention input.
            caches: what is written and read.
            lanes: run the work up to attention as `low_ratio_prepare` says.
            compress: stores the compressed entries of x, where the layer owns a compressor.
        """
        rows = x.shape[0]
        rotated = lanes.run(*self._prepare(ops, caches, compress), {"x": x})["q"]
        extra = caches.extra
        attended, _ = ops.sparse_mla_decode(
            rotated,
            caches.cache,
            caches.reads.indices,
            caches.reads.lengths,
            self._sink,
            extra.cache if extra else None,
            extra.reads.indices if extra else None,
            extra.reads.lengths if extra else None,
            page_size=PAGE_SIZE,
            extra_page_size=PAGE_SIZE,
            layout=LAYOUT,
        )
        grouped = attended.view(rows, self._groups, -1)
        low_rank = ops.rope_wo_a(grouped, self._out_grouped, caches.freqs, caches.positions, self._head_dim)
        # A rank has the low-rank output of its own heads, and its own columns of what all of it is projected to.
        whole = joined_columns(self._group, low_rank, self._low_rank)
        return joined_columns(self._group, self._out(whole), self._hidden)

    def _prepare(
        self, ops: Any, caches: AttentionCaches, compress: Callable[[Tensor], None] | None
    ) -> tuple[PreparePlan, dict[str, Callable[..., Any]]]:
        """Return what is done before attention, and in which order it may be."""

        def q_lora(x: Tensor) -> Tensor:
            return rms_norm(self._query_down(x), self._query_norm, self._eps)

        def q_store(low_rank: Tensor) -> Tensor:
            query = self._query_up(low_rank).view(low_rank.shape[0], self._heads, self._head_dim)
            rotated = torch.empty_like(query)
            ops.q_rope_store(query, rotated, caches.freqs, caches.positions)
            return rotated

        def kv_store(x: Tensor) -> None:
            self.store(ops, x, caches.positions, caches.freqs, caches.slot, caches.cache)

        program: dict[str, Callable[..., Any]] = {"q_lora": q_lora, "q_store": q_store, "kv_store": kv_store}
        if compress is None:
            return _WINDOW_ONLY, program
        return _COMPRESSING, {**program, "compress": compress}

    def store(self, ops: Any, x: Tensor, positions: Tensor, freqs: Tensor, slot: Tensor, cache: Tensor) -> None:
        """Write the latents of x [T, hidden] into `cache` at `slot` [T] int32, rotated to `positions`."""
        latent = self._latent(x)
        ops.k_norm_rope_store(
            latent, self._latent_norm, freqs, positions, slot, cache, PAGE_SIZE, layout=LAYOUT, eps=self._eps
        )


class Compressor:
    """The compressor of one kv source layer (C5.3.5, N8). `prefix` is such as ``layers.1.attn.compressor``."""

    def __init__(self, config: V41Config, weights: Mapping[str, Tensor], prefix: str, ratio: int) -> None:
        self._ratio, self._eps = ratio, config.rms_eps
        self._norm = weights[f"{prefix}.norm.weight"]
        value = weights[f"{prefix}.wkv.weight"]
        gate = [weights[f"{prefix}.wgate.weight"]] if ratio == 2 else []
        self._project = Linear(torch.cat([value, *gate]))

    def __call__(
        self,
        ops: Any,
        x: Tensor,
        rows: Rows,
        freqs: Tensor,
        sites: CompressedSites,
        cache: Tensor,
        state: Tensor | None,
    ) -> None:
        """Write the compressed entries that rows x [T, hidden] complete, and for ratio 2 their open groups.

        Args:
            ops: operators of the verify site.
            x: [T, hidden] bfloat16, the attention input.
            rows: whose rows they are.
            freqs: rotary table of compressed layers.
            sites: where entries of this ratio go.
            cache: uint8 pages, written.
            state: float32 [slots, 2 * head_dim], written; ratio 2 only.
        """
        common = {"page_size": PAGE_SIZE, "layout": LAYOUT, "eps": self._eps}
        if self._ratio == 1:
            ops.compress_c1(self._project(x), self._norm, freqs, rows.position, sites.out_loc, cache, **common)
            return
        if state is None:
            raise ValueError("a compressor of ratio 2 needs its open-group state")
        ops.compress_c2(
            self._project.float32(x),
            state,
            self._norm,
            freqs,
            rows.position,
            rows.request,
            sites.out_loc,
            cache,
            ring_size=sites.open_ring,
            form="extend",
            **common,
        )

"""Which operators one decode cycle calls, how often, in which order, and with how many rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dspark_ops.contracts.model_shapes import ModelShapes
from dspark_ops.errors import ModelError
from dspark_ops.suggest import did_you_mean

__all__ = ["GEMM", "CycleLayout", "Step", "cycle_layout", "cycle_steps"]

#: Stands for a matrix product or a collective, which no operator of the registry is.
GEMM: Final = "gemm"


@dataclass(frozen=True, slots=True)
class CycleLayout:
    """The layers of a model that decide how often an operator is called.

    Attributes:
        layers: of the target.
        stages: of the drafter.
        compress_one, compress_two: layers that own a compressor of ratio 1 or 2.
        index_sources: layers that own an indexer.
        candidate_source: the index layer that publishes candidate blocks; those behind it search in them.
        engram: layers that gather n-gram embeddings.
    """

    layers: int
    stages: int
    compress_one: tuple[int, ...]
    compress_two: tuple[int, ...]
    index_sources: tuple[int, ...]
    candidate_source: int
    engram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One call: operator, place, and the size of the operator's own rows axis."""

    operator: str
    site: str
    rows: int


_LAYOUTS: Final = {
    "deepseek-v4.1-flash": CycleLayout(
        layers=40, stages=3, compress_one=(20,), compress_two=(2, 8, 14),
        index_sources=(2, 8, 14, 20, 24, 28, 32, 36), candidate_source=20, engram=(1, 14),
    ),
}  # fmt: skip


def cycle_layout(model: str) -> CycleLayout:
    """Return the layers of a model named as in plans.

    Raises:
        ModelError: its layers are not known here.
    """
    base = model.partition("/")[0]
    if base not in _LAYOUTS:
        raise ModelError(f"no cycle of {base!r} is known: wanted {', '.join(_LAYOUTS)}{did_you_mean(base, _LAYOUTS)}")
    return _LAYOUTS[base]


def cycle_steps(layout: CycleLayout, shapes: ModelShapes, rows: int) -> Iterator[Step]:
    """Yield the calls of one cycle in order: draft, verify, accept, commit, with static widths and greedy acceptance.

    `GEMM` steps stand where matrix products and collectives are.

    Args:
        layout: the model's layers.
        shapes: the model's sizes.
        rows: of the verify step, a multiple of the rows per request.

    Raises:
        ModelError: `rows` is no such multiple.

    Source: N0.1, N appendix A, G.7; draft and verify inputs A12.
    """
    requests, rest = divmod(rows, shapes.rows_per_request)
    if rest or not requests:
        raise ModelError(f"a verify step has {shapes.rows_per_request} rows per request: wanted a multiple, got {rows}")
    drafted = requests * shapes.gamma
    yield Step("draft_inputs", "draft", requests)
    yield Step("mla_sched_meta", "draft", drafted)
    for _ in range(layout.stages):
        yield from _layer("draft", drafted)
    yield Step("mhc_combine", "draft", drafted)
    yield Step(GEMM, "draft", drafted)
    yield Step("markov_block", "draft", requests)
    yield Step("confidence_survival", "draft", requests)
    yield Step("schedule_prefix", "draft", requests)
    yield Step("verify_inputs", "verify", requests)
    yield Step("expand_uniform", "verify", requests)
    # Layers without a compressed cache, of ratio 1 and of ratio 2 have lengths of their own.
    for _ in range(3):
        yield Step("mla_sched_meta", "verify", rows)
    for layer in range(layout.layers):
        if layer in layout.engram:
            yield Step("engram_gather", "verify", rows)
        yield from _layer("verify", rows, tuple(_sources(layout, layer, rows)))
    yield Step("mhc_combine_norm", "verify", rows)
    yield Step(GEMM, "verify", rows)
    yield Step("accept_tail", "verify", requests)
    yield Step("main_projection", "commit", rows)
    for _ in range(layout.stages):
        yield Step("k_norm_rope_store", "commit", rows)


def _layer(site: str, rows: int, sources: tuple[Step, ...] = ()) -> Iterator[Step]:
    """Yield one layer: attention, then experts, each inside a hyper-connection site."""
    yield Step("mhc_mix_sinkhorn", site, rows)
    yield Step("mhc_combine_norm_mxfp8", site, rows)
    yield Step(GEMM, site, rows)
    yield from sources
    yield Step("q_rope_store", site, rows)
    yield Step("k_norm_rope_store", site, rows)
    yield Step("sparse_mla_decode", site, rows)
    yield Step("rope_wo_a_mxfp8", site, rows)
    yield Step(GEMM, site, rows)
    yield Step("mhc_post", site, rows)
    yield Step("mhc_mix_sinkhorn", site, rows)
    yield Step("mhc_combine_norm_mxfp8", site, rows)
    yield Step("moe_gate_topk_packed", site, rows)
    yield Step(GEMM, site, rows)
    yield Step("silu_mul_clamp", site, rows)
    yield Step(GEMM, site, rows)
    yield Step("mhc_post", site, rows)


def _sources(layout: CycleLayout, layer: int, rows: int) -> Iterator[Step]:
    """Yield what a layer does for later ones: compressed entries, and the choice of entries to attend to."""
    if layer in layout.compress_one:
        yield Step("compress_c1", "verify", rows)
    if layer in layout.compress_two:
        yield Step("compress_c2", "verify", rows)
    if layer in layout.index_sources:
        yield Step("index_k_store", "verify", rows)
        yield Step("rope_tail_fp4_fake_quant", "verify", rows)
        yield Step("index_scores", "verify", rows)
        if layer >= layout.candidate_source:
            yield Step("candidate_blocks", "verify", rows)
        yield Step("topk_rows", "verify", rows)
        yield Step("finish_topk_pages", "verify", rows)

"""The kernels that multiply stored codes: the drafter's main projection, and the indexer's logits."""

from __future__ import annotations

from dspark_ops.api import Kernel, RankClass, Traits, any_gpu, axis, contiguous, dtype, elements, layout
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_MAIN_PROJECTION = Kernel(
    "main_projection",
    variant="split_values",
    target="dspark_ops_triton.main_projection:main_projection",
    prepare="dspark_ops_triton.main_projection:prepare_main_projection",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16"),
        dtype("weight", "float8_e4m3fn"),
        contiguous("x", "weight", "scales"),
        axis("N").between(32, 2**20),
        axis("N").multiple_of(32),
        axis("K").between(128, 2**20),
        axis("K").multiple_of(128),
        # 64 rows are a program of the grid's last dimension, which has 16 bits.
        axis("M").at_most(2**21),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="3 launches: rows on the grid, parts of K, their sum in one order; the weight once per 64 rows, as bfloat16 "
    "values; 6*K and 32*N bytes per row through scratch memory; 64-bit offsets",
)

_PAGED_LOGITS = Kernel(
    "paged_mqa_logits_fp4",
    variant="page_values",
    target="dspark_ops_triton.paged_logits:paged_mqa_logits_fp4",
    prepare="dspark_ops_triton.paged_logits:prepare_paged_mqa_logits_fp4",
    arch=any_gpu(),
    region=[
        contiguous("q", "q_scale", "kv", "kv_scale", "block_tables", "weights", "context_lens"),
        dtype("weights", "bfloat16"),
        layout("kv", "index_k_split"),
        layout("kv_scale", "index_k_split"),
        axis("H").between(16, 128),
        axis("H").multiple_of(16),
        # A query row is a program of the grid's second dimension, which has 16 bits.
        elements("B*N", 2**16),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, one program per query row and page of 64 keys, or several pages where there are thousands; 68 "
    "bytes per key and row; no work list; 64-bit offsets",
)

KERNELS = (_MAIN_PROJECTION, _PAGED_LOGITS)

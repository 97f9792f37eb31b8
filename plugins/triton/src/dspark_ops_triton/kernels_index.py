"""The kernels of the sparse index: scores, their selection, candidates, schedules, and the argmax over ranks."""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import (
    Constraint,
    Kernel,
    RankClass,
    Traits,
    any_gpu,
    axis,
    contiguous,
    dtype,
    layout,
    option,
    unit_last_stride,
)
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_ROW_BY_ROW = Traits(graph_safe=True, batch_invariant=True)

_SCORES = Kernel(
    "index_scores",
    variant="entry_tiles",
    target="dspark_ops_triton.index_scores:index_scores",
    prepare="dspark_ops_triton.index_scores:prepare_index_scores",
    arch=any_gpu(),
    region=[
        dtype("q", "bfloat16"),
        dtype("weights", "bfloat16", "float32"),
        contiguous("q", "weights", "cache", "lengths"),
        unit_last_stride("page_table"),
        layout("cache", "index_k_page68"),
        option("layout").is_("index_k_page68"),
        option("numerics").one_of("bf16_steps", "fp32"),
        axis("A").between(1, 64),
        axis("D").one_of(128),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 68 bytes per visible entry, 4 out; up to 2**21 entries a row; 64-bit offsets",
)

_TOPK = Kernel(
    "topk_rows",
    variant="threshold",
    target="dspark_ops_triton.topk:topk_rows",
    prepare="dspark_ops_triton.topk:prepare_topk_rows",
    arch=any_gpu(),
    region=[
        dtype("scores", "float32"),
        unit_last_stride("scores"),
        contiguous("lengths"),
        Constraint("option", "top_k", "between", (1, 2048), "1 <= top_k <= 2048"),
        option("order").one_of("position", "score"),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch up to 4096 columns, 2 up to 32768 for 512 choices, more beyond; scores once; 64-bit offsets",
)

_CANDIDATES = Kernel(
    "candidate_blocks",
    variant="two_launches",
    target="dspark_ops_triton.candidates:candidate_blocks",
    prepare="dspark_ops_triton.candidates:prepare_candidate_blocks",
    arch=any_gpu(),
    region=[
        dtype("logits", "float32", "bfloat16", "float16"),
        unit_last_stride("logits", "published"),
        contiguous("seq_lens"),
        option("block_size").one_of(*(2**power for power in range(12))),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="dropped", ties="lowest", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="2 launches, 1 in a consumer; logits once, 5 bytes per entry out; one program per row reads the scores of "
    "more than 8192 blocks up to 25 times",
)

_FINISH = Kernel(
    "finish_topk_pages",
    variant="counted_ranks",
    target="dspark_ops_triton.finish_pages:finish_topk_pages",
    prepare="dspark_ops_triton.finish_pages:prepare_finish_topk_pages",
    arch=any_gpu(),
    region=[
        dtype("scores", "float32"),
        dtype("indices", "int32", "int64"),
        dtype("page_table", "int32"),
        dtype("page_indices", "int32"),
        dtype("raw_indices", "int32", "int64"),
        unit_last_stride("scores", "indices", "page_table", "page_indices", "raw_indices"),
        contiguous("lengths"),
        axis("K").between(1, 2048),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 32 choices to a program, which compares them with all of the row; 64-bit offsets",
)

_VARCTX = Kernel(
    "varctx_schedule",
    variant="halving",
    target="dspark_ops_triton.varctx:varctx_schedule",
    prepare="dspark_ops_triton.varctx:prepare_varctx_schedule",
    arch=any_gpu(),
    region=[contiguous("context_lens"), axis("B").at_most(4095)],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 16 bytes per program; every program of the launch finds the chunks of a slot for itself",
)

_ARGMAX_OVER_RANKS = Kernel(
    "argmax_vocab_parallel",
    variant="row_lanes",
    target="dspark_ops_triton.vocab_pairs:argmax_vocab_parallel",
    prepare="dspark_ops_triton.vocab_pairs:prepare_argmax_vocab_parallel",
    arch=any_gpu(),
    region=[contiguous("pairs"), axis("P").between(1, 1024), axis("R").at_most(2**30)],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 16 bytes per row and rank; 64-bit offsets",
)

KERNELS = (_SCORES, _TOPK, _CANDIDATES, _FINISH, _VARCTX, _ARGMAX_OVER_RANKS)

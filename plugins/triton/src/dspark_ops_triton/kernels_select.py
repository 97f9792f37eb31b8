"""The kernels around a selection: one rank's share of an argmax, candidate lengths, and the slots of chosen entries."""

from __future__ import annotations

from dspark_ops.api import (
    Kernel,
    RankClass,
    Traits,
    any_gpu,
    axis,
    contiguous,
    dtype,
    unit_last_stride,
)
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_LOCAL_ARGMAX = Kernel(
    "argmax_vocab_parallel_local",
    variant="one_launch",
    target="dspark_ops_triton.vocab_parallel:argmax_vocab_parallel_local",
    prepare="dspark_ops_triton.vocab_parallel:prepare_argmax_vocab_parallel_local",
    arch=any_gpu(),
    region=[
        dtype("logits", "float32", "bfloat16", "float16"),
        unit_last_stride("logits"),
        axis("C").between(1, 2**30),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; reads the valid logits once, 16 bytes per row out; 64-bit offsets",
)

_LENGTHS = Kernel(
    "candidate_lengths",
    variant="one_launch",
    target="dspark_ops_triton.index_lengths:candidate_lengths",
    prepare="dspark_ops_triton.index_lengths:prepare_candidate_lengths",
    arch=any_gpu(),
    region=[dtype("seq_lens", "int32"), contiguous("seq_lens"), axis("R").at_most(2**31 - 256)],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 16 bytes per row",
)

_PAGES = Kernel(
    "filter_topk_pages",
    variant="one_launch",
    target="dspark_ops_triton.index_lengths:filter_topk_pages",
    prepare="dspark_ops_triton.index_lengths:prepare_filter_topk_pages",
    arch=any_gpu(),
    region=[
        dtype("scores", "float32"),
        dtype("indices", "int32", "int64"),
        dtype("page_table", "int32"),
        dtype("page_indices", "int32"),
        dtype("raw_indices", "int32", "int64"),
        unit_last_stride("scores", "indices", "page_table", "page_indices", "raw_indices"),
        axis("K").between(1, 2**23),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; a score, a page and a slot per choice; 64-bit offsets",
)

KERNELS = (_LOCAL_ARGMAX, _LENGTHS, _PAGES)

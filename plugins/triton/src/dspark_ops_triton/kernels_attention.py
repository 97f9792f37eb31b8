"""The kernels around sparse attention: rotated heads, the latent store, the decode and the output projection."""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import (
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
from dspark_ops_triton.kernels_base import EARLY_WEIGHT, INTERPRETED, TRITON

_ROW_BY_ROW = Traits(graph_safe=True, batch_invariant=True)
_KV_LAYOUTS = ("kv_v4", "kv_v41", "kv_v41_fp4", "kv_v41_new", "kv_v41_fp4_new")
_POSITIONS = dtype("positions", "int64", "int32")

_Q_ROPE_STORE = Kernel(
    "q_rope_store",
    variant="head_pairs",
    target="dspark_ops_triton.rope:q_rope_store",
    prepare="dspark_ops_triton.rope:prepare_q_rope_store",
    arch=any_gpu(),
    region=[
        dtype("q", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        unit_last_stride("q", "out"),
        contiguous("freqs", "positions"),
        axis("A").between(1, 2**16),
        axis("D").between(64, 1024),
        axis("D").multiple_of(2),
        axis("P").between(2, 64),
        axis("P").multiple_of(2),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 4*A*D + 4*P bytes per token; bit for bit; 64-bit offsets",
)

_ROPE_TAIL_COPY = Kernel(
    "rope_tail_copy",
    variant="head_pairs",
    target="dspark_ops_triton.rope:rope_tail_copy",
    prepare="dspark_ops_triton.rope:prepare_rope_tail_copy",
    arch=any_gpu(),
    region=[
        dtype("q", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        contiguous("freqs", "positions"),
        axis("A").between(1, 2**16),
        axis("D").between(64, 1024),
        axis("D").multiple_of(2),
        axis("P").between(2, 64),
        axis("P").multiple_of(2),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 4*A*D + 4*P bytes per token; any strides; 64-bit offsets",
)

_K_NORM_ROPE_STORE = Kernel(
    "k_norm_rope_store",
    variant="row_program",
    target="dspark_ops_triton.kv_store:k_norm_rope_store",
    prepare="dspark_ops_triton.kv_store:prepare_k_norm_rope_store",
    arch=any_gpu(),
    region=[
        dtype("kv", "bfloat16"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        dtype("out_loc", "int32"),
        unit_last_stride("kv"),
        contiguous("weight", "freqs", "positions", "out_loc", "cache"),
        layout("cache", *_KV_LAYOUTS),
        option("layout").one_of(*_KV_LAYOUTS),
        axis("D").one_of(512),
        axis("P").one_of(64),
        axis("B").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note=f"1 launch, one program per row; about 1870 bytes per row; 64-bit offsets; {EARLY_WEIGHT}",
)

_SPARSE_MLA_DECODE = Kernel(
    "sparse_mla_decode",
    variant="split_entries",
    target="dspark_ops_triton.attention:sparse_mla_decode",
    prepare="dspark_ops_triton.attention:prepare_sparse_mla_decode",
    arch=any_gpu(),
    region=[
        dtype("q", "bfloat16"),
        contiguous("q", "cache", "extra_cache", "lengths", "extra_lengths", "sink"),
        unit_last_stride("indices", "extra_indices"),
        layout("cache", *_KV_LAYOUTS),
        layout("extra_cache", *_KV_LAYOUTS),
        option("layout").one_of(*_KV_LAYOUTS),
        axis("A").between(1, 64),
        axis("D").one_of(512),
        axis("W").between(1, 2**20),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="2 launches: parts of 64 columns and their merge, with 2056 scratch bytes per head and part; 64-bit offsets",
)

_ROPE_WO_A = Kernel(
    "rope_wo_a",
    variant="column_tiles",
    target="dspark_ops_triton.rope_wo_a:rope_wo_a",
    prepare="dspark_ops_triton.rope_wo_a:prepare_rope_wo_a",
    arch=any_gpu(),
    region=[
        dtype("o", "bfloat16"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        unit_last_stride("o"),
        contiguous("weight", "freqs", "positions"),
        option("head_dim").one_of(32, 64, 128, 256, 512),
        axis("G").between(1, 1024),
        axis("R").between(1, 2**20),
        axis("K").multiple_of(32),
        axis("P").between(2, 64),
        axis("P").multiple_of(2),
        axis("T").at_most(2**21),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch per 256 tokens: 32 columns to a program; on Hopper and Blackwell all of K, an eighth to a warp; "
    "elsewhere 256 lanes, and the last program of a tile adds up; the weight once per 8 to 32 tokens, some or all "
    "of it read before the wait (PDL): the kernel just before must not write it; 64-bit offsets",
)

KERNELS = (_Q_ROPE_STORE, _ROPE_TAIL_COPY, _K_NORM_ROPE_STORE, _SPARSE_MLA_DECODE, _ROPE_WO_A)

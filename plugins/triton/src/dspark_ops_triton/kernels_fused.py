"""The kernels of operators that end in a quantisation: activation, stream update, index queries, output projection."""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import Kernel, RankClass, Traits, any_gpu, axis, contiguous, dtype, option, unit_last_stride
from dspark_ops_triton.kernels_base import EARLY_WEIGHT, INTERPRETED, TRITON

_ROW_BY_ROW = Traits(graph_safe=True, batch_invariant=True)

_SILU_MXFP8 = Kernel(
    "silu_mul_clamp_mxfp8",
    variant="column_blocks",
    target="dspark_ops_triton.activation_grid:silu_mul_clamp_mxfp8",
    prepare="dspark_ops_triton.activation_grid:prepare_silu_mul_clamp_mxfp8",
    arch=any_gpu(),
    region=[
        dtype("gate_up", "bfloat16"),
        unit_last_stride("gate_up"),
        axis("I").between(32, 2**23),
        axis("I").multiple_of(32),
        axis("M").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 7 bytes per result; y as silu_mul_clamp of this plugin; 64-bit offsets",
)

_SILU_GRID = replace(
    _SILU_MXFP8,
    op="silu_mul_clamp_fp8_grid",
    target="dspark_ops_triton.activation_grid:silu_mul_clamp_fp8_grid",
    prepare="dspark_ops_triton.activation_grid:prepare_silu_mul_clamp_fp8_grid",
    note="1 launch; 8 bytes per result; exponentials of base 2; no 8-bit conversion; 64-bit offsets",
)

_POST_COMBINE_NORM_GRID = Kernel(
    "mhc_post_combine_norm_fp8_grid",
    variant="row_program",
    target="dspark_ops_triton.mhc_post_grid:mhc_post_combine_norm_fp8_grid",
    prepare="dspark_ops_triton.mhc_post_grid:prepare_mhc_post_combine_norm_fp8_grid",
    arch=any_gpu(),
    region=[
        *(dtype(name, "bfloat16") for name in ("x", "residual", "weight")),
        *(dtype(name, "float32") for name in ("post", "comb", "pre")),
        contiguous("x", "residual", "post", "comb", "pre", "weight"),
        axis("N").one_of(4),
        # A token is held in registers: 8192 lanes is what is built, and tested to need no spills.
        axis("H").between(32, 8192),
        axis("H").multiple_of(32),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, a program, or on sm_90 a cluster of four, per token; 8*H + 4*N*H bytes per token and 2*H; no 8-bit "
    f"conversion; {EARLY_WEIGHT}; 64-bit offsets",
)

_INDEX_QUERY = Kernel(
    "index_q_rope_fp4_pack",
    variant="head_groups",
    target="dspark_ops_triton.index_query:index_q_rope_fp4_pack",
    prepare="dspark_ops_triton.index_query:prepare_index_q_rope_fp4_pack",
    arch=any_gpu(),
    region=[
        dtype("q", "bfloat16"),
        dtype("freqs", "float32"),
        dtype("positions", "int64", "int32"),
        dtype("partials", "float32"),
        unit_last_stride("q"),
        contiguous("freqs", "positions", "partials"),
        axis("A").one_of(16, 32, 48, 64),
        axis("D").one_of(32, 64, 96, 128),
        axis("P").between(2, 128),
        axis("P").multiple_of(2),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=replace(_ROW_BY_ROW, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 2.5*A*D bytes per token and 4 per head and part of the weights; bit for bit; 64-bit offsets",
)

_ROPE_WO_A_MXFP8 = Kernel(
    "rope_wo_a_mxfp8",
    variant="column_tiles",
    target="dspark_ops_triton.rope_wo_a_mxfp8:rope_wo_a_mxfp8",
    prepare="dspark_ops_triton.rope_wo_a_mxfp8:prepare_rope_wo_a_mxfp8",
    arch=any_gpu(),
    region=[
        dtype("o", "bfloat16"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        dtype("positions", "int64", "int32"),
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
    note="1 launch per 256 tokens: that of rope_wo_a, whose y it returns, bit for bit; the program that adds up a tile "
    "also quantises it, and writes its scale bytes with their padding; 64-bit offsets",
)

KERNELS = (_SILU_MXFP8, _SILU_GRID, _POST_COMBINE_NORM_GRID, _INDEX_QUERY, _ROPE_WO_A_MXFP8)

"""The kernels around sparse attention: rotated heads, latent rows, and the output projection with its MXFP8."""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import Kernel, RankClass, axis, contiguous, dtype, elements, layout, option, unit_last_stride
from dspark_ops_nvidia_sm10x.kernels_base import ARCH, EARLY_ROWS, INTERPRETED, TRITON

_POSITIONS = dtype("positions", "int64", "int32")

_Q_ROPE_STORE = Kernel(
    "q_rope_store",
    variant="tail_apart",
    target="dspark_ops_nvidia_sm10x.q_rope_store:q_rope_store",
    prepare="dspark_ops_nvidia_sm10x.q_rope_store:prepare_q_rope_store",
    arch=ARCH,
    region=[
        dtype("q", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        unit_last_stride("q", "out"),
        contiguous("freqs", "positions"),
        axis("A").between(1, 2**16),
        axis("D").between(64, 1024),
        axis("D").multiple_of(8),
        axis("P").between(2, 64),
        axis("P").power_of_two(),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.FUSED,
    traits=EARLY_ROWS,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, set up while the product before it runs (PDL); own body: plain lanes are copied as bytes, only the "
    "rotated ones are taken apart; 4*A*D + 4*P bytes per token; 64-bit offsets; tile sizes reasoned, not measured",
)

_ROPE_WO_A = Kernel(
    "rope_wo_a",
    variant="head_slabs",
    target="dspark_ops_nvidia_sm10x.rope_wo_a:rope_wo_a",
    prepare="dspark_ops_nvidia_sm10x.rope_wo_a:prepare_rope_wo_a",
    arch=ARCH,
    region=[
        dtype("o", "bfloat16"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        unit_last_stride("o"),
        contiguous("weight", "freqs", "positions"),
        option("head_dim").one_of(32, 64, 128, 256, 512),
        # The last program of a tile adds up to 256 heads in straight code, at offsets of 32 bits.
        axis("K").at_most(8192),
        elements("G*R", 2**18),
        # Whole tiles of scale bytes, and programs of one group each.
        axis("R").at_least(128),
        axis("R").multiple_of(128),
        axis("P").between(2, 64),
        axis("P").multiple_of(2),
        # A program holds all tokens: 32 is what is tested to need no spills. Beyond, more products than weights count.
        axis("T").at_most(32),
    ],
    rank=RankClass.FUSED,
    traits=EARLY_ROWS,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, a program per head and 32 columns, heads added in order by the last one; own body: the weight "
    "is read before the wait for the attention (PDL), once, so that the kernel just before must not write it; up to 32 "
    "tokens; tile sizes reasoned, not measured",
)

_ROPE_WO_A_MXFP8 = replace(
    _ROPE_WO_A,
    op="rope_wo_a_mxfp8",
    target="dspark_ops_nvidia_sm10x.rope_wo_a:rope_wo_a_mxfp8",
    prepare="dspark_ops_nvidia_sm10x.rope_wo_a:prepare_rope_wo_a_mxfp8",
    note="as rope_wo_a, whose y it returns, bit for bit; the program that adds up a tile also quantises it, and writes "
    "its scale bytes with their padding: 1 launch instead of 2",
)

_KV_LAYOUTS = ("kv_v4", "kv_v41", "kv_v41_fp4", "kv_v41_new", "kv_v41_fp4_new")
_LATENT = "portable body, a program of 4 warps per row, set up early (PDL); tile sizes reasoned, not measured"

_K_NORM_ROPE_STORE = Kernel(
    "k_norm_rope_store",
    variant="row_program",
    target="dspark_ops_nvidia_sm10x.latents:k_norm_rope_store",
    prepare="dspark_ops_nvidia_sm10x.latents:prepare_k_norm_rope_store",
    arch=ARCH,
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
    rank=RankClass.FUSED,
    traits=EARLY_ROWS,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note=f"1 launch; about 1870 bytes per row; {_LATENT}; the weight is read before "
    "the wait: the kernel just before must not write it; layouts of V4.1 by one warp per row, not set up early",
)

_COMPRESS_C1 = Kernel(
    "compress_c1",
    variant="row_program",
    target="dspark_ops_nvidia_sm10x.latents:compress_c1",
    prepare="dspark_ops_nvidia_sm10x.latents:prepare_compress_c1",
    arch=ARCH,
    region=[
        dtype("kv", "bfloat16"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        dtype("out_loc", "int64", "int32"),
        unit_last_stride("kv"),
        contiguous("weight", "freqs", "positions", "out_loc", "cache"),
        layout("cache", "kv_v4"),
        option("layout").is_("kv_v4"),
        axis("D").one_of(512),
        axis("P").one_of(64),
        axis("N").at_most(2**31 - 1),
    ],
    rank=RankClass.FUSED,
    traits=EARLY_ROWS,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note=f"1 launch; about 2900 bytes per row; {_LATENT}; layout kv_v4 alone; the weight is read before the wait: the "
    "kernel just before must not write it",
)

_COMPRESS_C2 = Kernel(
    "compress_c2",
    variant="row_program",
    target="dspark_ops_nvidia_sm10x.latents:compress_c2",
    prepare="dspark_ops_nvidia_sm10x.latents:prepare_compress_c2",
    arch=ARCH,
    region=[
        dtype("kv_score", "float32"),
        dtype("state", "float32"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        _POSITIONS,
        dtype("requests", "int64"),
        dtype("out_loc", "int64", "int32"),
        contiguous("kv_score", "state", "weight", "freqs", "positions", "requests", "out_loc", "cache"),
        layout("cache", "kv_v4"),
        option("layout").is_("kv_v4"),
        option("form").one_of("decode", "verify", "extend"),
        axis("D").one_of(512),
        axis("P").one_of(64),
        axis("N").at_most(2**31 - 1),
    ],
    rank=RankClass.FUSED,
    traits=EARLY_ROWS,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note=f"1 launch, in the form extend 2; about 10 kB per row; {_LATENT}; layout kv_v4 alone; the weight is read "
    "before the wait: the kernel just before must not write it",
)

KERNELS = (_Q_ROPE_STORE, _ROPE_WO_A, _ROPE_WO_A_MXFP8, _K_NORM_ROPE_STORE, _COMPRESS_C1, _COMPRESS_C2)

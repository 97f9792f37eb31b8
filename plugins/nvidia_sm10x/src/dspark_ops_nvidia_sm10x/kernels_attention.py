"""The kernels around sparse attention: rotated heads, and the output projection with its MXFP8."""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import Kernel, RankClass, axis, contiguous, dtype, option, unit_last_stride
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
        axis("G").between(1, 1024),
        # Whole tiles of scale bytes, and programs of one group each.
        axis("R").between(128, 2**16),
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
    "is read before the wait for the attention (PDL), once; up to 32 tokens; tile sizes reasoned, not measured",
)

_ROPE_WO_A_MXFP8 = replace(
    _ROPE_WO_A,
    op="rope_wo_a_mxfp8",
    target="dspark_ops_nvidia_sm10x.rope_wo_a:rope_wo_a_mxfp8",
    prepare="dspark_ops_nvidia_sm10x.rope_wo_a:prepare_rope_wo_a_mxfp8",
    note="as rope_wo_a, whose y it returns, bit for bit; the program that adds up a tile also quantises it, and writes "
    "its scale bytes with their padding: 1 launch instead of 2",
)

KERNELS = (_Q_ROPE_STORE, _ROPE_WO_A, _ROPE_WO_A_MXFP8)

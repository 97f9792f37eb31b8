"""The hyper-connection kernels."""

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
    unit_last_stride,
)
from dspark_ops_triton.kernels_base import EARLY_WEIGHT, INTERPRETED, TRITON

_COMBINE = Kernel(
    "mhc_combine",
    variant="column_blocks",
    target="dspark_ops_triton.mhc:mhc_combine",
    prepare="dspark_ops_triton.mhc:prepare_mhc_combine",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16"),
        dtype("pre", "float32", "bfloat16"),
        unit_last_stride("x", "pre"),
        axis("N").one_of(4),
        axis("H").between(1, 2**24),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 2*N*H + 2*H bytes per token; the contract's chain bit for bit; 64-bit offsets",
)

_POST = Kernel(
    "mhc_post",
    variant="column_blocks",
    target="dspark_ops_triton.mhc_post:mhc_post",
    prepare="dspark_ops_triton.mhc_post:prepare_mhc_post",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16"),
        dtype("residual", "bfloat16"),
        dtype("post", "float32"),
        dtype("comb", "float32"),
        contiguous("x", "residual", "post", "comb"),
        axis("N").one_of(4),
        axis("H").between(1, 2**24),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 2*H + 4*N*H bytes per token; 64-bit offsets",
)

_MIX = Kernel(
    "mhc_mix_sinkhorn",
    variant="one_launch",
    target="dspark_ops_triton.mhc_mix:mhc_mix_sinkhorn",
    prepare="dspark_ops_triton.mhc_mix:prepare_mhc_mix_sinkhorn",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16"),
        dtype("fn", "float32"),
        contiguous("x", "fn", "scale", "base"),
        axis("C").one_of(24),  # four copies
        # the last program reads the sums of all others in one piece of straight code
        axis("J").between(4, 4 * 8192),
        axis("J").multiple_of(4),
        axis("T").at_most(2**24),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; projection once per 4 tokens of up to 8, 8 of up to 24, or 16, in three bfloat16 parts, read "
    "before the wait (PDL): the kernel just before must not write it; 128 bytes of partial sums per token and 256 "
    "columns, allocated by the call; programs meet through words of the bound operator",
)

_COMBINE_NORM_MXFP8 = Kernel(
    "mhc_combine_norm_mxfp8",
    variant="row_program",
    target="dspark_ops_triton.mhc_mxfp8:mhc_combine_norm_mxfp8",
    prepare="dspark_ops_triton.mhc_mxfp8:prepare_mhc_combine_norm_mxfp8",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16"),
        dtype("pre", "float32", "bfloat16"),
        dtype("weight", "bfloat16"),
        unit_last_stride("x", "pre"),
        contiguous("weight"),
        axis("N").one_of(4),
        axis("H").between(32, 8192),
        axis("H").multiple_of(32),
        axis("T").at_most(2**30),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, a program, or on sm_90 a cluster of four, per token, which clear the padding, too; y as "
    f"mhc_combine_norm of this plugin; {EARLY_WEIGHT}; 64-bit offsets",
)

_POST_COMBINE = replace(
    _POST,
    op="mhc_post_combine",
    target="dspark_ops_triton.mhc_post_combine:mhc_post_combine",
    prepare="dspark_ops_triton.mhc_post_combine:prepare_mhc_post_combine",
    region=[*_POST.region, dtype("pre", "float32"), contiguous("pre")],
    rank=RankClass.FUSED,
    note="1 launch; 4*H + 4*N*H bytes per token: the copies are not read again for the sum; 64-bit offsets",
)

_POST_COMBINE_NORM = replace(
    _POST_COMBINE,
    op="mhc_post_combine_norm",
    variant="row_program",
    target="dspark_ops_triton.mhc_post_combine:mhc_post_combine_norm",
    prepare="dspark_ops_triton.mhc_post_combine:prepare_mhc_post_combine_norm",
    region=[
        *_POST_COMBINE.region,
        dtype("weight", "bfloat16"),
        contiguous("weight"),
        # A token is held in registers: 8192 lanes at 16 bytes a load is what is tested to need no spills.
        axis("H").at_most(8192),
        axis("H").multiple_of(8),
    ],
    note="1 launch, a program, or on sm_90 a cluster of four, per token; 6*H + 4*N*H bytes per token and 2*H; "
    f"{EARLY_WEIGHT}; 64-bit offsets",
)

KERNELS = (_COMBINE, _POST, _MIX, _COMBINE_NORM_MXFP8, _POST_COMBINE, _POST_COMBINE_NORM)

"""The hyper-connection kernels."""

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
    traits=Traits(graph_safe=True, batch_invariant=True),
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
    traits=Traits(graph_safe=True, batch_invariant=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 2*H + 4*N*H bytes per token; 64-bit offsets",
)

KERNELS = (_COMBINE, _POST)

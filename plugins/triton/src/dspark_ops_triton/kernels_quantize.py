"""The kernels that quantise activations."""

from __future__ import annotations

from dspark_ops.api import Kernel, RankClass, Traits, any_gpu, axis, contiguous, dtype, option
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_MXFP8 = Kernel(
    "mxfp8_quantize",
    variant="row_blocks",
    target="dspark_ops_triton.quantize:mxfp8_quantize",
    prepare="dspark_ops_triton.quantize:prepare_mxfp8_quantize",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16", "float16"),
        contiguous("x"),
        axis("K").multiple_of(32),
        axis("K").between(32, 2**20),
        option("layout").one_of("sf_128x4", "sf_linear"),
        option("scale_rounding").is_("up"),
        option("tiny_groups").is_("zero"),
        axis("M").at_most(2**30),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, padding of the scale bytes included; 3 bytes per value; 64-bit offsets",
)

KERNELS = (_MXFP8,)

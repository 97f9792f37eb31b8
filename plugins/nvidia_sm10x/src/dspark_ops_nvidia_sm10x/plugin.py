"""The manifest of the kernels for NVIDIA SM100 and SM103. Importing this needs neither torch nor Triton."""

from __future__ import annotations

from dspark_ops.api import (
    Kernel,
    Manifest,
    RankClass,
    Traits,
    axis,
    contiguous,
    dtype,
    elements,
    hookimpl,
    layout,
    unit_last_stride,
)
from dspark_ops_nvidia_sm10x import kernels_adapters, kernels_attention, kernels_step
from dspark_ops_nvidia_sm10x.kernels_base import ARCH, INTERPRETED, TRITON

_PRODUCTS = (
    Kernel(
        "argmax_rows",
        variant="one_launch",
        target="dspark_ops_nvidia_sm10x.argmax:argmax_rows",
        prepare="dspark_ops_nvidia_sm10x.argmax:prepare_argmax_rows",
        arch=ARCH,
        region=[
            dtype("x", "float32", "bfloat16", "float16"),
            unit_last_stride("x"),
            axis("V").between(4096, 2**30),
            axis("R").at_most(2**31 - 1),
        ],
        rank=RankClass.FUSED,
        traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest", pdl=True),
        evidence=INTERPRETED,
        packages=(TRITON,),
        note="1 launch, set up early (PDL) where a program has one tile; reads the logits once, 8 bytes per row out; "
        "64-bit offsets; tile sizes reasoned, not measured",
    ),
    Kernel(
        "main_projection",
        variant="split_codes",
        target="dspark_ops_nvidia_sm10x.projection:main_projection",
        prepare="dspark_ops_nvidia_sm10x.projection:prepare_main_projection",
        arch=ARCH,
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
        rank=RankClass.FUSED,
        traits=Traits(graph_safe=True, pdl=True),
        evidence=INTERPRETED,
        packages=(TRITON,),
        note="3 launches: rows on the grid, parts of K, their sum in one order; the weight once per 64 rows, its codes "
        "and rows as stored; 4.5*K and 64*N bytes per row through scratch memory; a row's bits are not claimed to be "
        "equal at all numbers of rows; tile sizes reasoned, not measured",
    ),
    Kernel(
        "paged_mqa_logits_fp4",
        variant="page_codes",
        target="dspark_ops_nvidia_sm10x.paged_logits:paged_mqa_logits_fp4",
        prepare="dspark_ops_nvidia_sm10x.paged_logits:prepare_paged_mqa_logits_fp4",
        arch=ARCH,
        region=[
            contiguous("q", "q_scale", "kv", "kv_scale", "block_tables", "weights", "context_lens"),
            dtype("weights", "bfloat16"),
            layout("kv", "index_k_split"),
            layout("kv_scale", "index_k_split"),
            # A thread holds the scores of a key: 64 heads is what is tested to need no spills.
            axis("H").between(16, 64),
            axis("H").multiple_of(16),
            # A query row is a program of the grid's second dimension, which has 16 bits.
            elements("B*N", 2**16),
        ],
        rank=RankClass.FUSED,
        traits=Traits(graph_safe=True, batch_invariant=True),
        evidence=INTERPRETED,
        packages=(TRITON,),
        note="1 launch, one program per query row and tile of keys; codes go to the matrix unit as stored; no work "
        "list; 64-bit offsets; tile sizes reasoned, not measured",
    ),
)

#: Kernels of a family stand in its own module, ``kernels_<family>``.
KERNELS = (*_PRODUCTS, *kernels_attention.KERNELS, *kernels_step.KERNELS, *kernels_adapters.KERNELS)


@hookimpl
def dspark_ops_manifest() -> Manifest:
    """Return the kernels for NVIDIA SM100 and SM103."""
    return Manifest("nvidia_sm10x", api=">=1,<2", kernels=KERNELS)

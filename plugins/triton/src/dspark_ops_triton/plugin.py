"""The manifest of the portable Triton kernels. Importing this needs neither torch nor Triton."""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import (
    Evidence,
    Kernel,
    Manifest,
    RankClass,
    Traits,
    any_gpu,
    any_of,
    axis,
    contiguous,
    dtype,
    hookimpl,
    unit_last_stride,
    with_recorded_evidence,
)
from dspark_ops_triton import (
    kernels_accept,
    kernels_attention,
    kernels_compress,
    kernels_draft,
    kernels_fused,
    kernels_grids,
    kernels_index,
    kernels_inputs,
    kernels_mhc,
    kernels_moe,
    kernels_products,
    kernels_quantize,
    kernels_routes,
    kernels_select,
)
from dspark_ops_triton.kernels_base import EARLY_WEIGHT, INTERPRETED, TRITON

_ARGMAX = Kernel(
    "argmax_rows",
    variant="one_launch",
    target="dspark_ops_triton.argmax:argmax_rows",
    prepare="dspark_ops_triton.argmax:prepare_argmax_rows",
    arch=any_gpu(),
    region=[
        dtype("x", "float32", "bfloat16", "float16"),
        unit_last_stride("x"),
        axis("V").between(1, 2**30),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; reads the logits once, 8 bytes per row out; 64-bit offsets",
)

_COMBINE_NORM = Kernel(
    "mhc_combine_norm",
    variant="row_program",
    target="dspark_ops_triton.mhc:mhc_combine_norm",
    prepare="dspark_ops_triton.mhc:prepare_mhc_combine_norm",
    arch=any_gpu(),
    region=[
        dtype("x", "bfloat16"),
        dtype("pre", "float32", "bfloat16"),
        dtype("weight", "bfloat16"),
        unit_last_stride("x", "pre"),
        contiguous("weight"),
        axis("N").one_of(4),
        # A token is held in registers: 8192 lanes is what is built, and tested to need no spills.
        axis("H").between(1, 8192),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, a program, or on sm_90 a cluster of four, per token; 2*N*H + 2*H bytes per token; "
    f"{EARLY_WEIGHT}; 64-bit offsets",
)

_FINALIZE = Kernel(
    "accept_finalize",
    variant="one_launch",
    target="dspark_ops_triton.accept:accept_finalize",
    prepare="dspark_ops_triton.accept:prepare_accept_finalize",
    arch=any_gpu(),
    region=[
        dtype("correct_len", "int32"),
        dtype("bonus", "int64"),
        dtype("drafts", "int64"),
        dtype("prefix_lens", "int32", "int64"),
        contiguous("correct_len", "bonus", "prefix_lens"),
        unit_last_stride("drafts"),
        axis("G").between(1, 63),
        axis("B").at_most(2**31 - 16),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch for lengths and tokens together; about 30 bytes per request and 16 per draft",
)

#: Kernels of a family stand in its own module, ``kernels_<family>``; what ran on hardware is in conformant.json.
KERNELS = with_recorded_evidence(
    "dspark_ops_triton",
    (
        _ARGMAX,
        _COMBINE_NORM,
        _FINALIZE,
        *kernels_mhc.KERNELS,
        *kernels_moe.KERNELS,
        *kernels_quantize.KERNELS,
        *kernels_grids.KERNELS,
        *kernels_products.KERNELS,
        *kernels_attention.KERNELS,
        *kernels_compress.KERNELS,
        *kernels_accept.KERNELS,
        *kernels_inputs.KERNELS,
        *kernels_draft.KERNELS,
        *kernels_select.KERNELS,
        *kernels_index.KERNELS,
        *kernels_routes.KERNELS,
        *kernels_fused.KERNELS,
    ),
)


def _interpreted(kernel: Kernel) -> Kernel:
    """Return the kernel as Triton's interpreter runs it on a CPU: only where the device says that it is switched on."""
    return replace(
        kernel,
        variant=f"{kernel.variant}_interpreted",
        arch=any_of("cpu"),
        features=("triton_interpreter",),
        evidence=(("cpu", Evidence.INTERPRETED),),
        traits=replace(kernel.traits, graph_safe=False),
        note="for tests: Triton's CPU interpreter, a thousand times slower than torch",
    )


@hookimpl
def dspark_ops_manifest() -> Manifest:
    """Return the portable Triton kernels."""
    return Manifest("triton", api=">=1,<2", kernels=(*KERNELS, *map(_interpreted, KERNELS)))

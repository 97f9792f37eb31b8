"""The manifest of the kernels for AMD gfx950 (MI350X, MI355X). Importing this needs neither torch nor Triton."""

from __future__ import annotations

from dspark_ops.api import (
    Evidence,
    Kernel,
    Manifest,
    Package,
    RankClass,
    Traits,
    axis,
    dtype,
    family,
    hookimpl,
    unit_last_stride,
)

#: ROCm builds of torch bring the module under another distribution's name.
TRITON = Package(
    "triton", "triton|triton-rocm|pytorch-triton-rocm", ">=3.6", install="pip install 'dspark-ops-amd-gfx950[triton]'"
)

KERNELS = (
    Kernel(
        "argmax_rows",
        variant="one_launch",
        target="dspark_ops_amd_gfx950.argmax:argmax_rows",
        prepare="dspark_ops_amd_gfx950.argmax:prepare_argmax_rows",
        arch=family("gfx95x"),
        region=[
            dtype("x", "float32", "bfloat16", "float16"),
            unit_last_stride("x"),
            axis("V").between(4096, 2**30),
            axis("R").at_most(2**31 - 1),
        ],
        rank=RankClass.FUSED,
        traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest"),
        evidence=(("gfx950", Evidence.INTERPRETED),),
        packages=(TRITON,),
        note="1 launch; reads the logits once, 8 bytes per row out; 64-bit offsets; tile sizes reasoned, not measured",
    ),
)


@hookimpl
def dspark_ops_manifest() -> Manifest:
    """Return the kernels for AMD gfx950 (MI350X, MI355X)."""
    return Manifest("amd_gfx950", api=">=1,<2", kernels=KERNELS)

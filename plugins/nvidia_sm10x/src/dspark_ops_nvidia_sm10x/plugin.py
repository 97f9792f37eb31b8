"""The manifest of the kernels for NVIDIA SM100 and SM103. Importing this needs neither torch nor Triton."""

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

TRITON = Package("triton", "triton", ">=3.6", install="pip install 'dspark-ops-nvidia-sm10x[triton]'")

KERNELS = (
    Kernel(
        "argmax_rows",
        variant="one_launch",
        target="dspark_ops_nvidia_sm10x.argmax:argmax_rows",
        prepare="dspark_ops_nvidia_sm10x.argmax:prepare_argmax_rows",
        arch=family("sm_10x"),
        region=[
            dtype("x", "float32", "bfloat16", "float16"),
            unit_last_stride("x"),
            axis("V").between(4096, 2**30),
            axis("R").at_most(2**31 - 1),
        ],
        rank=RankClass.FUSED,
        traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest"),
        evidence=(("sm_100", Evidence.INTERPRETED), ("sm_103", Evidence.INTERPRETED)),
        packages=(TRITON,),
        note="1 launch; reads the logits once, 8 bytes per row out; 64-bit offsets; tile sizes reasoned, not measured",
    ),
)


@hookimpl
def dspark_ops_manifest() -> Manifest:
    """Return the kernels for NVIDIA SM100 and SM103."""
    return Manifest("nvidia_sm10x", api=">=1,<2", kernels=KERNELS)

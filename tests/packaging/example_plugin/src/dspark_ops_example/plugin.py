"""The manifest. It is read on every machine, so it imports nothing but the interface."""

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
    unit_last_stride,
)

KERNELS = (
    Kernel(
        "argmax_rows",
        variant="torch",
        target="dspark_ops_example.kernels:argmax_rows",
        region=[
            dtype("x", "float32", "bfloat16"),
            unit_last_stride("x"),
            axis("V").between(1, 2**18),
            elements("R*V", below=2**31),
        ],
        rank=RankClass.PORTABLE,
        traits=Traits(batch_invariant=True, nan="first", ties="lowest"),
        note="one torch call",
    ),
    Kernel(
        "accept_finalize",
        variant="torch",
        target="dspark_ops_example.kernels:accept_finalize",
        prepare="dspark_ops_example.kernels:prepare_accept_finalize",
        region=[
            unit_last_stride("drafts"),
            contiguous("correct_len", "bonus", "prefix_lens"),
            axis("G").between(1, 15),
        ],
        rank=RankClass.PORTABLE,
        traits=Traits(batch_invariant=True),
        note="column numbers are made once, at preparation",
    ),
)


@hookimpl
def dspark_ops_manifest() -> Manifest:
    """Return the example's kernels."""
    return Manifest("example", api=">=1,<2", kernels=KERNELS)

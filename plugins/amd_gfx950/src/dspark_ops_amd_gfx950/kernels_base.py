"""What the lists of kernels share: the architecture, the package that all need, and what is known of them.

Modules named ``kernels_*`` are part of the manifest: importing them needs neither torch nor Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspark_ops.api import Constraint, Evidence, Kernel, Package, RankClass, Traits, family

ARCH = family("gfx95x")
#: ROCm builds of torch bring the module under another distribution's name.
TRITON = Package(
    "triton", "triton|triton-rocm|pytorch-triton-rocm", ">=3.6", install="pip install 'dspark-ops-amd-gfx950[triton]'"
)
#: What the tests of this plugin do for every Triton kernel: build it, and check its numbers in the interpreter.
INTERPRETED = (("gfx950", Evidence.INTERPRETED),)
#: A row's bits are its own.
ROW_BY_ROW = Traits(graph_safe=True, batch_invariant=True)


def gfx950_kernel(
    op: str, variant: str, module: str, region: Sequence[Constraint | tuple[Constraint, ...]], note: str,
    traits: Traits = ROW_BY_ROW,
) -> Kernel:  # fmt: skip
    """Return the entry of a Triton kernel whose module has it under the operator's name, and ``prepare_`` before it."""
    target = f"dspark_ops_amd_gfx950.{module}:"
    return Kernel(
        op, variant=variant, target=f"{target}{op}", prepare=f"{target}prepare_{op}", arch=ARCH, region=region,
        rank=RankClass.FUSED, traits=traits, evidence=INTERPRETED, packages=(TRITON,),
        note=f"{note}; tile sizes reasoned, not measured",
    )  # fmt: skip

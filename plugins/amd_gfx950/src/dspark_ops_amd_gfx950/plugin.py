"""The manifest of the kernels for AMD gfx950 (MI350X, MI355X). Importing this needs neither torch nor Triton."""

from __future__ import annotations

from dspark_ops.api import Manifest, hookimpl
from dspark_ops_amd_gfx950 import kernels_aiter, kernels_experts, kernels_rows, kernels_step

#: The Triton kernels. Those of a family stand in its own module, ``kernels_<family>``.
KERNELS = (*kernels_step.KERNELS, *kernels_experts.KERNELS, *kernels_rows.KERNELS)


@hookimpl
def dspark_ops_manifest() -> Manifest:
    """Return the kernels for AMD gfx950 (MI350X, MI355X)."""
    return Manifest("amd_gfx950", api=">=1,<2", kernels=(*KERNELS, *kernels_aiter.KERNELS))

"""What the lists of kernels share: the package that all need, and what is known of them.

Modules named ``kernels_*`` are part of the manifest: importing them needs neither torch nor Triton.
"""

from __future__ import annotations

from dspark_ops.api import Evidence, Package

#: ROCm builds of torch bring the module under another distribution's name.
TRITON = Package(
    "triton", "triton|triton-rocm|pytorch-triton-rocm", ">=3.6", install="pip install 'dspark-ops-triton[triton]'"
)

#: What the tests of this plugin do for every kernel: build it for these architectures and check its numbers in the
#: interpreter.
INTERPRETED = tuple(
    (name, Evidence.INTERPRETED) for name in ("sm_90", "sm_100", "sm_103", "gfx942", "gfx950")
)  # fmt: skip

#: In the note of a kernel that may read its weight, or the norm's, while the kernel before it is still running.
EARLY_WEIGHT = "the weight is read before the wait (PDL): the kernel just before must not write it"

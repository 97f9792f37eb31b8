"""What the lists of kernels share: the architectures, the package that all need, and what is known of them.

Modules named ``kernels_*`` are part of the manifest: importing them needs neither torch nor Triton.
"""

from __future__ import annotations

from dspark_ops.api import Evidence, Package, Traits, family

ARCH = family("sm_10x")
TRITON = Package("triton", "triton", ">=3.6", install="pip install 'dspark-ops-nvidia-sm10x[triton]'")
#: What the tests of this plugin do for every Triton kernel: build it for both and check its numbers in the interpreter.
INTERPRETED = (("sm_100", Evidence.INTERPRETED), ("sm_103", Evidence.INTERPRETED))
#: A row's bits are its own, and the kernel is set up while the one before it runs.
EARLY_ROWS = Traits(graph_safe=True, batch_invariant=True, pdl=True)

"""The quantising kernels built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import quantize
from dspark_ops_triton.kernels_base import INTERPRETED


@pytest.mark.parametrize("swizzled", [True, False])
@pytest.mark.parametrize("arch", [name for name, _ in INTERPRETED])
def test_mxfp8_loads_16_bytes_at_a_time(arch: str, swizzled: bool) -> None:
    signature = {"x": "*bf16", "q": "*u8", "scales": "*u8", "rows": "i32"}
    constants, options = quantize.launch_constants(160, swizzled), quantize.launch_options(arch.startswith("gfx"))
    kernel = compile_kernel(quantize.mxfp8_kernel, arch, signature, constants, options, ("x", "q", "scales"))
    assert kernel.spilled == 0
    assert kernel.registers <= 96
    assert kernel.shared <= 1024
    assert kernel.count(r"\bLDG\.E\.128|\b(global|buffer)_load_dwordx4") == 4

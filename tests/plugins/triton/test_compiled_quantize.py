"""The quantising kernels built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import quantize
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.kernels_base import INTERPRETED


@pytest.mark.parametrize("swizzled", [True, False])
@pytest.mark.parametrize("arch", [name for name, _ in INTERPRETED])
def test_mxfp8_loads_16_bytes_at_a_time(arch: str, swizzled: bool) -> None:
    signature = {"x": "*bf16", "q": "*u8", "scales": "*u8", "rows": "i32"}
    cut = quantize.AMD_CUT if arch.startswith("gfx") else quantize.CUT
    constants, options = quantize.launch_constants(cut, 160, swizzled, arch.startswith("sm_")), cut_options(cut)
    kernel = compile_kernel(quantize.mxfp8_kernel, arch, signature, constants, options, ("x", "q", "scales"))
    assert kernel.spilled == 0
    assert kernel.registers <= 96
    assert kernel.shared <= (1024 if arch.startswith("gfx") else 0)
    assert kernel.count(r"\bLDG\.E\.128|\b(global|buffer)_load_dwordx4") == (4 if arch.startswith("gfx") else 2)
    assert kernel.count(r"\b(F2F\.F64|DSETP)") == 0, "nothing is compared as float64"

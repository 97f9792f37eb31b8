"""The kernels of the fp8 and fp4 grids built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import fake_quant, fp4_rows
from dspark_ops_triton.blocks import fp4_packing, fp4_rounding, fp8_grid, grid_rows
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.fp8_grid import AMD_CUT, CUT
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
WIDE_LOAD = r"\bLDG\.E\.128|\b(global|buffer)_load_dwordx4"
WIDE_STORE = r"\bSTG\.E\.128|\b(global|buffer)_store_dwordx4"
#: Four lanes of a thread on NVIDIA, eight on AMD.
SHARE_LOAD = r"\bLDG\.E\.64|\b(global|buffer)_load_dwordx4"
SHARE_STORE = r"\bSTG\.E\.64|\b(global|buffer)_store_dwordx4"


@pytest.mark.parametrize("arch", ARCHES)
def test_the_fp8_grid_loads_16_bytes_at_a_time_as_codes_and_as_values(arch: str) -> None:
    cut = AMD_CUT if arch.startswith("gfx") else CUT
    constants, options = grid_rows.launch_constants(cut, arch.startswith("sm_")), cut_options(cut)
    pointers = {"x": "*bf16", "codes": "*u8", "scales": "*u8"}
    codes = compile_kernel(
        fp8_grid.grid_codes_kernel, arch, {**pointers, "count": "i32"}, constants, options, tuple(pointers)
    )
    values = compile_kernel(
        fp8_grid.grid_values_kernel, arch, {"x": "*bf16", "out": "*bf16", "count": "i32"}, constants, options,
        ("x", "out"),
    )  # fmt: skip
    for kernel in (codes, values):
        assert kernel.spilled == 0
        assert kernel.registers <= 96
        assert kernel.shared <= 1024
        assert kernel.count(WIDE_LOAD) == (2 if arch.startswith("gfx") else 1)
        assert kernel.count(r"\b(BAR\.SYNC|s_barrier)") == 0, "groups lie in a warp"
    assert values.count(WIDE_STORE) == (2 if arch.startswith("gfx") else 1)
    assert values.count(r"F2FP\.SATFINITE\.E4M3|v_cvt_pk_fp8|v_cvt_scale") == 0, "no 8-bit conversion"


@pytest.mark.parametrize(("arch", "rounding"), [*((name, "rne") for name in ARCHES), ("sm_90", "half_down")])
@pytest.mark.parametrize("rows", [192, 4096])
def test_fp4_rows_are_read_16_bytes_at_a_time(arch: str, rounding: str, rows: int) -> None:
    cut = fp4_packing.cut_of(fp4_rows.AMD_CUTS if arch.startswith("gfx") else fp4_rows.CUTS, rows)
    kernel = compile_kernel(
        fp4_packing.fp4_rows_kernel, arch, {"x": "*bf16", "payload": "*u8", "scales": "*u8", "rows": "i32"},
        fp4_packing.launch_constants(cut, 128, rounding), cut_options(cut),
        ("x", "payload", "scales"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 64
    assert kernel.shared <= 1024
    assert kernel.count(WIDE_LOAD) == 1


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("scale", ["ue8m0_32", "e4m3_16"])
def test_index_queries_are_read_and_written_8_bytes_at_a_time_or_16_on_amd(arch: str, scale: str) -> None:
    integers = ("x_row", "x_head", "heads", "table")
    signature = {
        "x": "*bf16", "out": "*bf16", "freqs": "*fp32", "positions": "*i64", **dict.fromkeys(integers, "i32"),
    }  # fmt: skip
    cut = fake_quant.AMD_CUT if arch.startswith("gfx") else fake_quant.CUT
    constants = fp4_rounding.launch_constants(cut, 128, 64, 8, False, scale)
    kernel = compile_kernel(
        fp4_rounding.fake_quant_kernel, arch, signature, constants, cut_options(cut), ("x", "out")
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 64
    assert kernel.shared <= 2048
    assert kernel.count(SHARE_LOAD) >= 1
    assert kernel.count(SHARE_STORE) == 1
    if arch.startswith("sm_"):
        assert kernel.assembly.count("fma.rn.f32 ") == 0 or scale == "e4m3_16", "no product is fused into a sum"

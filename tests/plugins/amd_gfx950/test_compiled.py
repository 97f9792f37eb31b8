"""The kernels built for gfx950: registers, spills, waves and the shape of the machine code."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops.selection.device import Device
from dspark_ops_amd_gfx950.argmax import TILES
from dspark_ops_triton.blocks.row_argmax import launch_constants, launch_options, row_argmax_kernel

ELEMENTS = {"fp32": 4, "bf16": 8, "fp16": 8}
WAVE = 64
SIMDS = 4
REGISTERS_PER_SIMD_LANE = 512
VOCAB = 129280


def _argmax(dtype: str) -> CompiledKernel:
    signature = {"x": f"*{dtype}", "out": "*i64", "state": "*i64", "row_stride": "i32"}
    constants = launch_constants(TILES, VOCAB, ELEMENTS[dtype])
    aligned = ("x", "out", "state")
    return compile_kernel(row_argmax_kernel, "gfx950", signature, constants, launch_options(TILES), aligned)


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_argmax_loads_16_bytes_per_lane_without_spills_or_scratch(dtype: str) -> None:
    kernel = _argmax(dtype)
    assert kernel.spilled == 0
    assert kernel.shared <= 64
    loads = TILES.block // (WAVE * TILES.warps * ELEMENTS[dtype])
    wide = kernel.count(r"\b(global|buffer)_load_dwordx4")
    assert wide >= loads
    assert kernel.count(r"\b(global|buffer|flat|scratch)_load") == wide


def test_argmax_is_built_for_waves_of_64_lanes() -> None:
    assembly = _argmax("fp32").assembly
    assert ".wavefront_size: 64" in assembly
    assert f".max_flat_workgroup_size: {WAVE * TILES.warps}" in assembly
    assert "gfx950" in assembly


def test_a_compute_unit_holds_as_many_programs_as_the_tiles_count_on() -> None:
    waves_per_simd = REGISTERS_PER_SIMD_LANE // _argmax("fp32").registers
    assert waves_per_simd * SIMDS // TILES.warps >= TILES.programs_per_unit


@pytest.mark.parametrize("product", ["MI350X", "MI355X"])
def test_the_rows_of_one_verify_step_have_a_compute_unit_per_program(product: str) -> None:
    units = Device.simulate(product).units
    splits = TILES.splits(6, VOCAB, units)
    assert splits == 32  # one tile per program
    assert 6 * splits <= units


def test_programs_of_a_row_meet_by_one_maximum_one_count_and_one_exchange() -> None:
    kernel = _argmax("fp32")
    counts = [kernel.count(rf"\bglobal_atomic_{what}") for what in ("smax_x2", "add_x2", "swap_x2")]
    assert counts == [1, 1, 1]
    # What other compute units wrote is seen, and what this one wrote is visible: a write-back and an invalidate.
    assert kernel.count(r"\bbuffer_wbl2") >= 1
    assert kernel.count(r"\bbuffer_inv") >= 1

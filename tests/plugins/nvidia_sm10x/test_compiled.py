"""The kernels built for sm_100 and sm_103: registers, spills, occupancy and the shape of the machine code."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops.selection.device import Device
from dspark_ops_nvidia_sm10x.argmax import TILES
from dspark_ops_triton.blocks.row_argmax import launch_constants, launch_options, row_argmax_kernel

ELEMENTS = {"fp32": 4, "bf16": 8, "fp16": 8}
REGISTERS_PER_UNIT = 65536
VOCAB = 129280


def _argmax(arch: str, dtype: str) -> CompiledKernel:
    signature = {"x": f"*{dtype}", "out": "*i64", "state": "*i64", "row_stride": "i32"}
    constants = launch_constants(TILES, VOCAB, ELEMENTS[dtype])
    aligned = ("x", "out", "state")
    return compile_kernel(row_argmax_kernel, arch, signature, constants, launch_options(TILES), aligned)


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("arch", ["sm_100", "sm_103"])
def test_argmax_loads_16_bytes_at_a_time_without_spills(arch: str, dtype: str) -> None:
    kernel = _argmax(arch, dtype)
    assert kernel.spilled == 0
    assert kernel.count(r"\b(LDL|STL)\b") == 0
    assert kernel.shared <= 64
    loads = TILES.block // (32 * TILES.warps * ELEMENTS[dtype])
    assert kernel.count(r"\bLDG\.E\.128") == 2 * loads  # a first tile, and the body of the loop over more
    assert kernel.count(r"\bLDG\.E") == 2 * loads


@pytest.mark.parametrize("arch", ["sm_100", "sm_103"])
def test_a_multiprocessor_holds_as_many_programs_as_the_tiles_count_on(arch: str) -> None:
    threads = 32 * TILES.warps
    assert REGISTERS_PER_UNIT // (threads * _argmax(arch, "fp32").registers) >= TILES.programs_per_unit


@pytest.mark.parametrize("product", ["B200", "B300", "GB300"])
def test_the_rows_of_one_verify_step_are_all_in_flight_at_once(product: str) -> None:
    units = Device.simulate(product).units
    splits = TILES.splits(6, VOCAB, units)
    assert splits == 64  # one tile per program
    assert units < 6 * splits <= units * TILES.programs_per_unit


@pytest.mark.parametrize("arch", ["sm_100", "sm_103"])
def test_programs_of_a_row_meet_by_one_maximum_one_count_and_one_exchange(arch: str) -> None:
    kernel = _argmax(arch, "fp32")
    counts = [kernel.count(rf"\b(REDG|ATOMG)\.E\.{what}") for what in (r"MAX\.S?64", r"ADD\.64", r"EXCH\.64")]
    assert counts == [1, 1, 1]

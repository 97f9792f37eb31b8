"""The kernels around the experts built for every architecture that is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import activation, moe_gate, moe_pack
from dspark_ops_triton.blocks import clamped_silu
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.blocks.launching import row_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]


def _gate(arch: str, experts: int, top_k: int, logits: str = "fp32", optional: bool = True) -> CompiledKernel:
    signature = {
        "logits": f"*{logits}", "bias": "*fp32", "bias_alt": "*fp32", "input_ids": "*i64", "num_valid": "*i32",
        "weights": "*fp32", "ids": "*i32", "packed": "*i32", "row_stride": "i32", "routed_scaling": "fp32",
        "renorm_eps": "fp32", "pad_id": "i32", "alt_token_id": "i32",
    }  # fmt: skip
    amd = arch.startswith("gfx")
    tiles = replace(moe_gate.TILES, pdl=not amd)
    constants = {**moe_gate.launch_constants(tiles, experts, top_k, optional, optional, True, amd), "column_stride": 1}
    aligned = ("logits", "weights", "ids", "packed")
    return compile_kernel(moe_gate.gate_kernel, arch, signature, constants, row_options(tiles), aligned)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_gate_keeps_a_row_in_registers_and_its_warps_meet_rarely(arch: str) -> None:
    kernel = _gate(arch, 384, 6)
    assert kernel.spilled == 0
    assert kernel.registers <= 64
    assert kernel.shared <= 4096
    # barriers do not grow with the choices: the rounds of a choice stay inside a warp
    assert kernel.count(r"\bBAR\.SYNC|\bs_barrier") <= 20
    if arch.startswith("sm_"):
        assert kernel.count(r"REDUX\.(MAX|MIN)\.S32") >= 3 * 6, "a key, a column and a score of each choice"


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_the_largest_gate_of_the_region_does_not_spill(arch: str) -> None:
    kernel = _gate(arch, 512, 16, logits="bf16", optional=False)
    assert kernel.spilled == 0
    assert kernel.registers <= 128


@pytest.mark.parametrize("arch", ARCHES)
def test_the_activation_loads_8_bytes_at_a_time_or_16_on_amd(arch: str) -> None:
    amd = arch.startswith("gfx")
    cut = activation.AMD_CUT if amd else activation.CUT
    signature = {"gate_up": "*bf16", "out": "*bf16", "row_stride": "i32", "limit": "fp32"}
    constants = clamped_silu.launch_constants(cut, 576, True, 8)
    kernel = compile_kernel(
        clamped_silu.silu_mul_clamp_kernel, arch, signature, constants, cut_options(cut), ("gate_up", "out")
    )
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 96
    assert kernel.count(r"\b(global|buffer)_load_dwordx4" if amd else r"\bLDG\.E\.64") == 2
    assert kernel.count(r"\b(global|buffer)_store_dwordx4" if amd else r"\bSTG\.E\.64") == 1


@pytest.mark.parametrize("arch", ARCHES)
def test_the_packing_is_small(arch: str) -> None:
    signature = {"ids": "*i64", "weights": "*fp32", "out": "*i32", "count": "i64"}
    constants, options = moe_pack.launch_constants(moe_pack.CUT), cut_options(moe_pack.CUT)
    kernel = compile_kernel(moe_pack.pack_kernel, arch, signature, constants, options)
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 64

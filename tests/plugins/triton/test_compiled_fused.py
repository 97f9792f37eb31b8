"""The kernels that end in a quantisation built for every architecture that is claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import activation_grid, index_query, mhc_post_grid
from dspark_ops_triton.blocks import index_query as packing
from dspark_ops_triton.blocks import post_combine, swiglu
from dspark_ops_triton.blocks.copy_tiles import shared_options
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
WIDE_LOAD = {"sm": r"\bLDG\.E\.(ENL2\.256|128)", "gf": r"\b(global|buffer)_load_dwordx4"}
#: Four 16-bit values of a thread on NVIDIA, eight on AMD.
SHARE_LOAD = {"sm": r"\bLDG\.E\.64", "gf": r"\b(global|buffer)_load_dwordx4"}
SHARE_STORE = {"sm": r"\bSTG\.E\.64", "gf": r"\b(global|buffer)_store_dwordx4"}
BARRIER = r"\b(BAR\.SYNC|s_barrier)"


def _fused(kernel: CompiledKernel) -> int:
    return kernel.assembly.count("fma.rn.f32 ") + 2 * kernel.assembly.count("fma.rn.f32x2")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("codes", [True, False])
def test_the_activation_reads_each_half_once_and_its_groups_stay_in_a_warp(arch: str, codes: bool) -> None:
    cut = activation_grid.AMD_CUT if arch.startswith("gfx") else activation_grid.CUT
    signature = {
        "gate_up": "*bf16", "y": "*bf16", "grid": "*u8" if codes else "*bf16", "scales": "*u8" if codes else "*bf16",
        "row_stride": "i32", "limit": "fp32",
    }  # fmt: skip
    constants = swiglu.launch_constants(cut, 576, True, 8, codes, arch.startswith("sm_"))
    kernel = compile_kernel(
        swiglu.swiglu_grid_kernel, arch, signature, constants, cut_options(cut), ("gate_up", "y", "grid", "scales")
    )
    assert kernel.spilled == 0
    assert kernel.registers <= 64
    assert kernel.shared == 0
    assert kernel.count(SHARE_LOAD[arch[:2]]) == 2
    assert kernel.count(SHARE_STORE[arch[:2]]) == (1 if codes else 2)
    assert kernel.count(BARRIER) == 0, "one warp meets nobody"


@pytest.mark.parametrize(("arch", "hidden"), [*((arch, 5120) for arch in ARCHES), ("sm_90", 8192), ("gfx950", 8192)])
def test_the_stream_update_with_its_grid_keeps_a_token_in_registers(arch: str, hidden: int) -> None:
    signature = {
        "x": "*bf16", "residual": "*bf16", "post": "*fp32", "comb": "*fp32", "pre": "*fp32", "weight": "*bf16",
        "new_residual": "*bf16", "combined": "*bf16", "normed": "*bf16", "grid": "*bf16", "eps": "fp32",
    }  # fmt: skip
    amd = arch.startswith("gfx")
    tiles = replace(mhc_post_grid.TILES, pdl=not amd)
    constants = post_combine.launch_constants(tiles, 4, hidden, not amd, True)
    aligned = ("x", "residual", "weight", "new_residual", "combined", "normed", "grid")
    kernel = compile_kernel(
        post_combine.post_combine_norm_kernel, arch, signature, constants, shared_options(tiles, amd, 1), aligned
    )
    assert kernel.spilled == 0
    assert kernel.registers <= (128 if arch.startswith("sm_") else 256)
    assert kernel.shared <= 128
    assert kernel.count(WIDE_LOAD[arch[:2]]) >= 6 * constants["BLOCK"] // 4096
    if arch.startswith("sm_"):
        long, short = constants["BLOCK"] * constants["BLOCKS"] // 512, constants["MORE"] // 512
        assert _fused(kernel) == 17 * long + 16 * short, "those of the update, and squares"


def _with_variants(first: Any, *others: Any) -> list[tuple[str, Any]]:
    return [(arch, first) for arch in ARCHES] + [(arch, other) for arch in ("sm_90", "gfx950") for other in others]


@pytest.mark.parametrize(("arch", "weighted"), _with_variants(True, False))
def test_queries_are_read_and_packed_4_lanes_at_a_time_or_8_on_amd(arch: str, weighted: bool) -> None:
    cut = index_query.AMD_CUT if arch.startswith("gfx") else index_query.CUT
    integers = ("q_row", "q_head", "table", "parts", "tokens")
    signature = {
        "q": "*bf16", "q_fp4": "*u8", "q_scale": "*u8", "freqs": "*fp32", "positions": "*i64",
        **({"partials": "*fp32", "weights": "*bf16"} if weighted else {}), **dict.fromkeys(integers, "i32"),
        "weight_scale": "fp32",
    }  # fmt: skip
    constants = packing.launch_constants(cut, 32, 128, 64, 8)
    if not weighted:
        constants |= {"partials": None, "weights": None}
    aligned = ("q", "q_fp4", "q_scale")
    kernel = compile_kernel(packing.index_query_kernel, arch, signature, constants, cut_options(cut), aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 64
    assert kernel.shared <= 2048
    assert kernel.count(SHARE_LOAD[arch[:2]]) >= 1
    assert kernel.count(r"\bSTG\.E\.U16 |\b(global|buffer)_store_dword ") >= 1, "four codes at once, or eight"
    if arch.startswith("sm_"):
        assert _fused(kernel) == 0, "no product is fused into a sum"

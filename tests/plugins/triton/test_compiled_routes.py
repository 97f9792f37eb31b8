"""Routing by table, padding, route reduce and n-gram gather, built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import engram, moe_hash, moe_reduce
from dspark_ops_triton.blocks import padded_choices, route_reduce, table_gather
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
#: One of each vendor, for shapes beside the model's: those that have the fewest registers or the least memory to spare.
TIGHT = ["sm_103", "gfx942"]


@pytest.mark.parametrize(("arch", "top_k"), [*((arch, 6) for arch in ARCHES), ("gfx942", 64)])
def test_a_row_of_the_hash_gate_is_one_warp_without_shared_memory(arch: str, top_k: int) -> None:
    signature = {
        **dict.fromkeys(("table", "num_valid", "ids"), "*i32"), "logits": "*fp32", "input_ids": "*i64",
        "weights": "*fp32", **dict.fromkeys(("row_stride", "column_stride", "tokens", "top_k", "pad_id"), "i32"),
        "renorm_eps": "fp32",
    }  # fmt: skip
    constants, options = moe_hash.hash_constants(moe_hash.HASH_CUT, top_k, True), cut_options(moe_hash.HASH_CUT)
    kernel = compile_kernel(moe_hash.hash_kernel, arch, signature, constants, options)
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 64


@pytest.mark.parametrize("arch", ARCHES)
def test_the_padding_uses_registers_only(arch: str) -> None:
    signature = {
        "ids": "*i64", "weights": "*fp32", "num_valid": "*i32",
        **dict.fromkeys(("rows", "top_k", "id_stride", "weight_stride", "pad_id"), "i32"),
    }  # fmt: skip
    constants, options = padded_choices.launch_constants(moe_hash.FILL_CUT, 6), cut_options(moe_hash.FILL_CUT)
    kernel = compile_kernel(padded_choices.fill_kernel, arch, signature, constants, options)
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 64


@pytest.mark.parametrize("arch", ARCHES)
def test_the_route_reduce_loads_8_bytes_at_a_time_or_16_on_amd(arch: str) -> None:
    signature = {
        **dict.fromkeys(("route_out", "shared", "out"), "*bf16"),
        **dict.fromkeys(("topk_ids", "expert_mask"), "*i32"),
        "topk_weights": "*fp32", "experts": "i32", "scale": "fp32",
    }  # fmt: skip
    amd = arch.startswith("gfx")
    cut = moe_reduce.AMD_CUT if amd else moe_reduce.CUT
    constants = route_reduce.launch_constants(cut, 6, 5120, True, True, True, False)
    options = cut_options(cut)
    kernel = compile_kernel(
        route_reduce.reduce_kernel, arch, signature, constants, options, ("route_out", "shared", "out")
    )
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 96
    assert kernel.count(r"\b(global|buffer)_load_dwordx4" if amd else r"\bLDG\.E\.64") >= 7


@pytest.mark.parametrize("arch", TIGHT)
def test_the_widest_route_reduce_does_not_spill(arch: str) -> None:
    signature = {
        **dict.fromkeys(("route_out", "shared", "out", "topk_weights"), "*fp32"),
        **dict.fromkeys(("topk_ids", "expert_mask"), "*i32"), "experts": "i32", "scale": "fp32",
    }  # fmt: skip
    amd = arch.startswith("gfx")
    cut = moe_reduce.AMD_CUT if amd else moe_reduce.CUT
    constants = route_reduce.launch_constants(cut, 16, 7168, True, True, True, True)
    kernel = compile_kernel(route_reduce.reduce_kernel, arch, signature, constants, cut_options(cut))
    assert kernel.spilled == 0
    assert kernel.registers <= 160


@pytest.mark.parametrize(
    ("arch", "columns"), [*((arch, 256) for arch in ARCHES), *((arch, size) for arch in TIGHT for size in (32, 8192))]
)
def test_the_gather_does_not_spill(arch: str, columns: int) -> None:
    signature = {
        **dict.fromkeys(("table", "scales"), "*u8"), "ids": "*i64", "out": "*bf16",
        **dict.fromkeys(("count", "each", "token_stride", "id_stride", "low", "high"), "i32"),
    }  # fmt: skip
    amd = arch.startswith("gfx")
    cut = engram.AMD_CUT if amd else engram.CUT
    constants, options = table_gather.launch_constants(cut, columns), cut_options(cut)
    kernel = compile_kernel(table_gather.gather_kernel, arch, signature, constants, options, ("table", "out"))
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 16384
    if columns == 256:
        assert kernel.count(r"\b(global|buffer)_load_dwordx4" if amd else r"\bLDG\.E\.64") >= 1

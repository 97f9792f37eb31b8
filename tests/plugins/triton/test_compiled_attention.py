"""The kernels around sparse attention built for every architecture that is claimed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import attention, kv_store, rope
from dspark_ops_triton.blocks import sparse_decode, sparse_whole, turned_copy
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.blocks.launching import row_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
#: Where variants of a kernel are built, of which one is built for all.
SOME = ("sm_90", "gfx950")
WIDE_LOAD = {"sm": r"\bLDG\.E\.(ENL2\.256|128)", "gf": r"\b(global|buffer)_load_dwordx4"}
WIDE_STORE = {"sm": r"\bSTG\.E\.128", "gf": r"\b(global|buffer)_store_dwordx4"}
MATRIX = {"sm": r"\bHMMA\.16816\.F32\.BF16", "gf": r"\bv_mfma_f32_16x16x\d+_bf16"}


def _with_variants(first: Any, *others: Any) -> list[tuple[str, Any]]:
    return [(arch, first) for arch in ARCHES] + [(arch, other) for arch in SOME for other in others]


def _fused(kernel: CompiledKernel) -> int:
    return kernel.assembly.count("fma.rn.f32 ") + 2 * kernel.assembly.count("fma.rn.f32x2")


@pytest.mark.parametrize(("arch", "fused"), _with_variants(True, False))
def test_heads_are_copied_16_bytes_at_a_time_and_fused_only_where_the_contract_says_so(arch: str, fused: bool) -> None:
    integers = ("q_row", "q_head", "out_row", "out_head", "heads")
    signature = {"q": "*bf16", "out": "*bf16", "freqs": "*fp32", "positions": "*i64", **dict.fromkeys(integers, "i32")}
    cut = rope.AMD_CUT if arch.startswith("gfx") else rope.CUT
    constants = {**turned_copy.launch_constants(cut, 512, 64, 8, fused, False), "q_lane": 1, "out_lane": 1}
    kernel = compile_kernel(turned_copy.turned_copy_kernel, arch, signature, constants, cut_options(cut), ("q", "out"))
    assert kernel.spilled == 0
    assert kernel.registers <= 48
    assert kernel.shared <= 1024
    assert kernel.count(WIDE_LOAD[arch[:2]]) >= 1
    assert kernel.count(WIDE_STORE[arch[:2]]) == 1
    if arch.startswith("sm_"):
        assert _fused(kernel) == (8 if fused else 0), "one per lane of a thread, or none"


@pytest.mark.parametrize("arch", ["sm_103", "gfx950"])
def test_heads_with_spaced_lanes_build_without_spills(arch: str) -> None:
    integers = ("q_row", "q_head", "q_lane", "out_row", "out_head", "out_lane", "heads")
    signature = {"q": "*bf16", "out": "*bf16", "freqs": "*fp32", **dict.fromkeys(integers, "i32")}
    cut = rope.AMD_CUT if arch.startswith("gfx") else rope.CUT
    constants = {**turned_copy.launch_constants(cut, 512, 64, 1, False, True), "positions": None}
    built = compile_kernel(turned_copy.turned_copy_kernel, arch, signature, constants, cut_options(cut))
    assert built.spilled == 0


@pytest.mark.parametrize("arch", ARCHES)
def test_a_latent_row_is_stored_from_registers(arch: str) -> None:
    integers = ("kv_stride", "slots", "page_shift", "page_units")
    signature = {
        "kv": "*bf16", "weight": "*bf16", "freqs": "*fp32", "positions": "*i64", "out_loc": "*i32",
        "cache": "*u8", **dict.fromkeys(integers, "i32"), "eps": "fp32",
    }  # fmt: skip
    tiles = replace(kv_store.TILES, pdl=arch.startswith("sm_"))
    constants, aligned = {"UNIT": 8, "PDL": tiles.pdl}, ("kv", "weight", "cache")
    kernel = compile_kernel(kv_store.norm_rope_store_kernel, arch, signature, constants, row_options(tiles), aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 80
    assert kernel.shared <= 128
    if arch.startswith("sm_"):
        assert kernel.count(r"\bLDG\.E\.64") >= 2, "four lanes of a row and of the weight to a thread"
        assert kernel.count(r"\bF2FP\.SATFINITE\.E4M3") >= 2, "the hardware rounds to e4m3"
        steps = re.findall(r"\b(ACQBULK|LDG|PREEXIT|EXIT)\b", kernel.machine_code)
        early = ["LDG", "ACQBULK", "PREEXIT", "LDG", "LDG", "LDG"]
        assert steps[:6] == early, "it asks for the weight, waits, lets the next be set up, and asks for the rest"


def _part(arch: str) -> CompiledKernel:
    tiles = _decode_tiles(arch)
    pointers = {
        "q": "*bf16", "cache": "*u8", "indices": "*i32", "lengths": "*i32", "extra_cache": "*u8",
        "extra_indices": "*i32", "extra_lengths": "*i32", "sums": "*fp32", "statistics": "*fp32",
    }  # fmt: skip
    integers = (
        "heads", "width", "extra_width", "index_row", "extra_index_row", "slots", "extra_slots", "page_shift",
        "page_units", "extra_page_shift", "extra_page_units", "window_parts", "has_lengths", "has_extra_lengths",
    )  # fmt: skip
    signature = {**pointers, **dict.fromkeys(integers, "i32"), "scale": "fp32"}
    kernel = sparse_whole.whole_part_kernel if tiles.whole else sparse_decode.part_kernel
    return compile_kernel(
        kernel, arch, signature, sparse_decode.part_constants(tiles), sparse_decode.part_options(tiles),
        ("q", "cache", "extra_cache", "sums", "statistics"),
    )  # fmt: skip


def _decode_tiles(arch: str) -> sparse_decode.Tiles:
    return replace(attention.tiles_of(arch), pdl=arch.startswith("sm_"))


@pytest.mark.parametrize("arch", [arch for arch in ARCHES if arch.startswith("sm_")])
def test_a_part_of_the_decode_decodes_its_entries_once_and_leaves_room_for_another(arch: str) -> None:
    kernel = _part(arch)
    assert kernel.spilled == 0
    assert kernel.registers <= 128, "two programs of 256 threads to a multiprocessor"
    assert kernel.shared <= 98304
    assert kernel.count(MATRIX["sm"]) == 72, "8 groups of lanes and the rotated one, twice, 4 steps each"
    assert kernel.count(r"\bF2FP\.F16\.E4M3") == 64, "64 entries of 512 lanes, two lanes at a time, by 256 threads"
    assert kernel.count(WIDE_LOAD["sm"]) >= 8, "each thread reads 16 codes at once"


@pytest.mark.parametrize("arch", [arch for arch in ARCHES if arch.startswith("gfx")])
def test_a_part_of_the_decode_keeps_its_entries_in_registers_on_amd(arch: str) -> None:
    kernel = _part(arch)
    assert kernel.spilled == 0
    assert kernel.registers <= 512
    assert kernel.shared <= 16384
    assert kernel.count(MATRIX["gf"]) >= 64
    assert kernel.count(WIDE_LOAD["gf"]) >= 7, "each thread reads 16 codes of each group at once"


@pytest.mark.parametrize("arch", ARCHES)
def test_the_merge_of_the_decode_is_small(arch: str) -> None:
    tiles = _decode_tiles(arch)
    signature = {
        "sums": "*fp32", "statistics": "*fp32", "sink": "*fp32", "out": "*bf16", "lse": "*fp32", "count": "i32",
    }  # fmt: skip
    aligned = ("sums", "statistics", "out", "lse")
    constants, options = sparse_decode.merge_constants(tiles), sparse_decode.merge_options(tiles)
    kernel = compile_kernel(sparse_decode.merge_kernel, arch, signature, constants, options, aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 96
    assert kernel.shared <= 4096

"""Products of stored codes built for every architecture that is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import paged_logits as portable_logits
from dspark_ops_triton.blocks import grid_product, paged_logits
from dspark_ops_triton.blocks.tile_table import entry, read_table
from dspark_ops_triton.blocks.word_product import word_parts_kernel
from dspark_ops_triton.kernels_base import INTERPRETED
from dspark_ops_triton.main_projection import TILES, tiles_of

ARCHES = [name for name, _ in INTERPRETED]
MATRIX = {"sm": r"\bHMMA\.16816\.F32\.BF16", "gf": r"\bv_mfma_f32_16x16x\d+_bf16"}
ANY_MATRIX = r"\bHMMA|\bHGMMA|\bUTC\w*MMA|\bv_mfma"
#: All lines are built for one architecture of each vendor.
LINES = [(arch, 0) for arch in ARCHES] + [(arch, line) for arch in ("sm_90", "gfx950") for line in (1, 2)]
SIZES = {"N": 5120, "K": 15360}


@pytest.mark.parametrize(("arch", "line"), LINES)
def test_a_part_of_the_projection_sums_by_one_instruction_at_every_number_of_rows(arch: str, line: int) -> None:
    tiles = replace(tiles_of(arch)[line], **entry(read_table(), arch, "main_projection", SIZES), pdl=arch == "sm_90")
    signature = {
        "x": "*bf16", "weight": "*u8", "scales": "*u8", "parts": "*fp32", "rows": "i32", "columns": "i32",
    }  # fmt: skip
    kernel = compile_kernel(
        word_parts_kernel if tiles.words else grid_product.value_parts_kernel, arch, signature,
        grid_product.part_constants(tiles, 15360), grid_product.part_options(tiles), ("x", "weight", "scales", "parts"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 192
    assert kernel.shared <= (73728 if tiles.words else 49152)
    matrix = r"\bHGMMA\.64x\d+x16\.F32\.BF16" if tiles.words else MATRIX[arch[:2]]
    assert kernel.count(matrix) == kernel.count(ANY_MATRIX) > 0
    if arch.startswith("sm_"):
        assert kernel.count(r"\bLDGSTS\.E\..*128") >= 2 * TILES[line].stages, "codes and rows come 16 bytes at a time"
    if tiles.words:
        assert kernel.count(r"F2F") == 0, "no conversion per value"
        assert kernel.count(r"\bPRMT\b") <= 36, "two per word, 16 words per thread and tile"


@pytest.mark.parametrize("arch", ARCHES)
def test_the_sum_of_the_parts_reads_16_bytes_at_a_time(arch: str) -> None:
    tiles = replace(tiles_of(arch)[0], pdl=arch.startswith("sm_"))
    kernel = compile_kernel(
        grid_product.sum_parts_kernel, arch, {"parts": "*fp32", "out": "*bf16", "eights": "i32"},
        grid_product.sum_constants(tiles, 15360), grid_product.sum_options(tiles), ("parts", "out"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 64
    assert kernel.shared == 0
    wide = kernel.count(r"\bLDG\.E\.128|\b(global|buffer)_load_dwordx4")
    assert wide == kernel.count(r"\bLDG\.E|\b(global|buffer)_load") >= 4


@pytest.mark.parametrize(
    ("arch", "heads", "several"),
    [*((arch, heads, False) for arch in ARCHES for heads in (32, 128)), ("sm_90", 32, True), ("sm_103", 128, True)],
)
def test_logits_of_values_multiply_on_matrix_units_and_meet_no_local_memory(
    arch: str, heads: int, several: bool
) -> None:
    tiles = portable_logits.AMD_TILES if arch.startswith("gfx") else portable_logits.TILES
    pointers = {
        "q": "*u8", "q_scale": "*u8", "kv": "*u8", "kv_scale": "*u8", "block_tables": "*i32", "weights": "*bf16",
        "context_lens": "*i32", "out": "*fp32",
    }  # fmt: skip
    integers = ("next_n", "heads", "lanes_of_heads", "table_width", "columns", "tiles")
    kernel = compile_kernel(
        paged_logits.logits_kernel, arch, {**pointers, **dict.fromkeys(integers, "i32"), "weight_scale": "fp32"},
        paged_logits.launch_constants(tiles, heads, several), paged_logits.launch_options(tiles),
        (*pointers, "columns"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= (128 if heads == 32 else 224)
    assert kernel.shared <= 40960
    assert kernel.count(ANY_MATRIX) > 0
    assert kernel.count(r"\bLDG\.E\.128|\b(global|buffer)_load_dwordx4") >= 1, "16 bytes of a key's group at once"

"""Products of stored codes built for gfx950: the scaled matrix instruction, loads, registers and spills."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_amd_gfx950.paged_logits import TILES as LOGIT_TILES
from dspark_ops_amd_gfx950.projection import TILES
from dspark_ops_triton.blocks import grid_product, paged_logits

SCALED = r"\bv_mfma_scale_f32_16x16x128_f8f6f4"
ANY_MATRIX = r"\bv_mfma"
LDS = 160 * 1024


@pytest.mark.parametrize("tiles", TILES, ids=lambda tiles: tiles.rows)
def test_a_part_of_the_projection_multiplies_codes_with_their_scales(tiles: grid_product.Tiles) -> None:
    signature = {
        "x": "*u8", "x_scales": "*u8", "weight": "*u8", "scales": "*u8", "parts": "*fp32", "rows": "i32",
        "columns": "i32",
    }  # fmt: skip
    kernel = compile_kernel(
        grid_product.code_parts_kernel, "gfx950", signature, grid_product.part_constants(tiles, 15360),
        grid_product.part_options(tiles), ("x", "x_scales", "weight", "scales", "parts"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert 4 * kernel.shared <= LDS, "four programs to a compute unit"
    # The same instruction for every tile: the order in which products of K are added does not depend on the rows.
    assert kernel.count(SCALED) == kernel.count(ANY_MATRIX) > 0
    wide = r"\b(global|buffer)_load(_lds)?_dwordx4|\bbuffer_load_dwordx4 .*lds"
    assert kernel.count(wide) >= 2, "codes come 16 bytes a lane"


@pytest.mark.parametrize("heads", [16, 32, 128])
def test_logits_multiply_fp4_codes_with_their_scales(heads: int) -> None:
    pointers = {
        "q": "*u8", "q_scale": "*u8", "kv": "*u8", "kv_scale": "*u8", "block_tables": "*i32", "weights": "*bf16",
        "context_lens": "*i32", "out": "*fp32",
    }  # fmt: skip
    integers = ("next_n", "heads", "lanes_of_heads", "table_width", "columns", "tiles")
    kernel = compile_kernel(
        paged_logits.logits_kernel, "gfx950", {**pointers, **dict.fromkeys(integers, "i32"), "weight_scale": "fp32"},
        paged_logits.launch_constants(LOGIT_TILES, heads), paged_logits.launch_options(LOGIT_TILES),
        (*pointers, "columns"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 192
    assert kernel.shared <= 16384
    assert kernel.count(SCALED) == kernel.count(ANY_MATRIX) > 0
    assert kernel.count(r"\b(global|buffer)_load_dwordx4") >= 2, "16 bytes of a key's group at once"

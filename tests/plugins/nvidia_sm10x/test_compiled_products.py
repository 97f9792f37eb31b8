"""Products of stored codes built for sm_100 and sm_103: the scaled matrix instruction, loads, registers and spills."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_nvidia_sm10x.paged_logits import TILES as LOGIT_TILES
from dspark_ops_nvidia_sm10x.projection import TILES
from dspark_ops_triton.blocks import grid_product, paged_logits

#: Variants are built for one of the two.
BOTH = ("sm_100", "sm_103")
SHARED_MEMORY = 227 * 1024


def scaled_products(kernel: CompiledKernel, kind: str) -> int:
    """Return how many matrix instructions of a kind there are, after checking that there is no other one."""
    lines = [line for line in kernel.assembly.splitlines() if "tcgen05.mma" in line or "mma.sync" in line]
    assert all(f"kind::{kind}.block_scale" in line for line in lines), lines
    return len(lines)


@pytest.mark.parametrize(("arch", "line"), [*((arch, 0) for arch in BOTH), ("sm_103", 1), ("sm_103", 2)])
def test_a_part_of_the_projection_multiplies_codes_with_their_scales(arch: str, line: int) -> None:
    tiles = TILES[line]
    signature = {
        "x": "*u8", "x_scales": "*u8", "weight": "*u8", "scales": "*u8", "parts": "*fp32", "rows": "i32",
        "columns": "i32",
    }  # fmt: skip
    kernel = compile_kernel(
        grid_product.code_parts_kernel, arch, signature, grid_product.part_constants(tiles, 15360),
        grid_product.part_options(tiles), ("x", "x_scales", "weight", "scales", "parts"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 168
    assert 2 * kernel.shared <= SHARED_MEMORY, "two programs to a multiprocessor"
    assert scaled_products(kernel, "mxf8f6f4") > 0
    assert kernel.count(r"\bUTC\w*MMA") > 0
    # 16 KB of weight are 8 loads of 128 threads: while a tile is multiplied, the next ones come.
    assert kernel.count(r"\bLDGSTS\.E\..*128") >= 8 * (tiles.stages - 1)


@pytest.mark.parametrize(("arch", "heads"), [*((arch, 32) for arch in BOTH), ("sm_103", 16), ("sm_103", 64)])
def test_logits_multiply_fp4_codes_with_their_scales(arch: str, heads: int) -> None:
    pointers = {
        "q": "*u8", "q_scale": "*u8", "kv": "*u8", "kv_scale": "*u8", "block_tables": "*i32", "weights": "*bf16",
        "context_lens": "*i32", "out": "*fp32",
    }  # fmt: skip
    integers = ("next_n", "heads", "lanes_of_heads", "table_width", "columns", "tiles")
    kernel = compile_kernel(
        paged_logits.logits_kernel, arch, {**pointers, **dict.fromkeys(integers, "i32"), "weight_scale": "fp32"},
        paged_logits.launch_constants(LOGIT_TILES, heads), paged_logits.launch_options(LOGIT_TILES),
        (*pointers, "columns"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 160
    assert kernel.shared <= 32768
    assert scaled_products(kernel, "mxf4") > 0
    assert kernel.count(r"\bLDG\.E\.128") >= 4, "16 bytes of a key's group at once"

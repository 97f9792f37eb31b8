"""Kernels over the page layouts of V4.1 built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import attention
from dspark_ops_triton.blocks import kv_rows_v41, sparse_decode, sparse_whole
from dspark_ops_triton.blocks.launching import RowTiles, row_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
WIDE_LOAD = r"\bLDG\.E\.(ENL2\.256|128)|\b(global|buffer)_load_dwordx4"


@pytest.mark.parametrize(
    ("arch", "layout"),
    [(arch, name) for arch in ARCHES for name in ("kv_v41", "kv_v41_fp4")] + [("sm_90", "kv_v41_new")],
)
def test_one_warp_stores_a_latent_row(arch: str, layout: str) -> None:
    integers = ("kv_stride", "slots", "page_shift", "page_units")
    signature = {
        "kv": "*bf16", "weight": "*bf16", "freqs": "*fp32", "positions": "*i64", "out_loc": "*i32",
        "cache": "*u8", **dict.fromkeys(integers, "i32"), "eps": "fp32",
    }  # fmt: skip
    pdl = arch.startswith("sm_")
    constants, options = kv_rows_v41.launch_constants(layout, 8, pdl), row_options(RowTiles(kv_rows_v41.WARPS, pdl))
    aligned = ("kv", "weight", "cache")
    kernel = compile_kernel(kv_rows_v41.norm_rope_store_v41_kernel, arch, signature, constants, options, aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 80
    assert kernel.shared <= 128
    assert kernel.count(WIDE_LOAD) >= 2
    assert kernel.count(r"\bSTG\.E|\b(global|buffer)_store") == 2, "an entry's codes at once, and its scales"


#: Both caches of one layout are built for one architecture of each vendor; their decoding is in the mixture, too.
MIXED = [(arch, "kv_v41", "kv_v41_fp4") for arch in ARCHES]
ALIKE = [(arch, name, name) for arch in ("sm_90", "gfx950") for name in ("kv_v41", "kv_v41_fp4", "kv_v41_new")]


@pytest.mark.parametrize(("arch", "layout", "extra"), MIXED + ALIKE)
def test_a_part_of_the_decode_builds_for_every_layout_without_spills(arch: str, layout: str, extra: str) -> None:
    tiles = attention.tiles_of(arch)
    pointers = {
        "q": "*bf16", "cache": "*u8", "indices": "*i32", "lengths": "*i32", "extra_cache": "*u8",
        "extra_indices": "*i32", "extra_lengths": "*i32", "sums": "*fp32", "statistics": "*fp32",
    }  # fmt: skip
    integers = (
        "heads", "width", "extra_width", "index_row", "extra_index_row", "slots", "extra_slots", "page_shift",
        "page_units", "extra_page_shift", "extra_page_units", "window_parts", "has_lengths", "has_extra_lengths",
    )  # fmt: skip
    part = sparse_whole.whole_part_kernel if tiles.whole else sparse_decode.part_kernel
    kernel = compile_kernel(
        part, arch, {**pointers, **dict.fromkeys(integers, "i32"), "scale": "fp32"},
        sparse_decode.part_constants(tiles, layout, extra), sparse_decode.part_options(tiles),
        ("q", "cache", "extra_cache", "sums", "statistics"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= (224 if arch.startswith("sm_") else 512)
    assert kernel.shared <= (98304 if arch.startswith("sm_") else 65536)
    assert kernel.count(r"\bHMMA\.16816\.F32\.BF16|\bv_mfma_f32_16x16x\d+_bf16") >= 64
    if layout != "kv_v41_fp4":
        assert kernel.count(WIDE_LOAD) >= 8, "each thread reads 16 codes of each group of the window at once"

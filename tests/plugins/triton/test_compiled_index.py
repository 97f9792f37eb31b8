"""Index scores, finished pages, ragged schedules and the argmax over ranks, built for every claimed architecture."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import finish_pages, index_scores, varctx, vocab_pairs
from dspark_ops_triton.blocks import rank_pairs, varctx_records
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
TIGHT = ["sm_103", "gfx942"]


@pytest.mark.parametrize(("arch", "chosen"), [*((arch, 512) for arch in ARCHES), *((arch, 2048) for arch in TIGHT)])
def test_finished_pages_do_not_spill(arch: str, chosen: int) -> None:
    signature = {
        **dict.fromkeys(("lengths", "page_table", "page_indices"), "*i32"), "scores": "*fp32",
        "indices": "*i64", "raw_indices": "*i64",
        **dict.fromkeys(("rows", "width", "chosen", "columns", "page_count", "page_size"), "i32"),
        **{f"{name}_stride": "i32" for name in ("score", "index", "table", "page", "raw")},
    }  # fmt: skip
    cut = finish_pages.CUT
    constants, options = finish_pages.launch_constants(cut, chosen, True, True), cut_options(cut)
    kernel = compile_kernel(finish_pages.finish_kernel, arch, signature, constants, options)
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 16384


@pytest.mark.parametrize(
    ("arch", "requests"), [*((arch, 64) for arch in ARCHES), *((arch, varctx_records.MOST_REQUESTS) for arch in TIGHT)]
)
def test_the_ragged_schedule_does_not_spill(arch: str, requests: int) -> None:
    signature = {
        **dict.fromkeys(("context_lens", "safe_out", "records"), "*i32"),
        **dict.fromkeys(("requests", "block_k", "programs", "most", "next_n"), "i32"),
    }
    cut = varctx_records.widened(varctx.CUT, requests)
    constants, options = varctx_records.launch_constants(cut, requests), cut_options(cut)
    kernel = compile_kernel(varctx_records.varctx_kernel, arch, signature, constants, options)
    assert kernel.spilled == 0
    assert kernel.registers <= 255
    assert kernel.shared <= 32768


@pytest.mark.parametrize("arch", ARCHES)
def test_the_argmax_over_ranks_uses_registers_only(arch: str) -> None:
    signature = {"pairs": "*i64", "out": "*i64", "parts": "i32", "rows": "i32"}
    constants, options = rank_pairs.launch_constants(vocab_pairs.CUT), cut_options(vocab_pairs.CUT)
    kernel = compile_kernel(rank_pairs.pairs_kernel, arch, signature, constants, options)
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 64


@pytest.mark.parametrize(
    ("arch", "heads", "several"),
    [*((arch, 32, False) for arch in ARCHES), *((arch, 64, False) for arch in TIGHT), ("sm_90", 32, True)],
)
def test_index_scores_run_on_matrix_units(arch: str, heads: int, several: bool) -> None:
    tiles = index_scores.AMD_TILES if arch.startswith("gfx") else index_scores.TILES
    signature = {
        "q": "*bf16", "weights": "*bf16", "cache": "*u8", "page_table": "*i32", "lengths": "*i32", "out": "*fp32",
        **dict.fromkeys(("heads", "width", "table_stride", "page_shift", "tiles"), "i32"),
    }  # fmt: skip
    constants = index_scores.launch_constants(tiles, heads, "bf16_steps", 64, several)
    options = index_scores.launch_options(tiles)
    kernel = compile_kernel(index_scores.scores_kernel, arch, signature, constants, options, ("q", "cache"))
    assert kernel.spilled == 0
    assert kernel.registers <= 255
    assert kernel.shared <= 65536
    matrix = {"sm_90": r"\bHGMMA\b", "gfx942": r"\bv_mfma_f32_", "gfx950": r"\bv_mfma_f32_"}
    assert kernel.count(matrix.get(arch, r"\bUTCHMMA\b")) > 0

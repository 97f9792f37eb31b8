"""The kernels around a selection and the sort of routed pairs, built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import index_lengths, moe_sort
from dspark_ops_triton.blocks import candidate_counts, local_argmax, route_sort
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.kernels_base import INTERPRETED
from dspark_ops_triton.vocab_parallel import AMD_TILES, TILES

ARCHES = [name for name, _ in INTERPRETED]
#: One of each vendor, for the widest shapes: those that have the fewest registers or the least memory to spare.
TIGHT = ["sm_103", "gfx942"]


@pytest.mark.parametrize("arch", ARCHES)
def test_the_local_argmax_reads_16_bytes_at_a_time(arch: str) -> None:
    tiles = TILES if arch.startswith("sm_") else AMD_TILES
    signature = {
        "logits": "*fp32", "out": "*i64", "state": "*i64",
        **dict.fromkeys(("rows", "row_stride", "columns", "offset"), "i32"),
    }  # fmt: skip
    constants, options = local_argmax.launch_constants(tiles, 4), local_argmax.launch_options(tiles)
    kernel = compile_kernel(local_argmax.local_kernel, arch, signature, constants, options, ("logits", "out", "state"))
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 128


@pytest.mark.parametrize("arch", ARCHES)
def test_lengths_and_slots_use_registers_only(arch: str) -> None:
    signature = {
        **dict.fromkeys(("seq_lens", "block_lens", "compact_lens", "page_table"), "*i32"),
        **dict.fromkeys(("rows", "topk_blocks"), "i32"),
    }
    cut = index_lengths.LENGTHS_CUT
    lengths = compile_kernel(
        candidate_counts.lengths_kernel, arch, signature, candidate_counts.launch_constants(cut, 8, True),
        cut_options(cut),
    )  # fmt: skip
    signature = {
        "scores": "*fp32", "indices": "*i64", "page_table": "*i32", "page_indices": "*i32", "raw_indices": "*i64",
        **dict.fromkeys(("width", "chosen", "pages", "page_unit"), "i32"),
        **{f"{name}_stride": "i32" for name in ("score", "index", "table", "page", "raw")},
    }  # fmt: skip
    cut = index_lengths.PAGES_CUT
    pages = compile_kernel(
        index_lengths.pages_kernel, arch, signature, index_lengths.page_constants(cut, True, True), cut_options(cut)
    )
    for kernel in (lengths, pages):
        assert (kernel.spilled, kernel.shared) == (0, 0)
        assert kernel.registers <= 48


@pytest.mark.parametrize(
    ("arch", "rows", "top_k", "experts"),
    [*((arch, 24, 6, 384) for arch in ARCHES), *((arch, 64, 16, 1023) for arch in TIGHT)],
)
def test_the_sort_of_a_decode_step_does_not_spill(arch: str, rows: int, top_k: int, experts: int) -> None:
    signature = {
        **dict.fromkeys(("topk_ids", "held", "num_valid", "sorted_ids", "sorted_expert_ids", "num_valid_ids"), "*i32"),
        "buffer": "*i32", "topk_weights": "*fp32", "sorted_weights": "*fp32",
        **dict.fromkeys(("rows", "experts", "words", "length"), "i32"),
    }  # fmt: skip
    cut = moe_sort.AMD_CUT if arch.startswith("gfx") else moe_sort.CUT
    constants = route_sort.launch_constants(cut, rows, top_k, experts, 32, True, True, top_k == 16)
    options = cut_options(cut)
    outputs = ("sorted_ids", "sorted_expert_ids", "num_valid_ids", "buffer", "sorted_weights")
    kernel = compile_kernel(route_sort.sort_kernel, arch, signature, constants, options, outputs)
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 8192

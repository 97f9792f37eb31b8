"""The kernels around a selection, built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import index_lengths, vocab_parallel
from dspark_ops_triton.argmax import AMD_TILES, TILES
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]


@pytest.mark.parametrize("arch", ARCHES)
def test_the_local_argmax_reads_16_bytes_at_a_time(arch: str) -> None:
    tiles = TILES if arch.startswith("sm_") else AMD_TILES
    signature = {
        "logits": "*fp32", "out": "*i64", "state": "*i64",
        **dict.fromkeys(("rows", "row_stride", "columns", "offset"), "i32"),
    }  # fmt: skip
    constants, options = vocab_parallel.launch_constants(tiles, 4), vocab_parallel.launch_options(tiles)
    kernel = compile_kernel(
        vocab_parallel.local_kernel, arch, signature, constants, options, ("logits", "out", "state")
    )
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 128


@pytest.mark.parametrize("arch", ARCHES)
def test_lengths_and_slots_use_registers_only(arch: str) -> None:
    signature = {
        **dict.fromkeys(("seq_lens", "block_lens", "compact_lens", "page_table"), "*i32"),
        **dict.fromkeys(("rows", "topk_blocks", "block_size", "exact_tail"), "i32"),
    }
    options = index_lengths.launch_options()
    lengths = compile_kernel(index_lengths.lengths_kernel, arch, signature, {"BLOCK": index_lengths.BLOCK}, options)
    signature = {
        "scores": "*fp32", "indices": "*i64", "page_table": "*i32", "page_indices": "*i32", "raw_indices": "*i64",
        **dict.fromkeys(("width", "chosen", "page_size"), "i32"),
        **{f"{name}_stride": "i32" for name in ("score", "index", "table", "page", "raw")},
    }  # fmt: skip
    pages = compile_kernel(index_lengths.pages_kernel, arch, signature, index_lengths.page_constants(True), options)
    for kernel in (lengths, pages):
        assert (kernel.spilled, kernel.shared) == (0, 0)
        assert kernel.registers <= 48

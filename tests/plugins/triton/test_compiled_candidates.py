"""The candidate blocks, built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import candidates
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]


def _source(arch: str, block_size: int, blocks: int, words: bool) -> CompiledKernel:
    signature = {
        **dict.fromkeys(("seq_lens", "scores"), "*i32"),
        **dict.fromkeys(("width", "logit_stride", "blocks", "units", "topk_blocks"), "i32"),
        "logits": "*fp32", "masked": "*fp32", "keep": "*i64" if words else "*u8", "state": "*i64",
    }  # fmt: skip
    tiles = candidates.TILES if arch.startswith("sm_") else candidates.AMD_TILES
    constants = candidates.source_constants(tiles, block_size, blocks, words, 4)
    options = candidates.launch_options(tiles)
    aligned = ("logits", "masked", "scores", "state")
    return compile_kernel(candidates.source_kernel, arch, signature, constants, options, aligned)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_source_layer_keeps_the_scores_of_64k_entries_in_registers(arch: str) -> None:
    kernel = _source(arch, 8, 8192, True)
    assert kernel.spilled == 0
    assert kernel.registers <= 176
    assert kernel.shared <= 16384


@pytest.mark.parametrize(
    ("arch", "block_size", "words"), [("sm_103", 2048, True), ("gfx942", 8, True), ("gfx942", 1, False)]
)
def test_a_row_of_more_blocks_does_not_spill(arch: str, block_size: int, words: bool) -> None:
    kernel = _source(arch, block_size, 131072, words)
    assert kernel.spilled == 0
    assert kernel.registers <= 176
    assert kernel.shared <= 16384


@pytest.mark.parametrize("arch", ARCHES)
def test_a_consumer_uses_registers_only(arch: str) -> None:
    signature = {
        **dict.fromkeys(("width", "logit_stride", "published_stride"), "i32"),
        "logits": "*fp32", "seq_lens": "*i32", "published": "*u8", "masked": "*fp32",
    }  # fmt: skip
    constants, options = candidates.consumer_constants(candidates.TILES), candidates.launch_options(candidates.TILES)
    kernel = compile_kernel(candidates.consumer_kernel, arch, signature, constants, options)
    assert (kernel.spilled, kernel.shared) == (0, 0)
    assert kernel.registers <= 48

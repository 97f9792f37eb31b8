"""The candidate blocks, built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import candidates
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]


def _tiles(arch: str) -> candidates.Tiles:
    return candidates.TILES if arch.startswith("sm_") else candidates.AMD_TILES


def _keep(arch: str, block_size: int, blocks: int, words: bool) -> CompiledKernel:
    signature = {
        "scores": "*i32",
        "keep": "*i64" if words else "*u8",
        **dict.fromkeys(("blocks", "units", "topk_blocks"), "i32"),
    }
    constants = candidates.keep_constants(_tiles(arch), block_size, blocks, words)
    return compile_kernel(candidates.keep_kernel, arch, signature, constants, candidates.launch_options(_tiles(arch)))


@pytest.mark.parametrize("arch", ARCHES)
def test_scores_of_64k_entries_are_kept_in_registers(arch: str) -> None:
    kernel = _keep(arch, 8, 8192, True)
    assert kernel.spilled == 0
    assert kernel.registers <= 192
    assert kernel.shared <= 16384


@pytest.mark.parametrize(
    ("arch", "block_size", "words"), [("sm_103", 2048, True), ("gfx942", 8, True), ("gfx942", 1, False)]
)
def test_a_row_of_more_blocks_does_not_spill(arch: str, block_size: int, words: bool) -> None:
    kernel = _keep(arch, block_size, 131072, words)
    assert kernel.spilled == 0
    assert kernel.registers <= 192
    assert kernel.shared <= 16384


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("block_size", [1, 8, 2048])
def test_masking_and_scoring_leave_room_for_other_programs(arch: str, block_size: int) -> None:
    signature = {
        "logits": "*fp32", "masked": "*fp32", **dict.fromkeys(("seq_lens", "scores"), "*i32"),
        **dict.fromkeys(("width", "logit_stride", "blocks"), "i32"),
    }  # fmt: skip
    constants = candidates.source_constants(_tiles(arch), block_size, 4)
    options = candidates.launch_options(_tiles(arch))
    aligned = ("logits", "masked", "scores")
    kernel = compile_kernel(candidates.source_kernel, arch, signature, constants, options, aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 64


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

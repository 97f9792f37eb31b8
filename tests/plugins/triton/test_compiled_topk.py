"""The selection of the best columns, built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import topk, topk_guess
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
#: One of each vendor for the widest choice: those that have the fewest registers or the least memory to spare.
TIGHT = ["sm_103", "gfx942"]


def _topk(arch: str, top_k: int, first: bool, last: bool, ranked: bool) -> CompiledKernel:
    usual = topk.TILES if top_k <= topk.MANY else topk.MANY_TILES
    tiles = usual if arch.startswith("sm_") else topk.AMD_TILES
    signature = {
        **dict.fromkeys(("lengths", "source_keys", "source_columns", "keys", "columns", "ids"), "*i32"),
        **dict.fromkeys(("width", "score_stride", "source_splits", "top_k"), "i32"),
        "scores": "*fp32",
    }  # fmt: skip
    constants, options = topk.launch_constants(tiles, top_k, first, last, ranked), topk.launch_options(tiles)
    return compile_kernel(topk.select_kernel, arch, signature, constants, options)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_choice_of_512_keeps_its_keys_in_registers(arch: str) -> None:
    kernel = _topk(arch, 512, True, True, False)
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 1024


@pytest.mark.parametrize("arch", ARCHES)
def test_a_choice_of_512_that_begins_with_a_guess_keeps_its_keys_in_registers(arch: str) -> None:
    tiles = topk.TILES if arch.startswith("sm_") else topk.AMD_TILES
    pointers = dict.fromkeys(("lengths", "counts", "guesses", "ids"), "*i32")
    sizes = dict.fromkeys(("width", "score_stride", "splits", "top_k"), "i32")
    signature = {**pointers, **sizes, "scores": "*fp32", "candidates": "*i64", "best": "*i64"}
    first, last = topk.guess_constants(tiles, 512, True)
    for function, constants in ((topk_guess.reach_kernel, first), (topk_guess.choose_kernel, last)):
        kernel = compile_kernel(function, arch, signature, constants, topk.launch_options(tiles))
        assert kernel.spilled == 0
        assert kernel.registers <= 128
        assert kernel.shared <= 4096


@pytest.mark.parametrize("arch", TIGHT)
@pytest.mark.parametrize(("first", "last"), [(True, True), (False, False)])
def test_the_widest_choice_does_not_spill_in_its_first_and_later_launches(arch: str, first: bool, last: bool) -> None:
    kernel = _topk(arch, topk.MOST_CHOSEN, first, last, True)
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 16384

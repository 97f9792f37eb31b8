"""The kernels of a draft block, built for every architecture that is claimed, at the model's sizes and the widest."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import confidence, markov, schedule
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.blocks.drafting import draw_kernel, slot_kernel
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
#: One of each vendor, for the widest shapes: those that have the fewest registers or the least memory to spare.
TIGHT = ["sm_103", "gfx942"]
#: Bytes of shared memory that a program may have.
SHARED = {"sm_90": 232448, "sm_100": 232448, "sm_103": 232448, "gfx942": 65536, "gfx950": 163840}


def slot(arch: str, dtype: str, rows: int, rank: int, keep: bool) -> CompiledKernel:
    tiles = markov.TILES if arch.startswith("sm_") else markov.AMD_TILES
    signature = {
        "base": "*fp32", "previous": "*i64", "embed": f"*{dtype}", "head": f"*{dtype}", "drafts": "*i64",
        "logits": "*fp32", "state": "*i64",
        **dict.fromkeys(("rows", "base_row", "previous_stride", "draft_stride", "logit_row", "last_token"), "i32"),
        "backward": "i32",
    }  # fmt: skip
    constants = markov.launch_constants(tiles, rows, 129280, rank, "float32", dtype == "fp32", keep)
    options = markov.launch_options(tiles, constants)
    return compile_kernel(slot_kernel, arch, signature, constants, options, ("head", "state", "embed"))


@pytest.mark.parametrize("arch", ARCHES)
def test_a_slot_multiplies_on_matrix_units_and_reads_the_head_16_bytes_at_a_time(arch: str) -> None:
    kernel = slot(arch, "bf16", 6, 256, False)
    assert kernel.spilled == 0
    assert kernel.registers <= 168
    assert 2 * kernel.shared <= SHARED[arch] + 8192, "two programs beside each other"
    if arch.startswith("sm_"):
        wanted = {"sm_90": "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16"}.get(arch, "tcgen05.mma")
        assert wanted in kernel.assembly
        assert "cp.async.cg.shared.global" in kernel.assembly
    else:
        assert kernel.count(r"\bv_mfma_f32_16x16x(16|32)_?bf16") >= 16
        assert kernel.count(r"\b(global|buffer)_load_(lds_)?dwordx4") >= 8


@pytest.mark.parametrize(
    ("arch", "dtype", "rank"),
    [*((arch, "bf16", 256) for arch in ARCHES), *((arch, dtype, 512) for arch in TIGHT for dtype in ("bf16", "fp32"))],
)
def test_the_largest_slots_of_the_region_fit_and_do_not_spill(arch: str, dtype: str, rank: int) -> None:
    kernel = slot(arch, dtype, 64, rank, True)
    assert (kernel.spilled, kernel.shared <= SHARED[arch]) == (0, True)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_draw_holds_its_tile_in_registers(arch: str) -> None:
    signature = {
        "law": "*fp32", "drafts": "*i64", "uniforms": "*fp32", "temperature": "*fp32", "law_row": "i32",
        "draft_stride": "i32", "coin_stride": "i32",
    }  # fmt: skip
    options = markov.draw_options(arch.startswith("gfx"))
    kernel = compile_kernel(draw_kernel, arch, signature, markov.draw_constants(129280), options)
    assert kernel.spilled == 0
    assert kernel.registers <= 128


@pytest.mark.parametrize(
    ("arch", "gamma", "width", "unit"),
    [*((arch, 5, 5120, 8) for arch in ARCHES), *((arch, 16, 16384, 1) for arch in TIGHT)],
)
def test_confidences_and_their_products_stay_in_registers(arch: str, gamma: int, width: int, unit: int) -> None:
    signature = {
        "hidden": "*bf16", "previous": "*i64", "embed": "*bf16",
        **dict.fromkeys(("weight", "bias", "temperatures", "confidence"), "*fp32"),
        **dict.fromkeys(("row_stride", "slot_stride", "last_token", "has_bias", "has_temperatures"), "i32"),
    }  # fmt: skip
    cut = confidence.AMD_CUT if arch.startswith("gfx") else confidence.CUT
    constants = confidence.score_constants(cut, width, unit, 512 if unit == 1 else 256)
    kernel = compile_kernel(
        confidence.score_kernel, arch, signature, constants, cut_options(cut), ("hidden",) if unit > 1 else ()
    )
    assert kernel.spilled == 0
    assert kernel.shared <= 16384
    if unit > 1:
        wide = r"\bLDG\.E\.(ENL2\.256|128)" if arch.startswith("sm_") else r"\b(global|buffer)_load_dwordx4"
        assert kernel.count(wide) >= 5, "the state at once"
    products = compile_kernel(
        confidence.survival_kernel, arch, {"confidence": "*fp32", "survival": "*fp32", "requests": "i32"},
        confidence.survival_constants(confidence.REQUESTS, gamma), cut_options(confidence.REQUESTS),
    )  # fmt: skip
    assert (products.spilled, products.shared) == (0, 0)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_schedule_of_the_models_requests_and_the_widest_of_the_region_do_not_spill(arch: str) -> None:
    signature = {
        "survival": "*fp32", "steps_per_second": "*fp64", "budget": "*i32", "verify_lens": "*i32",
        **dict.fromkeys(("requests", "columns", "rates", "least", "most"), "i32"),
    }  # fmt: skip
    sizes = [(64, 5, "early_stop"), *([(256, 8, "global")] if arch in TIGHT else [])]
    for requests, gamma, mode in sizes:
        constants = schedule.launch_constants(requests, gamma, mode, False)
        kernel = compile_kernel(schedule.prefix_kernel, arch, signature, constants, schedule.launch_options(False))
        assert (arch, mode, kernel.spilled) == (arch, mode, 0)

"""The kernels of the verify tail and of the inputs of a forward, built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import CompiledKernel, compile_kernel
from dspark_ops_triton import accept, accept_forced, accept_greedy, accept_tail, inputs
from dspark_ops_triton.argmax import AMD_TILES, TILES
from dspark_ops_triton.blocks import mla_walk, step_inputs
from dspark_ops_triton.blocks.cutting import cut_options
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
#: One of each vendor, for the widest shapes: those that have the fewest registers or the least memory to spare.
TIGHT = ["sm_103", "gfx942"]
LENS = {"verify_lens": "*i32", "accept_lens": "*i32", "candidate_stride": "i32", "length_stride": "i32"}
FINAL = {
    "correct_len": "*i32", "bonus_out": "*i64", "cap_trim": "*i32", "commit_lens": "*i32", "new_seq_lens": "*i64",
    "out_tokens": "*i64",
}  # fmt: skip
TAIL = {"candidates": "*i64", "prefix_lens": "*i64", "lens_words": "i32", **LENS, **FINAL}
STRIDES = {f"{which}_{what}": "i32" for which in ("first", "second") for what in ("row", "column")}


def tail(arch: str, forced: bool) -> CompiledKernel:
    tiles = TILES if arch.startswith("sm_") else AMD_TILES
    signature = {**TAIL, "logits": "*fp32", "state": "*i64", "row_stride": "i32"}
    constants = accept_tail.launch_constants(tiles, 129280, 4, 6, forced)
    options = accept_tail.launch_options(tiles)
    return compile_kernel(accept_tail.tail_kernel, arch, signature, constants, options, ("logits", "state", *FINAL))


@pytest.mark.parametrize(("arch", "forced"), [*((arch, False) for arch in ARCHES), ("sm_90", True), ("gfx950", True)])
def test_the_tail_reads_16_bytes_at_a_time_and_counts_arrivals_once(arch: str, forced: bool) -> None:
    kernel = tail(arch, forced)
    assert kernel.spilled == 0
    assert kernel.registers <= 64
    assert kernel.shared <= 128
    if arch.startswith("sm_"):
        assert kernel.count(r"\bLDG\.E\.(ENL2\.256|128)") >= 1
        counts = [kernel.count(rf"\b(REDG|ATOMG)\.E\.{what}") for what in (r"MAX\.S?64", r"ADD\.64", r"EXCH\.64")]
    else:
        assert kernel.count(r"\b(global|buffer)_load_dwordx4") >= 2
        counts = [kernel.count(rf"\b(global|buffer)_atomic_{what}") for what in ("smax_x2", "add_x2", "swap_x2")]
    assert counts == [1, 1, 1]


@pytest.mark.parametrize("arch", ARCHES)
def test_the_other_tails_are_small(arch: str) -> None:
    options = accept_forced.launch_options()
    signature = {**TAIL, "bonus": "*i64", "requests": "i32"}
    forced = compile_kernel(
        accept_forced.forced_kernel, arch, signature, accept_forced.launch_constants(6), options, tuple(FINAL)
    )
    signature = {
        "candidates": "*i64", "target_ids": "*i64", "verify_lens": "*i32", "correct_len": "*i32", "bonus": "*i64",
        "cap_trim": "*i32", "requests": "i32", "candidate_stride": "i32", "lens_words": "i32",
    }  # fmt: skip
    greedy = compile_kernel(
        accept_greedy.greedy_kernel,
        arch,
        signature,
        accept_greedy.launch_constants(accept_greedy.CUT, 6),
        cut_options(accept_greedy.CUT),
    )
    for kernel in (forced, greedy):
        assert kernel.spilled == 0
        assert kernel.registers <= 64
        assert kernel.shared <= 128


@pytest.mark.parametrize("arch", TIGHT)
def test_the_widest_tails_of_the_region_do_not_spill(arch: str) -> None:
    signature = {**TAIL, "bonus": "*i64", "requests": "i32"}
    options = accept_forced.launch_options()
    forced = compile_kernel(accept_forced.forced_kernel, arch, signature, accept_forced.launch_constants(64), options)
    signature = {
        "correct_len": "*i32", "bonus": "*i64", "drafts": "*i64", "prefix_lens": "*i64", "commit_lens": "*i32",
        "new_seq_lens": "*i64", "out_tokens": "*i64", "requests": "i32", "draft_stride": "i32",
    }  # fmt: skip
    final = compile_kernel(accept.finalize_kernel, arch, signature, accept.launch_constants(accept.CUT, 63), options)
    assert (forced.spilled, final.spilled) == (0, 0)


@pytest.mark.parametrize("arch", ARCHES)
def test_copies_of_ids_use_registers_only(arch: str) -> None:
    i64 = {name: "*i64" for name in ("bonus", "positions", "cache_loc", "ids", "draft_ids")}
    outs = {"ids_out": "*i64", "positions_out": "*i64", "cache_out": "*i64"}
    sizes = dict.fromkeys(("elements", "bonus_stride", "third_row", "third_column", *STRIDES), "i32")
    everything = {**i64, **outs, **sizes}
    for kernel in (step_inputs.draft_inputs_kernel, step_inputs.verify_inputs_kernel):
        signature = {name: everything[name] for name in kernel.arg_names if name in everything}
        constants = step_inputs.launch_constants(inputs.CUT, 6)
        built = compile_kernel(kernel, arch, signature, constants, cut_options(inputs.CUT))
        assert (built.spilled, built.shared) == (0, 0)
        assert built.registers <= 48
    signature = {
        "seq_lens": "*i64", "request_indices": "*i64", "causal_lens": "*i32", "request_rows": "*i64",
        "requests": "i32", "rows": "i32", "width": "i32",
    }  # fmt: skip
    constants = {"BLOCK": inputs.CUT.items, "PDL": False}
    built = compile_kernel(step_inputs.expand_kernel, arch, signature, constants, cut_options(inputs.CUT))
    assert (built.spilled, built.shared) == (0, 0)
    assert built.registers <= 48


@pytest.mark.parametrize(("arch", "requests"), [*((arch, 64) for arch in ARCHES), *((arch, 4096) for arch in TIGHT)])
def test_the_walk_of_the_schedule_holds_the_records_in_registers(arch: str, requests: int) -> None:
    signature = {
        **dict.fromkeys(("lengths", "extra_lengths", "meta", "num_splits"), "*i32"),
        **dict.fromkeys(("requests", "parts", "extra_topk", "overhead"), "i32"),
    }
    pdl = arch.startswith("sm_")
    constants = mla_walk.schedule_constants(requests, 152, "sparse", 2, 64, pdl)
    options = mla_walk.schedule_options(requests, pdl)
    kernel = compile_kernel(mla_walk.schedule_kernel, arch, signature, constants, options, ("meta",))
    assert kernel.spilled == 0
    assert kernel.registers <= 128
    assert kernel.shared <= 16384  # through which parts look up their requests

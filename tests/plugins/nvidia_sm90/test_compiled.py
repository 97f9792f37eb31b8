"""The kernels around FlashMLA, built for sm_90."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_nvidia_sm90.flashmla import TILE
from dspark_ops_nvidia_sm90.inputs import inputs_kernel
from dspark_ops_triton.blocks.mla_walk import schedule_options, walk_constants


@pytest.mark.parametrize(("rows", "schedule"), [(6, True), (64, True), (4096, True), (1, False)])
def test_the_inputs_are_padded_without_spills_beside_the_schedule_and_without(rows: int, schedule: bool) -> None:
    integers = (
        "requests", "parts", "extra_topk", "heads", "index_row", "extra_index_row", "width", "extra_width", "slots",
        "extra_slots",
    )  # fmt: skip
    indices = ("indices", "lengths", "extra_indices", "extra_lengths", "padded_indices", "padded_extra", "meta")
    signature = {
        "q": "*bf16", "padded_q": "*bf16", "sink": "*fp32", "padded_sink": "*fp32", "num_splits": "*i32",
        **dict.fromkeys(indices, "*i32"), **dict.fromkeys(integers, "i32"),
    }  # fmt: skip
    constants = walk_constants(rows, 132, "sparse", 2, 64)
    constants |= {
        "COLUMNS": 128, "EXTRA_COLUMNS": 512, "TILE": TILE, "PAD": True, "SCHEDULE": schedule, "PDL": True
    }  # fmt: skip
    aligned = ("q", "padded_q", "padded_indices", "padded_extra", "meta")
    kernel = compile_kernel(inputs_kernel, "sm_90", signature, constants, schedule_options(rows, True), aligned)
    assert kernel.spilled == 0
    assert kernel.count(r"\bLDG\.E\.128") >= 1
    assert kernel.count(r"\bACQBULK") == 1, "it waits for the kernels before it"

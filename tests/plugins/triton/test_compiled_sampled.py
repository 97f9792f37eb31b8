"""The sampled accept, built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import accept_sampled
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]


@pytest.mark.parametrize(
    ("arch", "variant", "trim", "width"),
    [
        *((arch, "token", "fresh", 6) for arch in ARCHES),
        *((arch, "token", "boundary", 6) for arch in ("sm_103", "gfx942")),
        *((arch, "block", "fresh", 64) for arch in ("sm_103", "gfx942")),
    ],
)
def test_a_step_of_the_whole_vocabulary_does_not_spill(arch: str, variant: str, trim: str, width: int) -> None:
    law = {
        "candidates": "*i64", **dict.fromkeys(("target_probs", "draft_probs", "accept_uniforms"), "*fp32"),
        "verify_lens": "*i32", "sums": "*fp64", **{f"{name}_request": "i64" for name in ("target", "draft")},
        **dict.fromkeys(("candidate_stride", "target_row", "draft_row", "vocab_groups", "lens_words"), "i32"),
    }  # fmt: skip
    constants = accept_sampled.launch_constants(width, 129280, 4, variant, False)
    options = accept_sampled.launch_options(constants)
    sums = compile_kernel(
        accept_sampled.sums_kernel, arch, law, constants, options, ("target_probs", "draft_probs", "sums")
    )
    outputs = {"final_uniforms": "*fp32", "bonus_out": "*i64", **dict.fromkeys(("correct_len", "cap_trim"), "*i32")}
    accept = compile_kernel(
        accept_sampled.accept_kernel, arch, {**law, **outputs},
        {**constants, **accept_sampled.accept_constants(-(-129280 // constants["BLOCK"]), trim)}, options,
        ("target_probs", "draft_probs", "correct_len", "bonus_out", "cap_trim", "sums"),
    )  # fmt: skip
    for kernel in (sums, accept):
        assert kernel.spilled == 0
        assert kernel.shared <= 16384
        assert kernel.registers <= 168

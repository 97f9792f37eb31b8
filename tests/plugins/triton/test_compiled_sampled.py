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
    signature = {
        **dict.fromkeys(("candidates", "bonus_out", "state"), "*i64"),
        **dict.fromkeys(("target_probs", "draft_probs", "accept_uniforms", "final_uniforms"), "*fp32"),
        **dict.fromkeys(("verify_lens", "correct_len", "cap_trim"), "*i32"), "sums": "*fp64",
        **{f"{name}_request": "i64" for name in ("target", "draft")},
        **dict.fromkeys(("candidate_stride", "target_row", "draft_row", "vocab", "lens_words"), "i32"),
    }  # fmt: skip
    constants = accept_sampled.launch_constants(width, 129280, variant, trim)
    options = accept_sampled.launch_options()
    aligned = ("target_probs", "draft_probs", "correct_len", "bonus_out", "cap_trim", "sums", "state")
    kernel = compile_kernel(accept_sampled.sampled_kernel, arch, signature, constants, options, aligned)
    assert kernel.spilled == 0
    assert kernel.registers <= 255
    assert kernel.shared <= 16384

"""Kernels over the page layouts of V4.1 built for every architecture that is claimed."""

from __future__ import annotations

import pytest

from dspark_ops.conformance.compiled import compile_kernel
from dspark_ops_triton import kv_store_v41
from dspark_ops_triton.kernels_base import INTERPRETED

ARCHES = [name for name, _ in INTERPRETED]
WIDE_LOAD = r"\bLDG\.E\.(ENL2\.256|128)|\b(global|buffer)_load_dwordx4"


@pytest.mark.parametrize(
    ("arch", "layout"),
    [(arch, name) for arch in ARCHES for name in ("kv_v41", "kv_v41_fp4")] + [("sm_90", "kv_v41_new")],
)
def test_one_warp_stores_a_latent_row(arch: str, layout: str) -> None:
    integers = ("kv_stride", "slots", "page_shift", "page_units")
    signature = {
        "kv": "*bf16", "weight": "*bf16", "freqs": "*fp32", "positions": "*i64", "out_loc": "*i32",
        "cache": "*u8", **dict.fromkeys(integers, "i32"), "eps": "fp32",
    }  # fmt: skip
    kernel = compile_kernel(
        kv_store_v41.norm_rope_store_v41_kernel, arch, signature, kv_store_v41.launch_constants(layout, 8),
        kv_store_v41.launch_options(), ("kv", "weight", "cache"),
    )  # fmt: skip
    assert kernel.spilled == 0
    assert kernel.registers <= 80
    assert kernel.shared <= 128
    assert kernel.count(WIDE_LOAD) >= 2
    assert kernel.count(r"\bSTG\.E|\b(global|buffer)_store") == 2, "an entry's codes at once, and its scales"

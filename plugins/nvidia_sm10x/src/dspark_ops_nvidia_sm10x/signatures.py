"""The calling conventions of the packages that this plugin calls, as read in the releases named here.

A test compares them with the packages where they are installed (``tox -e nvidia_sm10x-deps``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Convention:
    """How a function of another package is called.

    Attributes:
        module: module that has it.
        function: its name.
        parameters: names in their order.
        read_in: distribution and release in which they were read.
        source: file that has it, inside the distribution: it can be read without importing the package.
    """

    module: str
    function: str
    parameters: tuple[str, ...]
    read_in: str
    source: str


FLASHINFER_MXFP8 = Convention(
    "flashinfer",
    "mxfp8_quantize",
    ("input", "is_sf_swizzled_layout", "alignment", "enable_pdl", "backend", "sf_swizzle_layout"),
    "flashinfer-python 0.7.2.post1",
    "flashinfer/quantization/fp8_quantization.py",
)

FLASH_MLA_DECODE = Convention(
    "flash_mla",
    "flash_mla_with_kvcache",
    (
        "q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "tile_scheduler_metadata", "num_splits",
        "softmax_scale", "causal", "is_fp8_kvcache", "indices", "attn_sink", "extra_k_cache",
        "extra_indices_in_kvcache", "topk_length", "extra_topk_length", "enable_batch_invariant", "use_legacy",
        "kv_format", "descale_q", "descale_k",
    ),
    "sgl-flash-mla 1.0.0",
    "flash_mla/flash_mla_interface.py",
)  # fmt: skip

#: Not called: which of DeepGEMM's functions covers a contract is written in docs/coverage.md.
CONVENTIONS = (FLASHINFER_MXFP8, FLASH_MLA_DECODE)

"""Kernels of other packages, imported only where they are chosen."""

from __future__ import annotations

from dspark_ops.api import Kernel, Package, RankClass, Traits, axis, contiguous, dtype, layout, option, unit_last_stride
from dspark_ops_nvidia_sm10x.kernels_base import ARCH, TRITON

#: The range ends before the next minor release: conventions are checked in one release, and change between them.
FLASHINFER = Package(
    "flashinfer",
    "flashinfer-python",
    ">=0.7.2,<0.8",
    attributes=("mxfp8_quantize",),
    install="pip install 'dspark-ops-nvidia-sm10x[flashinfer]'",
)
#: Another distribution, flash-mla, has a module of this name with another interface: its probe fails for `has_legacy`.
FLASH_MLA = Package(
    "flash_mla",
    "sgl-flash-mla",
    ">=1.0,<2",
    attributes=("flash_mla_with_kvcache", "has_legacy"),
    install="pip install 'dspark-ops-nvidia-sm10x[flashmla]'",
)

_MXFP8 = Kernel(
    "mxfp8_quantize",
    variant="flashinfer",
    target="dspark_ops_nvidia_sm10x.flashinfer_mxfp8:mxfp8_quantize",
    prepare="dspark_ops_nvidia_sm10x.flashinfer_mxfp8:prepare_mxfp8_quantize",
    arch=ARCH,
    region=[
        dtype("x", "bfloat16", "float16"),
        contiguous("x"),
        axis("K").multiple_of(32),
        axis("K").between(32, 2**16),
        option("layout").one_of("sf_128x4", "sf_linear"),
        option("scale_rounding").is_("up"),
        option("tiny_groups").is_("zero"),
        axis("M").at_most(2**20),
    ],
    rank=RankClass.FUSED,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    packages=(TRITON, FLASHINFER),
    note="1 launch of FlashInfer's CUDA kernel, built at start-up; not run by this project",
)

_SPARSE_MLA_DECODE = Kernel(
    "sparse_mla_decode",
    variant="flashmla",
    target="dspark_ops_nvidia_sm10x.flash_mla:sparse_mla_decode",
    prepare="dspark_ops_nvidia_sm10x.flash_mla:prepare_sparse_mla_decode",
    arch=ARCH,
    region=[
        dtype("q", "bfloat16"),
        contiguous("q", "cache", "extra_cache", "lengths", "extra_lengths", "sink"),
        unit_last_stride("indices", "extra_indices"),
        layout("cache", "kv_v4", "kv_v41_new"),
        layout("extra_cache", "kv_v4", "kv_v41_new", "kv_v41_fp4_new"),
        option("layout").one_of("kv_v4", "kv_v41_new"),
        axis("A").between(1, 64),
        axis("D").one_of(512),
        axis("W").between(1, 8192),
        axis("T").at_most(4096),
    ],
    rank=RankClass.FUSED,
    # Rows are cut where the work of all of them is cut.
    traits=Traits(graph_safe=True, batch_invariant=False, pdl=True),
    packages=(TRITON, FLASH_MLA),
    note="5 launches, 7 with a second cache: inputs, schedule unless handed over, FlashMLA's two, results; heads "
    "padded to 64; with the schedule of mla_sched_meta; not run by this project on these devices",
)

KERNELS = (_MXFP8, _SPARSE_MLA_DECODE)

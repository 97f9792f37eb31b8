"""The kernels of the low-ratio compressors and of the index keys that are made from their latents."""

from __future__ import annotations

from dspark_ops.api import (
    Kernel,
    RankClass,
    Traits,
    any_gpu,
    axis,
    contiguous,
    dtype,
    layout,
    option,
    unit_last_stride,
)
from dspark_ops_triton.kernels_base import EARLY_WEIGHT, INTERPRETED, TRITON

_COMPRESS_C1 = Kernel(
    "compress_c1",
    variant="row_program",
    target="dspark_ops_triton.compress:compress_c1",
    prepare="dspark_ops_triton.compress:prepare_compress_c1",
    arch=any_gpu(),
    region=[
        dtype("kv", "bfloat16"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        dtype("positions", "int64", "int32"),
        dtype("out_loc", "int64", "int32"),
        unit_last_stride("kv"),
        contiguous("weight", "freqs", "positions", "out_loc", "cache"),
        layout("cache", "kv_v4"),
        option("layout").is_("kv_v4"),
        axis("D").one_of(512),
        axis("P").one_of(64),
        axis("N").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note=f"1 launch, one program per row; about 2900 bytes per row; layout kv_v4 alone; 64-bit offsets; {EARLY_WEIGHT}",
)

_COMPRESS_C2 = Kernel(
    "compress_c2",
    variant="row_program",
    target="dspark_ops_triton.compress:compress_c2",
    prepare="dspark_ops_triton.compress:prepare_compress_c2",
    arch=any_gpu(),
    region=[
        dtype("kv_score", "float32"),
        dtype("state", "float32"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        dtype("positions", "int64", "int32"),
        dtype("requests", "int64"),
        dtype("out_loc", "int64", "int32"),
        contiguous("kv_score", "state", "weight", "freqs", "positions", "requests", "out_loc", "cache"),
        layout("cache", "kv_v4"),
        option("layout").is_("kv_v4"),
        option("form").one_of("decode", "verify", "extend"),
        axis("D").one_of(512),
        axis("P").one_of(64),
        axis("N").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note=f"1 launch, in the form extend 2; about 10 kB per row; layout kv_v4 alone; 64-bit offsets; {EARLY_WEIGHT}",
)

_INDEX_K_STORE = Kernel(
    "index_k_store",
    variant="warp_per_key",
    target="dspark_ops_triton.index_store:index_k_store",
    prepare="dspark_ops_triton.index_store:prepare_index_k_store",
    arch=any_gpu(),
    region=[
        dtype("k", "bfloat16"),
        dtype("weight", "bfloat16"),
        dtype("freqs", "float32"),
        dtype("positions", "int64", "int32"),
        dtype("out_loc", "int64", "int32"),
        unit_last_stride("k"),
        contiguous("weight", "freqs", "positions", "out_loc", "cache", "scale_cache"),
        layout("cache", "index_k_page68", "index_k_split"),
        option("layout").one_of("index_k_page68", "index_k_split"),
        option("ratio").one_of(1, 2),
        axis("D").one_of(128),
        axis("P").one_of(64),
        axis("N").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, one warp per key, norm included; about 850 bytes per key; both layouts; 64-bit offsets; "
    f"{EARLY_WEIGHT}",
)

KERNELS = (_COMPRESS_C1, _COMPRESS_C2, _INDEX_K_STORE)

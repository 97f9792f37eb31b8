"""The kernels of expert routes beside the gate: routing by table, padding, route reduce, and the n-gram gather."""

from __future__ import annotations

from dspark_ops.api import (
    Kernel,
    RankClass,
    Traits,
    any_gpu,
    axis,
    contiguous,
    dtype,
    unit_last_stride,
)
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_ROW_BY_ROW = Traits(graph_safe=True, batch_invariant=True, pdl=True)

_HASH = Kernel(
    "moe_gate_hash",
    variant="warp_per_row",
    target="dspark_ops_triton.moe_hash:moe_gate_hash",
    prepare="dspark_ops_triton.moe_hash:prepare_moe_gate_hash",
    arch=any_gpu(),
    region=[
        dtype("logits", "float32", "bfloat16", "float16"),
        dtype("input_ids", "int64", "int32"),
        contiguous("input_ids", "table", "num_valid"),
        axis("K").between(1, 64),
        axis("V").between(1, 2**31 - 1),
        axis("M").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=_ROW_BY_ROW,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, one warp per token; reads the chosen logits alone; 64-bit offsets",
)

_FILL = Kernel(
    "fill_padded_topk",
    variant="flat",
    target="dspark_ops_triton.moe_hash:fill_padded_topk",
    prepare="dspark_ops_triton.moe_hash:prepare_fill_padded_topk",
    arch=any_gpu(),
    region=[
        dtype("ids", "int32", "int64"),
        dtype("weights", "float32"),
        dtype("num_valid", "int32", "int64"),
        unit_last_stride("ids", "weights"),
        axis("K").between(1, 64),
        axis("M").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=_ROW_BY_ROW,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 8 or 12 bytes per padded choice; 64-bit offsets",
)

_REDUCE = Kernel(
    "moe_local_reduce",
    variant="column_blocks",
    target="dspark_ops_triton.moe_reduce:moe_local_reduce",
    prepare="dspark_ops_triton.moe_reduce:prepare_moe_local_reduce",
    arch=any_gpu(),
    region=[
        dtype("route_out", "bfloat16", "float16", "float32"),
        contiguous("route_out", "topk_ids", "expert_mask", "topk_weights", "shared"),
        axis("K").between(1, 16),
        axis("D").between(1, 2**24),
        axis("M").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=_ROW_BY_ROW,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; reads the slots that this rank holds and no others; 64-bit offsets",
)

_GATHER = Kernel(
    "engram_gather",
    variant="row_tiles",
    target="dspark_ops_triton.engram:engram_gather",
    prepare="dspark_ops_triton.engram:prepare_engram_gather",
    arch=any_gpu(),
    region=[
        dtype("ids", "int64", "int32"),
        contiguous("table", "scales"),
        axis("D").between(32, 8192),
        axis("D").power_of_two(),
        axis("I").between(1, 4096),
    ],
    rank=RankClass.PORTABLE,
    traits=_ROW_BY_ROW,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; D + D / 32 bytes per id held, 2 * D out; any strides of the ids; 64-bit offsets",
)

KERNELS = (_HASH, _FILL, _REDUCE, _GATHER)

"""The kernels around the experts: router gate, packed choices, sort of routed pairs, activation."""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import (
    Kernel,
    RankClass,
    Traits,
    any_gpu,
    axis,
    contiguous,
    dtype,
    elements,
    option,
    unit_last_stride,
)
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_GATE = Kernel(
    "moe_gate_topk",
    variant="row_program",
    target="dspark_ops_triton.moe_gate:moe_gate_topk",
    prepare="dspark_ops_triton.moe_gate:prepare_moe_gate_topk",
    arch=any_gpu(),
    region=[
        dtype("logits", "float32", "bfloat16", "float16"),
        dtype("bias", "float32", "bfloat16"),
        dtype("bias_alt", "float32", "bfloat16"),
        contiguous("bias", "num_valid", "bias_alt", "input_ids"),
        axis("E").between(1, 512),
        option("top_k").one_of(*range(1, 17)),
        option("numerics").is_("log1p"),
        axis("M").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="highest", ties="lowest", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, one program per token; reads the logits once, 8 bytes per choice out; scores rounded as in float64",
)

_GATE_PACKED = replace(
    _GATE,
    op="moe_gate_topk_packed",
    target="dspark_ops_triton.moe_gate:moe_gate_topk_packed",
    prepare="dspark_ops_triton.moe_gate:prepare_moe_gate_topk_packed",
    note="1 launch, one program per token; reads the logits once, 12 bytes per choice out; scores as in moe_gate_topk",
)

_PACK = Kernel(
    "pack_topk_ids",
    variant="flat",
    target="dspark_ops_triton.moe_pack:pack_topk_ids",
    prepare="dspark_ops_triton.moe_pack:prepare_pack_topk_ids",
    arch=any_gpu(),
    region=[
        dtype("ids", "int32", "int64"),
        dtype("weights", "float32"),
        contiguous("ids", "weights"),
        axis("K").between(1, 64),
        axis("M").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 12 bytes per choice; 64-bit offsets",
)

_SILU = Kernel(
    "silu_mul_clamp",
    variant="column_blocks",
    target="dspark_ops_triton.activation:silu_mul_clamp",
    prepare="dspark_ops_triton.activation:prepare_silu_mul_clamp",
    arch=any_gpu(),
    region=[
        dtype("gate_up", "bfloat16", "float16", "float32"),
        unit_last_stride("gate_up"),
        axis("I").between(1, 2**23),
        axis("M").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="propagate", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; three times the bytes of the result; within a unit in float32, quick for 16 bits; 64-bit offsets",
)

_SORT = Kernel(
    "moe_sort",
    variant="counted_ranks",
    target="dspark_ops_triton.moe_sort:moe_sort",
    prepare="dspark_ops_triton.moe_sort:prepare_moe_sort",
    arch=any_gpu(),
    region=[
        dtype("topk_ids", "int32"),
        dtype("topk_weights", "float32"),
        contiguous("topk_ids", "topk_weights", "expert_mask", "num_valid"),
        option("block_size").one_of(4, 8, 16, 32, 64, 128),
        axis("K").between(1, 16),
        axis("E").between(1, 1023),
        elements("M*K", below=1025),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch for up to 1024 pairs: programs that sort count all pairs each, others set the buffer to zero",
)

KERNELS = (_GATE, _GATE_PACKED, _PACK, _SILU, _SORT)

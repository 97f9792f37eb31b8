"""The kernels around the experts: gate, sort, reduce, activation."""

from __future__ import annotations

from dspark_ops.api import Traits, axis, contiguous, dtype, option, unit_last_stride
from dspark_ops_amd_gfx950.kernels_base import gfx950_kernel

_GATE = gfx950_kernel(
    "moe_gate_topk", "two_waves_per_row", "routes",
    [
        dtype("logits", "float32", "bfloat16", "float16"),
        dtype("bias", "float32", "bfloat16"),
        dtype("bias_alt", "float32", "bfloat16"),
        contiguous("bias", "num_valid", "bias_alt", "input_ids"),
        axis("E").between(128, 512),
        option("top_k").one_of(*range(1, 17)),
        option("numerics").is_("log1p"),
        axis("M").at_most(2**31 - 1),
    ],
    "1 launch, padded rows masked in it; the portable body with two waves a row, three experts a lane of 384; reads "
    "the logits once, 8 bytes per choice out",
    Traits(graph_safe=True, batch_invariant=True, nan="highest", ties="lowest"),
)  # fmt: skip

_GATE_PACKED = gfx950_kernel(
    "moe_gate_topk_packed", "two_waves_per_row", "routes", _GATE.region,
    "1 launch, padded rows masked in it; as moe_gate_topk, with 4 more bytes per choice",
    _GATE.traits,
)  # fmt: skip

_SORT = gfx950_kernel(
    "moe_sort", "small_batch", "routes",
    [
        dtype("topk_ids", "int32"),
        dtype("topk_weights", "float32"),
        contiguous("topk_ids", "topk_weights", "expert_mask", "num_valid"),
        option("block_size").one_of(16, 32, 64),
        axis("K").between(1, 8),
        axis("E").between(32, 511),
        axis("M").at_most(128),
    ],
    "1 launch for up to 128 rows; the portable body with 16 waves for the program that sorts; local ids are counted "
    "from the mask in the launch, nothing is read on the host; the other programs set the buffer to zero",
    Traits(graph_safe=True),
)  # fmt: skip

_REDUCE = gfx950_kernel(
    "moe_local_reduce", "column_waves", "routes",
    [
        dtype("route_out", "bfloat16", "float16", "float32"),
        contiguous("route_out", "topk_ids", "expert_mask", "topk_weights", "shared"),
        axis("K").between(1, 16),
        axis("D").between(1, 2**24),
        axis("M").at_most(2**31 - 1),
    ],
    "1 launch with scale and shared row; the portable body with one wave per 512 columns; slots of other ranks are not "
    "read; 64-bit offsets",
)  # fmt: skip

_SILU = gfx950_kernel(
    "silu_mul_clamp", "column_waves", "rows",
    [
        dtype("gate_up", "bfloat16", "float16", "float32"),
        unit_last_stride("gate_up"),
        axis("I").between(1, 2**23),
        axis("M").at_most(2**31 - 1),
    ],
    "1 launch; the portable body with one wave per 512 columns; three times the bytes of the result; 64-bit offsets",
    Traits(graph_safe=True, batch_invariant=True, nan="propagate"),
)  # fmt: skip

KERNELS = (_GATE, _GATE_PACKED, _SORT, _REDUCE, _SILU)

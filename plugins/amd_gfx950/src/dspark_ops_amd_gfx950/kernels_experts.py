"""The kernels around the experts: gate, sort, reduce, activation, fp8 grid."""

from __future__ import annotations

from dataclasses import replace

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

_WHOLE_GROUPS = [
    dtype("gate_up", "bfloat16"),
    unit_last_stride("gate_up"),
    axis("I").between(32, 2**23),
    axis("I").multiple_of(32),
    axis("M").at_most(2**31 - 1),
]
#: On a device without the format e4m3fn the codes would mean half as much.
_E4M3FN = ("fp8_e4m3fn",)

_SILU_GRID = gfx950_kernel(
    "silu_mul_clamp_fp8_grid", "column_waves", "grids", _WHOLE_GROUPS,
    "1 launch instead of 2, any width of whole groups; the portable body with one wave per 512 columns; 8 bytes per "
    "result; 64-bit offsets",
)  # fmt: skip

_SILU_CODES = replace(
    gfx950_kernel(
        "silu_mul_clamp_mxfp8", "column_waves", "grids", _WHOLE_GROUPS,
        "1 launch instead of 2, any width of whole groups; the portable body with one wave per 512 columns and "
        "exponentials of base 2, e4m3fn codes; 7 bytes per result; 64-bit offsets",
    ),
    features=_E4M3FN,
)  # fmt: skip

_ON_GRID = [
    dtype("x", "bfloat16"),
    contiguous("x"),
    axis("K").multiple_of(32),
    axis("K").between(32, 2**20),
    axis("M").at_most(2**20),
]

_GRID_ROUND = gfx950_kernel(
    "fp8_grid_round", "group_waves", "grids", _ON_GRID,
    "1 launch, not needed where a fold above serves; the portable body with one wave per 16 groups; 4 bytes per value; "
    "64-bit offsets",
)  # fmt: skip

_GRID_CODES = replace(
    gfx950_kernel(
        "fp8_grid_quantize", "group_waves", "grids", _ON_GRID,
        "1 launch; the portable body with one wave per 16 groups; e4m3fn codes; 3 bytes per value; 64-bit offsets",
    ),
    features=_E4M3FN,
)  # fmt: skip

KERNELS = (
    _GATE, _GATE_PACKED, _SORT, _REDUCE, _SILU, _SILU_GRID, _SILU_CODES, _GRID_ROUND, _GRID_CODES,
)  # fmt: skip

"""The kernels at the ends of a step: inputs, lengths, schedules, argmax."""

from __future__ import annotations

from dspark_ops.api import Traits, axis, contiguous, dtype, elements, unit_last_stride
from dspark_ops_amd_gfx950.kernels_base import gfx950_kernel

_THIN = "the portable body with one wave a program and one element a lane"
_FIRST = Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest")

_ARGMAX = gfx950_kernel(
    "argmax_rows", "one_launch", "argmax",
    [
        dtype("x", "float32", "bfloat16", "float16"),
        unit_last_stride("x"),
        axis("V").between(4096, 2**30),
        axis("R").at_most(2**31 - 1),
    ],
    "1 launch; reads the logits once, 8 bytes per row out; 64-bit offsets",
    _FIRST,
)  # fmt: skip

_ARGMAX_SHARD = gfx950_kernel(
    "argmax_vocab_parallel_local", "one_launch", "argmax",
    [
        dtype("logits", "float32", "bfloat16", "float16"),
        unit_last_stride("logits"),
        axis("C").between(2048, 2**30),
        axis("R").at_most(2**31 - 1),
    ],
    "1 launch; the portable body with tiles for 256 units and a quarter of the vocabulary; reads the logits once, 16 "
    "bytes per row out; 64-bit offsets",
    _FIRST,
)  # fmt: skip

_ARGMAX_RANKS = gfx950_kernel(
    "argmax_vocab_parallel", "wave_per_64_rows", "step",
    [contiguous("pairs"), axis("P").between(1, 1024), axis("R").at_most(2**30)],
    f"1 launch; {_THIN}; 16 bytes per row and rank; 64-bit offsets",
    _FIRST,
)  # fmt: skip

_DRAFT_INPUTS = gfx950_kernel(
    "draft_inputs", "wave_per_64_rows", "step",
    [
        *(dtype(name, "int64") for name in ("bonus", "positions", "cache_loc", "draft_ids")),
        contiguous("draft_ids"),
        axis("Q").at_least(1),
        elements("B*Q", below=2**31 - 256),
    ],
    f"1 launch; {_THIN}; 32 bytes per row; any strides, 64-bit offsets",
)  # fmt: skip

_VERIFY_INPUTS = gfx950_kernel(
    "verify_inputs", "wave_per_64_rows", "step",
    [
        *(dtype(name, "int64") for name in ("ids", "positions", "cache_loc")),
        axis("W").at_least(1),
        elements("B*W", below=2**31 - 256),
    ],
    f"1 launch; {_THIN}; 48 bytes per row; any strides, 64-bit offsets",
)  # fmt: skip

_EXPAND = gfx950_kernel(
    "expand_uniform", "wave_per_64_rows", "step",
    [
        dtype("seq_lens", "int32", "int64"),
        dtype("request_indices", "int32", "int64"),
        contiguous("seq_lens", "request_indices"),
        axis("B").at_most(2**24),
    ],
    f"1 launch; {_THIN}; about 12 bytes per row; fewer than 2**31 rows",
)  # fmt: skip

_LENGTHS = gfx950_kernel(
    "candidate_lengths", "wave_per_64_rows", "step",
    [dtype("seq_lens", "int32"), contiguous("seq_lens"), axis("R").at_most(2**30)],
    f"1 launch, the zeroed page table with it; {_THIN}; 16 bytes per row",
)  # fmt: skip

_SCHEDULE = gfx950_kernel(
    "varctx_schedule", "slots_of_32", "step",
    [contiguous("context_lens"), axis("B").at_most(4095)],
    "1 launch; the portable body with 32 records and one wave a program: the source change measured blocks of 256 "
    "against 32 slots on an MI355X, 24.9 and 17.8 us at 24 rows, 53.0 and 23.2 us at 128, figures of its own kernel; "
    "16 bytes per program",
    Traits(graph_safe=True),
)  # fmt: skip

_FILL = gfx950_kernel(
    "fill_padded_topk", "wave_per_64_choices", "step",
    [
        dtype("ids", "int32", "int64"),
        dtype("weights", "float32"),
        dtype("num_valid", "int32", "int64"),
        unit_last_stride("ids", "weights"),
        axis("K").between(1, 64),
        axis("M").at_most(2**31 - 1),
    ],
    f"1 launch, not needed where the gate masks padded rows; {_THIN}; 8 or 12 bytes per padded choice; 64-bit offsets",
)  # fmt: skip

KERNELS = (
    _ARGMAX, _ARGMAX_SHARD, _ARGMAX_RANKS, _DRAFT_INPUTS, _VERIFY_INPUTS, _EXPAND, _LENGTHS, _SCHEDULE, _FILL,
)  # fmt: skip

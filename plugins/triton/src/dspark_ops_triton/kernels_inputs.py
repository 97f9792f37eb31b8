"""The kernels that make the inputs of a forward: ids, positions, slots, lengths and schedules."""

from __future__ import annotations

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
)
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_DRAFT_INPUTS = Kernel(
    "draft_inputs",
    variant="one_launch",
    target="dspark_ops_triton.inputs:draft_inputs",
    prepare="dspark_ops_triton.inputs:prepare_draft_inputs",
    arch=any_gpu(),
    region=[
        *(dtype(name, "int64") for name in ("bonus", "positions", "cache_loc", "draft_ids")),
        contiguous("draft_ids"),
        axis("Q").at_least(1),
        elements("B*Q", below=2**31 - 256),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 32 bytes per row; any strides, 64-bit offsets",
)

_VERIFY_INPUTS = Kernel(
    "verify_inputs",
    variant="one_launch",
    target="dspark_ops_triton.inputs:verify_inputs",
    prepare="dspark_ops_triton.inputs:prepare_verify_inputs",
    arch=any_gpu(),
    region=[
        *(dtype(name, "int64") for name in ("ids", "positions", "cache_loc")),
        axis("W").at_least(1),
        elements("B*W", below=2**31 - 256),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 48 bytes per row; any strides, 64-bit offsets",
)

_EXPAND_UNIFORM = Kernel(
    "expand_uniform",
    variant="one_launch",
    target="dspark_ops_triton.inputs:expand_uniform",
    prepare="dspark_ops_triton.inputs:prepare_expand_uniform",
    arch=any_gpu(),
    region=[
        dtype("seq_lens", "int32", "int64"),
        dtype("request_indices", "int32", "int64"),
        contiguous("seq_lens", "request_indices"),
        axis("B").at_most(2**24),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; about 12 bytes per row; fewer than 2**31 rows",
)

_MLA_SCHED_META = Kernel(
    "mla_sched_meta",
    variant="walk_over_requests",
    target="dspark_ops_triton.mla_schedule:mla_sched_meta",
    prepare="dspark_ops_triton.mla_schedule:prepare_mla_sched_meta",
    arch=any_gpu(),
    region=[
        *(dtype(name, "int32") for name in ("lengths", "meta", "num_splits", "extra_lengths")),
        contiguous("lengths", "meta", "num_splits", "extra_lengths"),
        option("form").one_of("sparse", "dense"),
        axis("B").between(1, 4096),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch of one program: sequential over requests only; fewer than 2**30 blocks in all",
)

KERNELS = (_DRAFT_INPUTS, _VERIFY_INPUTS, _EXPAND_UNIFORM, _MLA_SCHED_META)

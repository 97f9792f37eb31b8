"""The kernels of the verify tail, greedy and sampled."""

from __future__ import annotations

from dspark_ops.api import (
    Constraint,
    Kernel,
    RankClass,
    Traits,
    any_gpu,
    axis,
    contiguous,
    dtype,
    elements,
    unit_last_stride,
)
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_TAIL_REGION: tuple[Constraint, ...] = (
    dtype("candidates", "int64"),
    dtype("logits", "float32"),
    dtype("prefix_lens", "int32", "int64"),
    dtype("verify_lens", "int32", "int64"),
    *unit_last_stride("candidates", "logits"),
    *contiguous("prefix_lens", "verify_lens"),
    axis("W").between(1, 64),
    axis("V").between(1, 2**30),
    elements("B*W", below=2**31),
)

_TAIL = Kernel(
    "accept_tail",
    variant="one_launch",
    target="dspark_ops_triton.accept_tail:accept_tail",
    prepare="dspark_ops_triton.accept_tail:prepare_accept_tail",
    arch=any_gpu(),
    region=_TAIL_REGION,
    rank=RankClass.FUSED,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch from logits to tokens; reads the logits once; 64-bit offsets",
)

_FORCED = Kernel(
    "accept_forced",
    variant="one_launch",
    target="dspark_ops_triton.accept_forced:accept_forced",
    prepare="dspark_ops_triton.accept_forced:prepare_accept_forced",
    arch=any_gpu(),
    region=[
        *_TAIL_REGION,
        dtype("accept_lens", "int32"),
        dtype("bonus", "int64"),
        contiguous("bonus"),
    ],
    rank=RankClass.FUSED,
    traits=Traits(graph_safe=True, batch_invariant=True, nan="first", ties="lowest", pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; reads the logits once, not at all where the bonus is given; 64-bit offsets",
)

_GREEDY = Kernel(
    "accept_greedy",
    variant="one_launch",
    target="dspark_ops_triton.accept_greedy:accept_greedy",
    prepare="dspark_ops_triton.accept_greedy:prepare_accept_greedy",
    arch=any_gpu(),
    region=[
        dtype("candidates", "int64"),
        dtype("target_ids", "int64"),
        dtype("verify_lens", "int32", "int64"),
        unit_last_stride("candidates"),
        contiguous("target_ids", "verify_lens"),
        axis("W").between(1, 64),
        axis("B").at_most(2**31 - 16),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; 16 bytes per row and 24 per request",
)

_SAMPLED = Kernel(
    "accept_sampled",
    variant="two_launches",
    target="dspark_ops_triton.accept_sampled:accept_sampled",
    prepare="dspark_ops_triton.accept_sampled:prepare_accept_sampled",
    arch=any_gpu(),
    region=[
        dtype("candidates", "int64"),
        dtype("target_probs", "float32"),
        dtype("draft_probs", "float32"),
        dtype("verify_lens", "int32", "int64"),
        unit_last_stride("candidates", "target_probs", "draft_probs"),
        contiguous("accept_uniforms", "final_uniforms", "verify_lens"),
        axis("G").between(1, 63),
        axis("V").between(1, 2**20),
        axis("B").at_most(2**24),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="2 launches; of both laws the rows that decide, and a tile once more; float64 sums; 64-bit offsets",
)

KERNELS = (_TAIL, _FORCED, _GREEDY, _SAMPLED)

"""The kernels of a step beside attention: router, hyper-connections, verify tail, candidates.

Where a note says "portable body", the kernel is the one of the portable plugin with tiles, warps and early launch of
these devices.
"""

from __future__ import annotations

from dataclasses import replace

from dspark_ops.api import Kernel, RankClass, Traits, axis, contiguous, dtype, elements, option, unit_last_stride
from dspark_ops_nvidia_sm10x.kernels_base import ARCH, EARLY_ROWS, INTERPRETED, TRITON

_GATE = Kernel(
    "moe_gate_topk",
    variant="early_unless_small",
    target="dspark_ops_nvidia_sm10x.gate:moe_gate_topk",
    prepare="dspark_ops_nvidia_sm10x.gate:prepare_moe_gate_topk",
    arch=ARCH,
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
    rank=RankClass.FUSED,
    traits=replace(EARLY_ROWS, nan="highest", ties="lowest"),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch; portable body; set up early (PDL), but for the target's router of up to 8 rows on sm_103: the "
    "source of N2 measured that to cost, since it crowds the work beside it; tile sizes reasoned, not measured",
)

_GATE_PACKED = replace(
    _GATE,
    op="moe_gate_topk_packed",
    target="dspark_ops_nvidia_sm10x.gate:moe_gate_topk_packed",
    prepare="dspark_ops_nvidia_sm10x.gate:prepare_moe_gate_topk_packed",
    note="1 launch, packed words included, which were a launch per layer before S0.2; otherwise as moe_gate_topk",
)

_COMBINE_NORM_MXFP8 = Kernel(
    "mhc_combine_norm_mxfp8",
    variant="row_program",
    target="dspark_ops_nvidia_sm10x.streams:mhc_combine_norm_mxfp8",
    prepare="dspark_ops_nvidia_sm10x.streams:prepare_mhc_combine_norm_mxfp8",
    arch=ARCH,
    region=[
        dtype("x", "bfloat16"),
        dtype("pre", "float32", "bfloat16"),
        dtype("weight", "bfloat16"),
        unit_last_stride("x", "pre"),
        contiguous("weight"),
        axis("N").one_of(4),
        axis("H").between(32, 8192),
        axis("H").multiple_of(32),
        axis("T").at_most(2**30),
    ],
    rank=RankClass.FUSED,
    traits=EARLY_ROWS,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, a program per token, which clear the padding, too; portable body with 256 threads to a token, set "
    "up early (PDL), which reads the weight before its wait: the kernel just before must not write it; tile sizes "
    "reasoned, not measured",
)

_POST_COMBINE_NORM = Kernel(
    "mhc_post_combine_norm",
    variant="row_program",
    target="dspark_ops_nvidia_sm10x.streams:mhc_post_combine_norm",
    prepare="dspark_ops_nvidia_sm10x.streams:prepare_mhc_post_combine_norm",
    arch=ARCH,
    region=[
        dtype("x", "bfloat16"),
        dtype("residual", "bfloat16"),
        *(dtype(name, "float32") for name in ("post", "comb", "pre")),
        dtype("weight", "bfloat16"),
        contiguous("x", "residual", "post", "comb", "pre", "weight"),
        axis("N").one_of(4),
        axis("H").between(8, 8192),
        axis("H").multiple_of(8),
        axis("T").at_most(2**31 - 1),
    ],
    rank=RankClass.FUSED,
    traits=EARLY_ROWS,
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch, a program per token; portable body with 512 threads to a token, set up early (PDL), which reads "
    "the weight before its wait: the kernel just before must not write it; folding the update into "
    "the norm makes the chain of dependent work longer: S0 left it out (docs/rejected.md)",
)

_SCHED_META = Kernel(
    "mla_sched_meta",
    variant="walk_over_requests",
    target="dspark_ops_nvidia_sm10x.schedule:mla_sched_meta",
    prepare="dspark_ops_nvidia_sm10x.schedule:prepare_mla_sched_meta",
    arch=ARCH,
    region=[
        *(dtype(name, "int32") for name in ("lengths", "meta", "num_splits", "extra_lengths")),
        contiguous("lengths", "meta", "num_splits", "extra_lengths"),
        option("form").one_of("sparse", "dense"),
        axis("B").between(1, 4096),
    ],
    rank=RankClass.FUSED,
    traits=Traits(graph_safe=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch of one program: requests in turn, parts, idle ones among them, side by side; portable body, set up "
    "early (PDL), compiled for FlashMLA's numbers of parts on these devices (N4.1)",
)

_ACCEPT_TAIL = Kernel(
    "accept_tail",
    variant="one_launch",
    target="dspark_ops_nvidia_sm10x.verify_tail:accept_tail",
    prepare="dspark_ops_nvidia_sm10x.verify_tail:prepare_accept_tail",
    arch=ARCH,
    region=[
        dtype("candidates", "int64"),
        dtype("logits", "float32"),
        dtype("prefix_lens", "int32", "int64"),
        dtype("verify_lens", "int32", "int64"),
        unit_last_stride("candidates", "logits"),
        contiguous("prefix_lens", "verify_lens"),
        axis("W").between(1, 64),
        axis("V").between(1, 2**30),
        elements("B*W", below=2**31),
    ],
    rank=RankClass.FUSED,
    traits=replace(EARLY_ROWS, nan="first", ties="lowest"),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch from logits to tokens; portable body, rows cut as for argmax_rows here, set up early (PDL)",
)

_CANDIDATES = Kernel(
    "candidate_blocks",
    variant="two_launches",
    target="dspark_ops_nvidia_sm10x.candidates:candidate_blocks",
    prepare="dspark_ops_nvidia_sm10x.candidates:prepare_candidate_blocks",
    arch=ARCH,
    region=[
        dtype("logits", "float32", "bfloat16", "float16"),
        unit_last_stride("logits", "published"),
        contiguous("seq_lens"),
        option("block_size").one_of(*(2**power for power in range(12))),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.FUSED,
    traits=replace(EARLY_ROWS, nan="dropped", ties="lowest"),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="2 launches, 1 in a consumer; portable body with programs of 2048 entries and 8 warps, set up early (PDL)",
)

_CANDIDATES_AS_TORCH = replace(
    _CANDIDATES,
    variant="two_launches_as_torch",
    traits=replace(_CANDIDATES.traits, ties="torch"),
    note="the same kernel for callers that ask for torch's set: on CUDA devices torch.topk keeps the lowest of equal "
    "scores, as the authors of N10.4 saw in all 336 rows that they tried; torch does not promise it",
)

KERNELS = (
    _GATE, _GATE_PACKED, _COMBINE_NORM_MXFP8, _POST_COMBINE_NORM, _SCHED_META, _ACCEPT_TAIL, _CANDIDATES,
    _CANDIDATES_AS_TORCH,
)  # fmt: skip

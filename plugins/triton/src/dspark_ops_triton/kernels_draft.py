"""The kernels of a draft block: its tokens, their confidence, and how many of them are verified."""

from __future__ import annotations

from dspark_ops.api import (
    Kernel,
    RankClass,
    Traits,
    any_gpu,
    axis,
    contiguous,
    dtype,
    option,
    unit_last_stride,
)
from dspark_ops_triton.kernels_base import INTERPRETED, TRITON

_MARKOV = Kernel(
    "markov_block",
    variant="vanilla_slot_launches",
    target="dspark_ops_triton.markov:markov_block",
    prepare="dspark_ops_triton.markov:prepare_markov_block",
    arch=any_gpu(),
    region=[
        option("kind").is_("vanilla"),
        dtype("base", "float32"),
        dtype("anchor", "int64"),
        dtype("embed", "bfloat16", "float32"),
        dtype("head", "bfloat16", "float32"),
        dtype("uniforms", "float32"),
        dtype("temperature", "float32"),
        unit_last_stride("base"),
        contiguous("anchor", "embed", "head", "uniforms", "temperature"),
        axis("M").between(1, 512),
        axis("V").between(1, 2**30),
        axis("R").at_most(2**20),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, nan="first", ties="lowest"),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="G launches, 2 * G with a temperature; reads head and logits once per draft and 64 rows; 64-bit offsets",
)

_CONFIDENCE = Kernel(
    "confidence_survival",
    variant="request_program",
    target="dspark_ops_triton.confidence:confidence_survival",
    prepare="dspark_ops_triton.confidence:prepare_confidence_survival",
    arch=any_gpu(),
    region=[
        dtype("hidden", "bfloat16"),
        dtype("previous", "int64"),
        dtype("embed", "bfloat16", "float32"),
        *(dtype(name, "float32") for name in ("weight", "bias", "temperatures")),
        unit_last_stride("hidden"),
        contiguous("previous", "embed", "weight", "bias", "temperatures"),
        axis("G").between(1, 16),
        axis("D").between(1, 16384),
        axis("M").between(1, 512),
        axis("R").at_most(2**31 - 1),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, batch_invariant=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="2 launches: a program per slot, then the products; 2*D + 2*M bytes per draft and its head; 64-bit offsets",
)

_SCHEDULE = Kernel(
    "schedule_prefix",
    variant="sorted_drafts",
    target="dspark_ops_triton.schedule:schedule_prefix",
    prepare="dspark_ops_triton.schedule:prepare_schedule_prefix",
    arch=any_gpu(),
    region=[
        dtype("survival", "float32"),
        dtype("steps_per_second", "float64"),
        dtype("budget", "int32"),
        contiguous("survival", "steps_per_second", "budget"),
        option("mode").one_of("early_stop", "global", "budget"),
        axis("G").between(1, 8),
        axis("R").at_most(256),
        axis("L").between(1, 2**30),
    ],
    rank=RankClass.PORTABLE,
    traits=Traits(graph_safe=True, pdl=True),
    evidence=INTERPRETED,
    packages=(TRITON,),
    note="1 launch of one program, which sorts; sums of survivals are exact in any order up to 512 expected tokens",
)

KERNELS = (_MARKOV, _CONFIDENCE, _SCHEDULE)

"""The kernels of AITER: chosen only where it has the function, imported only when chosen, and checked by nobody here.

They are fused kernels of the vendor and have the class of such. Within it evidence decides, so that this plugin's own
come first: to use one of these, pin it, or run it here and record that.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspark_ops.api import (
    Constraint,
    Kernel,
    Package,
    RankClass,
    axis,
    contiguous,
    dtype,
    elements,
    layout,
    option,
)
from dspark_ops_amd_gfx950.kernels_base import ARCH, TRITON

#: From source: the wheel on PyPI lacks most functions. Without the variable the build replaces the installed Triton.
_INSTALL = (
    "git clone --recursive https://github.com/ROCm/aiter && cd aiter && "
    "AITER_USE_SYSTEM_TRITON=1 python3 setup.py develop"
)  # fmt: skip
#: An unrelated distribution, aiter, has a module of this name.
AITER = Package("aiter", "amd-aiter", attributes=("ops", "jit"), install=_INSTALL)
#: AITER accepts 0.2.4 and newer; from 0.5 on, its own look at FlyDSL fails.
FLYDSL = Package("flydsl", "flydsl", ">=0.2.4,<0.5", install="pip install 'flydsl==0.3.1'")


def _adapter(
    op: str, variant: str, needed: Sequence[Package], region: Sequence[Constraint | tuple[Constraint, ...]], note: str
) -> Kernel:  # fmt: skip
    calls = "dspark_ops_amd_gfx950.aiter_calls:"
    return Kernel(
        op, variant=variant, target=f"{calls}{op}", prepare=f"{calls}prepare_{op}", arch=ARCH, region=region,
        rank=RankClass.FUSED, packages=(AITER, *needed),
        note=f"{note}; compiled by AITER at the first call, so not in a graph before; never run by us",
    )  # fmt: skip


KERNELS = (
    _adapter(
        "moe_sort",
        "aiter",
        (Package("aiter.fused_moe", "amd-aiter", attributes=("moe_sorting",), install=_INSTALL),),
        [
            dtype("topk_ids", "int32"),
            dtype("topk_weights", "float32"),
            contiguous("topk_ids", "topk_weights", "expert_mask", "num_valid"),
            option("dedupe").is_(False),
            option("block_size").one_of(32, 64, 128),
            axis("K").between(1, 127),
            axis("M").between(1, 2**24 - 1),
        ],
        "AITER's sort of routed pairs, any number of rows",
    ),
    _adapter(
        "moe_gate_topk",
        "aiter",
        (TRITON, Package("aiter", "amd-aiter", attributes=("topk_gating",), install=_INSTALL)),
        [
            dtype("logits", "float32", "bfloat16"),
            dtype("bias", "float32", "bfloat16"),
            contiguous("logits", "bias", "num_valid"),
            option("numerics").is_("aiter"),
            axis("E").one_of(384),
            option("top_k").one_of(*range(1, 17)),
        ],
        "AITER's gate with its own numerics and order of equal keys; padded rows are a second launch, of ours",
    ),
    _adapter(
        "mhc_post",
        "aiter",
        (Package("aiter", "amd-aiter", attributes=("mhc_post",), install=_INSTALL),),
        [
            dtype("x", "bfloat16"),
            dtype("residual", "bfloat16"),
            contiguous("x", "residual", "post", "comb"),
            axis("N").one_of(4),
            axis("H").one_of(5120),
        ],
        "AITER's update of the stream; whether it rounds in the contract's order has not been seen",
    ),
    _adapter(
        "varctx_schedule",
        "flydsl",
        (FLYDSL, Package("aiter.ops.flydsl", "amd-aiter", attributes=("flydsl_pa_mqa_logits_fp4",), install=_INSTALL)),
        [contiguous("context_lens"), axis("B").between(1, 4096)],
        "the schedule beside AITER's FlyDSL logits",
    ),
    _adapter(
        "paged_mqa_logits_fp4",
        "flydsl",
        (FLYDSL, Package("aiter.ops.flydsl", "amd-aiter", attributes=("flydsl_pa_mqa_logits_fp4",), install=_INSTALL)),
        [
            contiguous("q", "q_scale", "kv", "kv_scale", "block_tables", "weights", "context_lens"),
            dtype("weights", "bfloat16"),
            layout("kv", "index_k_split"),
            layout("kv_scale", "index_k_split"),
            axis("H").between(16, 128),
            axis("H").multiple_of(16),
            elements("B*N", 2**24),
        ],
        "AITER's FlyDSL logits after a copy of the page table with more columns; every width of that table is a build",
    ),
)

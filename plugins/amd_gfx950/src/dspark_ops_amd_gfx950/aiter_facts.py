"""What is known of AITER's functions: their names, the parameters that are relied on, and where that was read.

Its version says little: the wheel on PyPI lacks nearly all of these, builds from source carry versions of their own,
and signatures change between commits. So a function is taken by its name and by the parameters that it has.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Function:
    """One function of AITER.

    Attributes:
        module: where it is imported from.
        name: its name there.
        positional: its first parameters, in order, which are passed by position.
        named: further parameters that are passed by name.
        source: where this was read.
    """

    module: str
    name: str
    positional: tuple[str, ...]
    named: tuple[str, ...] = ()
    source: str = "ROCm/aiter e4048607, 22 Aug 2026; A20.3"


MOE_SORTING = Function(
    "aiter.fused_moe", "moe_sorting",
    ("topk_ids", "topk_weights", "num_experts", "model_dim", "moebuf_dtype", "block_size", "expert_mask",
     "num_local_tokens"),
    ("accumulate",),
)  # fmt: skip
TOPK_GATING = Function(
    "aiter", "topk_gating",
    ("topk_weights", "topk_indices", "gating_output", "correction_bias", "need_renorm", "routed_scaling_factor",
     "score_func"),
)  # fmt: skip
MHC_POST = Function("aiter", "mhc_post", ("out", "x", "residual", "post_layer_mix", "comb_res_mix"))
VARCTX_SCHEDULE = Function(
    "aiter.ops.flydsl.kernels.mqa_logits.pa_mqa_logits_fp4", "compute_varctx_schedule",
    ("context_lens", "block_k", "parallel_unit_num", "max_seq_len", "next_n"),
)  # fmt: skip
PAGED_LOGITS = Function(
    "aiter.ops.flydsl", "flydsl_pa_mqa_logits_fp4",
    ("q_fp4", "q_scale", "kv_cache", "kv_scale", "block_tables", "weights", "context_lens", "max_seq_len"),
    ("weight_scale", "next_n", "block_k", "kv_block_size", "cta_info", "total_ctas"),
)  # fmt: skip
#: Known, and used by no kernel: no contract is a plain RMS norm into a tensor that is given.
RMSNORM = Function("aiter", "rmsnorm", ("out", "input", "weight", "epsilon"))

#: Functions that a version has with fewer named parameters than are relied on: they are refused there. Read in the
#: wheel on PyPI of November 2025, which has none of the others.
OLDER = {"0.1.7.post2.dev18": {"moe_sorting": ("accumulate",)}}

FUNCTIONS = (MOE_SORTING, TOPK_GATING, MHC_POST, VARCTX_SCHEDULE, PAGED_LOGITS, RMSNORM)


def difference(function: Function, signature: inspect.Signature) -> str:
    """Return how a signature differs from what is relied on, or an empty text."""
    names = list(signature.parameters)
    count = len(function.positional)
    if tuple(names[:count]) != function.positional:
        return f"wanted it to begin with {', '.join(function.positional)}, got {', '.join(names[:count])}"
    missing = [name for name in function.named if name not in names]
    return f"wanted parameters {', '.join(missing)} too, got {', '.join(names)}" if missing else ""


def load(function: Function) -> Callable[..., Any]:
    """Import AITER and return one of its functions.

    The import starts ``rocminfo`` and may raise anything where there is no ROCm device; the planner looks at it in
    another process first.

    Raises:
        RuntimeError: the module or the function is missing, or its parameters are others.
    """
    where = f"{function.module}.{function.name}"
    hint = "take another kernel, or an AITER that has it so"
    try:
        found = getattr(importlib.import_module(function.module), function.name)
    except (AttributeError, ImportError, KeyError, RuntimeError) as error:
        raise RuntimeError(f"{where}: wanted AITER with it, got {type(error).__name__}: {error}; {hint}") from error
    if text := difference(function, inspect.signature(found)):
        raise RuntimeError(f"{where}: {text} (read in {function.source}); {hint}")
    return found  # type: ignore[no-any-return]

"""Kernels of AITER behind the contracts of dspark-ops. AITER is imported when one of them is prepared or called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dspark_ops_amd_gfx950 import aiter_facts
from dspark_ops_triton.blocks import padded_choices
from dspark_ops_triton.blocks.cutting import Cut

FILL = Cut(items=64, warps=1)
PAGE = 64
_RENORM_EPS = 1e-20


def _moe_sort(
    function: Callable[..., Any], topk_ids: Tensor, topk_weights: Tensor, experts: int, model_dim: int,
    block_size: int = 32, buffer_dtype: str = "bfloat16", accumulate: bool = False, expert_mask: Tensor | None = None,
    num_valid: Tensor | None = None, dedupe: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    if dedupe:
        raise ValueError("moe_sort by AITER: wanted dedupe False, got True: what it does with repeated ids differs")
    dtype = getattr(torch, buffer_dtype)
    made = function(
        topk_ids, topk_weights, experts, model_dim, dtype, block_size, expert_mask, num_valid, accumulate=accumulate
    )
    return tuple(made[:5])


def _moe_gate_topk(
    function: Callable[..., Any], logits: Tensor, bias: Tensor, top_k: int, routed_scaling: float = 1.5,
    renorm_eps: float = _RENORM_EPS, pad_id: int = -1, num_valid: Tensor | None = None, bias_alt: Tensor | None = None,
    input_ids: Tensor | None = None, alt_token_id: int = -1, numerics: str = "log1p",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if numerics != "aiter" or bias_alt is not None or renorm_eps != _RENORM_EPS:
        got = f"numerics {numerics!r}, renorm_eps {renorm_eps} and {'a' if bias_alt is not None else 'no'} second bias"
        raise ValueError(f"moe_gate_topk by AITER: wanted numerics aiter, renorm_eps 1e-20, no second bias, got {got}")
    weights = torch.empty(logits.shape[0], top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(logits.shape[0], top_k, dtype=torch.int32, device=logits.device)
    if logits.shape[0]:
        function(weights, ids, logits, bias, True, float(routed_scaling), "sqrtsoftplus")
        if num_valid is not None:
            padded_choices.fill_padded_topk(FILL, ids, weights, num_valid, pad_id)
    return weights, ids


def _mhc_post(function: Callable[..., Any], x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    out = torch.empty_like(residual)
    if x.shape[0]:
        function(out, x, residual, post.unsqueeze(-1), comb)
    return out


def _varctx_schedule(
    function: Callable[..., Any], context_lens: Tensor, block_k: int, programs: int, max_seq_len: int, next_n: int = 1
) -> tuple[Tensor, Tensor]:
    safe, records, _ = function(context_lens, block_k, programs, max_seq_len, next_n)
    return safe, records


def _paged_mqa_logits_fp4(
    function: Callable[..., Any], q: Tensor, q_scale: Tensor, kv: Tensor, kv_scale: Tensor, block_tables: Tensor,
    weights: Tensor, context_lens: Tensor, max_seq_len: int, weight_scale: float = 1.0, cta_info: Tensor | None = None,
    block_k: int = 256,
) -> Tensor:  # fmt: skip
    # It looks two page ids ahead: the table is padded with page 0, which exists, to whole fours and one more.
    width = block_tables.shape[1]
    table = torch.nn.functional.pad(block_tables, (0, -(-width // 4) * 4 + 4 - width))
    schedule = {} if cta_info is None else {"cta_info": cta_info, "total_ctas": cta_info.shape[0]}
    made: Tensor = function(
        q, q_scale, kv, kv_scale, table, weights, context_lens, max_seq_len,
        weight_scale=weight_scale, next_n=q.shape[1], block_k=block_k, kv_block_size=PAGE, **schedule,
    )  # fmt: skip
    return made


class Adapter:
    """One operator by a function of AITER, which is imported and checked at the first call unless it was prepared."""

    __slots__ = ("_body", "_fact")

    def __init__(self, fact: aiter_facts.Function, body: Callable[..., Any]) -> None:
        self._fact, self._body = fact, body

    @property
    def __signature__(self) -> inspect.Signature:
        """The contract's signature."""
        return inspect.signature(partial(self._body, None))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return what the operator returns; arguments are those of its contract."""
        return self._body(aiter_facts.load(self._fact), *arguments, **named)

    def prepare(self, device: Any, site: Any, rows: Sequence[int]) -> Callable[..., Any]:
        """Return the operator with the function imported and its parameters checked.

        AITER compiles at the first call (its C++ functions for minutes): call it once before a graph is captured.
        """
        return partial(self._body, aiter_facts.load(self._fact))


#: ``moe_sort`` (A4) by ``aiter.fused_moe.moe_sorting``.
moe_sort = Adapter(aiter_facts.MOE_SORTING, _moe_sort)
prepare_moe_sort = moe_sort.prepare
#: ``moe_gate_topk`` with numerics aiter (A7) by ``aiter.topk_gating``; padded rows by a second launch of ours.
moe_gate_topk = Adapter(aiter_facts.TOPK_GATING, _moe_gate_topk)
prepare_moe_gate_topk = moe_gate_topk.prepare
#: ``mhc_post`` (N3.5) by ``aiter.mhc_post``.
mhc_post = Adapter(aiter_facts.MHC_POST, _mhc_post)
prepare_mhc_post = mhc_post.prepare
#: ``varctx_schedule`` (A17a) by FlyDSL's ``compute_varctx_schedule``.
varctx_schedule = Adapter(aiter_facts.VARCTX_SCHEDULE, _varctx_schedule)
prepare_varctx_schedule = varctx_schedule.prepare
#: ``paged_mqa_logits_fp4`` (A17b) by ``aiter.ops.flydsl.flydsl_pa_mqa_logits_fp4``.
paged_mqa_logits_fp4 = Adapter(aiter_facts.PAGED_LOGITS, _paged_mqa_logits_fp4)
prepare_paged_mqa_logits_fp4 = paged_mqa_logits_fp4.prepare

"""The kernels of SGLang 0.5.23 as peers.

Kernels in CUDA C++ are compiled at their first call, by nvcc. ``sglang_source`` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dspark_ops.bench.peers import Adapter, Peer, UnfitError
from dspark_ops.contracts.contract import Contract

from . import sglang_attention as attention
from . import sglang_source
from .sglang_source import kernel

VERSION = "sglang 0.5.23"

Inputs = Mapping[str, Any]
Call = Callable[[], Any]


def peer() -> Peer:
    """Return SGLang's kernels."""
    missing = "its kernels need a GPU" if not torch.cuda.is_available() else sglang_source.missing()
    return Peer("sglang", VERSION, _adapter, missing)


def _adapter(contract: Contract) -> Adapter | str:
    return ADAPTERS.get(contract.name) or WITHOUT.get(contract.name, "it has no kernel of this operator")


def argmax_rows(inputs: Inputs) -> Call:
    function = kernel("speculative.row_argmax", "row_argmax")
    x = inputs["x"]
    return lambda: function(x)


def _tail_buffers(candidates: torch.Tensor, prefix: torch.Tensor) -> dict[str, torch.Tensor]:
    batch, device = len(candidates), candidates.device
    return {
        "correct_len_out": torch.empty(batch, dtype=torch.int32, device=device),
        "bonus_out": torch.empty(batch, dtype=torch.int64, device=device),
        "cap_trim_lens_out": torch.empty(batch, dtype=torch.int32, device=device),
        "commit_lens_out": torch.empty(batch, dtype=torch.int32, device=device),
        "new_seq_lens_out": torch.empty_like(prefix),
        "out_tokens_out": torch.empty_like(candidates),
    }


def accept_greedy(inputs: Inputs) -> Call:
    if inputs.get("verify_lens") is not None:
        raise UnfitError("it has no cap on the accepted length")
    function = kernel("speculative.dspark.static_accept_tail", "static_accept_tail")
    candidates, targets = inputs["candidates"], inputs["target_ids"].flatten()
    prefix = torch.zeros(len(candidates), dtype=torch.int64, device=candidates.device)
    full = torch.full_like(prefix, candidates.shape[1])
    gate = torch.ones(1, dtype=torch.int32, device=candidates.device)
    out = _tail_buffers(candidates, prefix)

    def call() -> Any:
        function(
            candidates=candidates, target_predict=targets, seq_lens=prefix, verify_lens=full, gate=gate, **out
        )  # fmt: skip
        return out

    return call


def accept_tail(inputs: Inputs) -> Call:
    argmax = kernel("speculative.row_argmax", "row_argmax")
    function = kernel("speculative.dspark.static_accept_tail", "static_accept_tail")
    candidates, logits, prefix = inputs["candidates"], inputs["logits"], inputs["prefix_lens"]
    full = torch.full_like(prefix, candidates.shape[1])
    gate = torch.ones(1, dtype=torch.int32, device=candidates.device)
    out = _tail_buffers(candidates, prefix)

    def call() -> Any:
        targets = argmax(logits)
        function(
            candidates=candidates, target_predict=targets, seq_lens=prefix, verify_lens=full, gate=gate, **out
        )  # fmt: skip
        return out

    return call


def _accepted(returned: Any, inputs: Inputs) -> dict[str, Any]:
    names = {
        "correct_len": "correct_len_out",
        "bonus": "bonus_out",
        "cap_trim": "cap_trim_lens_out",
        "commit_lens": "commit_lens_out",
        "new_seq_lens": "new_seq_lens_out",
        "out_tokens": "out_tokens_out",
    }
    return {name: returned[theirs] for name, theirs in names.items()}


def mhc_combine(inputs: Inputs) -> Call:
    function = kernel("layernorm.mhc", "mhc_combine")
    x, pre = inputs["x"], inputs["pre"]
    return lambda: function(x, pre, pre.shape[1], torch.bfloat16)


def mhc_combine_norm(inputs: Inputs) -> Call:
    function = kernel("layernorm.hc_combine_norm", "hc_combine_norm")
    x, pre, weight, eps = (inputs[name] for name in ("x", "pre", "weight", "eps"))
    return lambda: function(x, pre, weight, eps)


def mhc_combine_norm_mxfp8(inputs: Inputs) -> Call:
    function = kernel("layernorm.hc_combine_norm", "hc_combine_norm_mxfp8")
    x, pre, weight, eps = (inputs[name] for name in ("x", "pre", "weight", "eps"))
    return lambda: function(x, pre, weight, eps)


def mhc_post(inputs: Inputs) -> Call:
    function = kernel("layernorm.mhc_post_split_h", "mhc_post_split_h")
    x, residual, post, comb = (inputs[name] for name in ("x", "residual", "post", "comb"))
    return lambda: function(x, residual, post, comb)


def mhc_mix_sinkhorn(inputs: Inputs) -> Call:
    function = kernel("layernorm.mhc", "hc_mix_stats_sinkhorn")
    x, fn, scale, base = (inputs[name] for name in ("x", "fn", "scale", "base"))
    iterations, rms_eps, hc_eps = inputs["iterations"], inputs["rms_eps"], inputs["hc_eps"]
    return lambda: function(x, fn, scale, base, 4, iterations, rms_eps, hc_eps)


def _gate(inputs: Inputs, packed: torch.Tensor | None) -> Call:
    if inputs["numerics"] != "log1p" or inputs.get("num_valid") is not None or inputs.get("bias_alt") is not None:
        raise UnfitError("adapted without padded rows, second bias and other numerics")
    function = kernel("moe.moe_fused_gate", "moe_fused_gate")
    logits, bias, top_k = inputs["logits"], inputs["bias"], inputs["top_k"]
    options = {
        "scoring_func": "sqrtsoftplus", "renormalize": True, "routed_scaling_factor": inputs["routed_scaling"],
        "apply_routed_scaling_factor_on_output": True, "renormalize_epsilon": inputs["renorm_eps"],
        "sqrtsoftplus_log1p": True, "packed_out": packed,
    }  # fmt: skip

    def call() -> Any:
        weights, ids = function(logits, bias, top_k, **options)
        return (weights, ids) if packed is None else (weights, ids, packed)

    return call


def moe_gate_topk(inputs: Inputs) -> Call:
    return _gate(inputs, None)


def moe_gate_topk_packed(inputs: Inputs) -> Call:
    logits = inputs["logits"]
    return _gate(inputs, torch.empty(len(logits), inputs["top_k"], dtype=torch.int32, device=logits.device))


def pack_topk_ids(inputs: Inputs) -> Call:
    function = kernel("lora.moe.trtllm_lora_temp.topk_pack", "fused_pack_topk")
    ids, weights = inputs["ids"], inputs["weights"]
    return lambda: function(ids, weights)


def fill_padded_topk(inputs: Inputs) -> Call:
    function = kernel("moe.fill_padded_rows", "_fill_padded_rows")
    ids, weights, valid, pad = inputs["ids"], inputs["weights"], inputs["num_valid"], inputs["pad_id"]

    def call() -> None:
        function(ids, valid, pad)
        function(weights, valid, 0.0)

    return call


def silu_mul_clamp(inputs: Inputs) -> Call:
    function = kernel("activation.silu_and_mul_clamp", "silu_and_mul_clamp")
    gate_up, limit = inputs["gate_up"], inputs["limit"]
    shape = (gate_up.shape[0], gate_up.shape[1] // 2)

    def call() -> torch.Tensor:
        out = torch.empty(shape, dtype=gate_up.dtype, device=gate_up.device)
        function(gate_up, out, limit)
        return out

    return call


def mxfp8_quantize(inputs: Inputs) -> Call:
    if inputs["layout"] != "sf_128x4":
        raise UnfitError("adapted for swizzled scales")
    function = kernel("quantization.mxfp8_swizzled_triton", "mxfp8_quantize_swizzled")
    x = inputs["x"]
    return lambda: function(x)


ADAPTERS: dict[str, Adapter] = {
    "argmax_rows": Adapter(argmax_rows, note="row_argmax, 2 launches"),
    "accept_greedy": Adapter(accept_greedy, _accepted, note="static_accept_tail, which does the bookkeeping too"),
    "accept_tail": Adapter(accept_tail, _accepted, note="row_argmax and static_accept_tail, without the gated lengths"),
    "mhc_combine": Adapter(mhc_combine),
    "mhc_combine_norm": Adapter(mhc_combine_norm),
    "mhc_combine_norm_mxfp8": Adapter(mhc_combine_norm_mxfp8),
    "mhc_post": Adapter(mhc_post, note="mhc_post_split_h"),
    "mhc_mix_sinkhorn": Adapter(mhc_mix_sinkhorn, note="hc_mix_stats_sinkhorn"),
    "moe_gate_topk": Adapter(moe_gate_topk, note="moe_fused_gate"),
    "moe_gate_topk_packed": Adapter(moe_gate_topk_packed, note="moe_fused_gate"),
    "pack_topk_ids": Adapter(pack_topk_ids),
    "fill_padded_topk": Adapter(fill_padded_topk, note="2 launches"),
    "q_rope_store": Adapter(attention.q_rope_store, note="fused_q_norm_rope without a norm"),
    "k_norm_rope_store": Adapter(attention.k_norm_rope_store, note="fused_k_norm_rope_flashmla"),
    "compress_c1": Adapter(attention.compress_c1, note="c1_decode_norm_rope_store"),
    "compress_c2": Adapter(attention.compress_c2, attention.complete_pairs, note="c2_decode_norm_rope_store"),
    "index_k_store": Adapter(attention.index_k_store, note="index_k_rope_pack"),
    "index_scores": Adapter(
        attention.index_scores, note="fp4_index_logits_paged, which reads a table of slots, not of pages"
    ),
    "candidate_lengths": Adapter(
        attention.candidate_lengths,
        lambda returned, inputs: {"block_lens": returned[0]},
        note="candidate_row_lens, without the page table",
    ),
    "mla_sched_meta": Adapter(attention.mla_sched_meta),
    "silu_mul_clamp": Adapter(silu_mul_clamp),
    "mxfp8_quantize": Adapter(mxfp8_quantize, note="mxfp8_quantize_swizzled"),
}

#: Why an operator has no adapter, where there is more to say than that SGLang has no kernel of it.
WITHOUT = {
    "accept_forced": "its forced length is one number for all requests",
    "rope_wo_a": "its kernel is for SM100 only",
    "rope_wo_a_mxfp8": "its kernel is for SM100 only",
    "mhc_post_combine_norm": "its kernel is for AMD GPUs only",
    "mhc_post_combine": "its kernel is for AMD GPUs only",
    "moe_sort": "its small sort patches AITER, for AMD GPUs only",
    "engram_gather": "its gather is for AMD GPUs only",
    "paged_mqa_logits_fp4": "its kernel is DeepGEMM's, for SM100, or for AMD GPUs",
    "finish_topk_pages": "its kernel reads a table of tokens per request and has no page table",
    "filter_topk_pages": "its kernel reads a table of tokens per request and has no page table",
    "markov_block": "its chain samples with the server's own random state",
    "accept_sampled": "its kernel draws from the server's own random state",
    "sparse_mla_decode": "it calls FlashMLA: see the peer of that name",
}

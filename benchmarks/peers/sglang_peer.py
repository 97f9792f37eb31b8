"""The kernels of SGLang 0.5.23 as peers.

Found as the installed package ``sglang``, or as its wheel's ``sglang/kernels`` and the runtime files that they import,
unpacked at ``.peers/sglang`` of the working directory. Kernels in CUDA C++ are compiled at their first call, by nvcc.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dspark_ops.bench.peers import Adapter, Peer, UnfitError
from dspark_ops.contracts.contract import Contract

VERSION = "sglang 0.5.23"
UNPACKED = Path(".peers/sglang")

Inputs = Mapping[str, Any]
Call = Callable[[], Any]


def peer() -> Peer:
    """Return SGLang's kernels."""
    if not torch.cuda.is_available():
        missing = "its kernels need a GPU"
    elif find_spec("sglang") is None and not UNPACKED.is_dir():
        missing = f"neither the package sglang nor {UNPACKED} is here"
    else:
        missing = ""
    return Peer("sglang", VERSION, _adapter, missing)


def _adapter(contract: Contract) -> Adapter | str:
    return ADAPTERS.get(contract.name) or WITHOUT.get(contract.name, "it has no kernel of this operator")


def kernel(path: str, name: str) -> Callable[..., Any]:
    """Return a function of ``sglang.kernels.ops``; the package's own start-up is left out where it is unpacked."""
    if "sglang" not in sys.modules and find_spec("sglang") is None:
        _use_unpacked()
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(f"sglang.kernels.ops.{path}"), name)
    except Exception as error:  # its modules look at the machine when they are imported, and may raise anything
        raise UnfitError(f"{path}.{name} cannot be imported: {type(error).__name__}: {error}") from error
    return found


def _use_unpacked() -> None:
    root = UNPACKED.resolve()
    # Packages whose own __init__ starts a server, or imports what is not needed here.
    bare = {"sglang": "", "sglang.srt": "srt", "sglang.srt.layers.utils": "srt/layers/utils"}
    lora = "kernels/ops/lora/moe/trtllm_lora_temp"
    bare["sglang.kernels.ops.lora.moe.trtllm_lora_temp"] = lora
    for name, folder in ((name, root / below) for name, below in bare.items()):
        module = ModuleType(name)
        module.__path__ = [str(folder)]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules.setdefault(name, module)


def complex_table(freqs: torch.Tensor) -> torch.Tensor:
    """Return an interleaved table [S, P] float32 as complex64 [S, P / 2]; no copy."""
    return torch.view_as_complex(freqs.view(freqs.shape[0], -1, 2))


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


def q_rope_store(inputs: Inputs) -> Call:
    function = kernel("attention.dsv4.norm_rope", "fused_q_norm_rope")
    q, out = inputs["q"], inputs["out"][:, : inputs["q"].shape[1]]
    freqs, positions = complex_table(inputs["freqs"]), inputs["positions"]
    return lambda: function(q, out, None, freqs, positions)


def k_norm_rope_store(inputs: Inputs) -> Call:
    if inputs["layout"] != "kv_v4":
        raise UnfitError(f"adapted for pages in kv_v4, got {inputs['layout']}")
    function = kernel("attention.dsv4.norm_rope", "fused_k_norm_rope_flashmla")
    kv, weight, eps, positions = (inputs[name] for name in ("kv", "weight", "eps", "positions"))
    freqs, slots, cache, page_size = (
        complex_table(inputs["freqs"]),
        *(inputs[name] for name in ("out_loc", "cache", "page_size")),
    )
    return lambda: function(kv, weight, eps, freqs, positions, slots, cache, page_size)


def compress_c1(inputs: Inputs) -> Call:
    function = kernel("attention.dsv4.low_ratio_compress", "c1_decode_norm_rope_store")
    kv, weight, positions, slots, eps, freqs, cache = (
        inputs[name] for name in ("kv", "weight", "positions", "out_loc", "eps", "freqs", "cache")
    )
    page_size = inputs["page_size"]
    return lambda: function(kv, weight, positions, slots, eps, freqs, cache, page_size=page_size)


def compress_c2(inputs: Inputs) -> Call:
    if inputs["form"] == "extend":
        raise UnfitError("adapted for the forms decode and verify")
    function = kernel("attention.dsv4.low_ratio_compress", "c2_decode_norm_rope_store")
    names = ("kv_score", "state", "weight", "positions", "requests", "out_loc", "eps", "freqs", "cache")
    arguments = [inputs[name] for name in names]
    options = {name: inputs[name] for name in ("page_size", "ring_size", "draft_len")}
    return lambda: function(*arguments, **options)


def _pairs(returned: Any, inputs: Inputs) -> dict[str, Any]:
    # Its rows without a complete pair are left unwritten, where the contract's hold zeros.
    odd = inputs["positions"] % 2 == 1
    latent = torch.where(odd[:, None], returned, 0.0).to(returned.dtype)
    return {"latent": latent, "state": inputs["state"], "cache": inputs["cache"]}


def index_k_store(inputs: Inputs) -> Call:
    if inputs["layout"] != "index_k_page68" or inputs.get("weight") is not None or inputs["ratio"] != 1:
        raise UnfitError("adapted for normalised keys of ratio 1 in pages of 68 bytes a slot")
    function = kernel("attention.dsv4.fp4_indexer", "index_k_rope_pack")
    keys, positions, cache, slots = (inputs[name] for name in ("k", "positions", "cache", "out_loc"))
    freqs = complex_table(inputs["freqs"])
    width = inputs["freqs"].shape[1]
    return lambda: function(keys, freqs, width, positions=positions, cache=cache, loc=slots)


def index_scores(inputs: Inputs) -> Call:
    if inputs["numerics"] != "bf16_steps":
        raise UnfitError("it rounds to bfloat16 after each step")
    function = kernel("attention.dsv4.fp4_indexer", "fp4_index_logits_paged")
    q, weights, lengths, cache = (inputs[name] for name in ("q", "weights", "lengths", "cache"))
    pages, page_size = inputs["page_table"], inputs["page_size"]
    slots = pages.unsqueeze(-1) * page_size + torch.arange(page_size, device=pages.device, dtype=torch.int32)
    slots = slots.flatten(1).contiguous()
    rows = torch.arange(len(q), device=q.device)
    longest = slots.shape[1]
    return lambda: function(q, weights, rows, slots, lengths, cache, page_size, longest, 1)


def candidate_lengths(inputs: Inputs) -> Call:
    function = kernel("attention.dsv4.candidate_blocks", "candidate_row_lens")
    lengths, top, block = inputs["seq_lens"], inputs["topk_blocks"], inputs["block_size"]
    return lambda: function(lengths, top, block)


def mla_sched_meta(inputs: Inputs) -> Call:
    if inputs["form"] != "sparse":
        raise UnfitError("adapted for sparse lengths")
    function = kernel("attention.dsv4.flashmla_sched_meta", "flashmla_sched_meta")
    meta, splits, lengths = inputs["meta"], inputs["num_splits"], inputs["lengths"]
    options = {
        "topk_length": lengths, "extra_topk_length": inputs["extra_lengths"], "block_size_n": inputs["block_size"],
        "fixed_overhead_num_blocks": inputs["overhead"], "topk": 128, "extra_topk": inputs["extra_topk"],
    }  # fmt: skip
    return lambda: function(meta, splits, **options)


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
    "q_rope_store": Adapter(q_rope_store, note="fused_q_norm_rope without a norm"),
    "k_norm_rope_store": Adapter(k_norm_rope_store, note="fused_k_norm_rope_flashmla"),
    "compress_c1": Adapter(compress_c1, note="c1_decode_norm_rope_store"),
    "compress_c2": Adapter(compress_c2, _pairs, note="c2_decode_norm_rope_store"),
    "index_k_store": Adapter(index_k_store, note="index_k_rope_pack"),
    "index_scores": Adapter(index_scores, note="fp4_index_logits_paged, which reads a table of slots, not of pages"),
    "candidate_lengths": Adapter(
        candidate_lengths,
        lambda returned, inputs: {"block_lens": returned[0]},
        note="candidate_row_lens, without the page table",
    ),
    "mla_sched_meta": Adapter(mla_sched_meta),
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

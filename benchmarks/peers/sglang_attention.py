"""SGLang's kernels around attention and its index, with the contracts' arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dspark_ops.bench.peers import UnfitError

from .sglang_source import kernel

Inputs = Mapping[str, Any]
Call = Callable[[], Any]


def complex_table(freqs: torch.Tensor) -> torch.Tensor:
    """Return an interleaved table [S, P] float32 as complex64 [S, P / 2]; no copy."""
    return torch.view_as_complex(freqs.view(freqs.shape[0], -1, 2))


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


def complete_pairs(returned: Any, inputs: Inputs) -> dict[str, Any]:
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

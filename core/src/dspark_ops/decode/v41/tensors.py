"""The tensors that a model file must hold: name, shape and dtype of each, derived from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dspark_ops.decode.v41.config import V41Config


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype (``bfloat16`` or ``float32``) that a stored tensor must have."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def tensor_specs(config: V41Config) -> Mapping[str, TensorSpec]:
    """Return the expected tensors by name, in a fixed order. Linear weights are [out, in] and have no bias."""
    specs: dict[str, TensorSpec] = {
        "embed.weight": TensorSpec((config.vocab, config.hidden)),
        "norm.weight": TensorSpec((config.hidden,)),
    }
    for layer in range(config.layers):
        specs |= _block(config, f"layers.{layer}", config.experts)
        if layer in config.kv_sources:
            specs |= _compressor(config, f"layers.{layer}.attn.compressor", config.ratios[layer])
    for stage in range(config.stages):
        specs |= _block(config, f"mtp.{stage}", config.draft_experts)
    return specs | _draft_ends(config)


def _block(config: V41Config, prefix: str, experts: int) -> dict[str, TensorSpec]:
    hidden, inner = config.hidden, config.intermediate
    mixes = (2 + config.hc_mult) * config.hc_mult
    specs = {f"{prefix}.{norm}.weight": TensorSpec((hidden,)) for norm in ("attn_norm", "ffn_norm")}
    for site in ("hc_attn", "hc_ffn"):
        specs[f"{prefix}.{site}_fn"] = TensorSpec((mixes, config.hc_mult * hidden), "float32")
        specs[f"{prefix}.{site}_base"] = TensorSpec((mixes,), "float32")
        specs[f"{prefix}.{site}_scale"] = TensorSpec((3,), "float32")
    width, group = config.heads * config.head_dim, config.heads // config.o_groups * config.head_dim
    attention = {
        "wq_a.weight": (config.q_lora_rank, hidden),
        "q_norm.weight": (config.q_lora_rank,),
        "wq_b.weight": (width, config.q_lora_rank),
        "wkv.weight": (config.head_dim, hidden),
        "kv_norm.weight": (config.head_dim,),
        "wo_a.weight": (config.o_groups, config.o_lora_rank, group),
        "wo_b.weight": (hidden, config.o_groups * config.o_lora_rank),
    }
    specs |= {f"{prefix}.attn.{name}": TensorSpec(shape) for name, shape in attention.items()}
    specs[f"{prefix}.attn.attn_sink"] = TensorSpec((config.heads,), "float32")
    specs[f"{prefix}.ffn.gate.weight"] = TensorSpec((experts, hidden))
    specs[f"{prefix}.ffn.gate.bias"] = TensorSpec((experts,), "float32")
    for name, shape in {"w1": (inner, hidden), "w3": (inner, hidden), "w2": (hidden, inner)}.items():
        specs[f"{prefix}.ffn.experts.{name}"] = TensorSpec((experts, *shape))
        specs[f"{prefix}.ffn.shared_experts.{name}"] = TensorSpec(shape)
    return specs


def _compressor(config: V41Config, prefix: str, ratio: int) -> dict[str, TensorSpec]:
    projection = TensorSpec((config.head_dim, config.hidden))
    specs = {f"{prefix}.wkv.weight": projection, f"{prefix}.norm.weight": TensorSpec((config.head_dim,))}
    if ratio == 2:
        specs[f"{prefix}.wgate.weight"] = projection
    return specs


def _draft_ends(config: V41Config) -> dict[str, TensorSpec]:
    hidden, rank = config.hidden, config.markov_rank
    last = f"mtp.{config.stages - 1}"
    confidence_width = hidden + (rank if config.confidence_with_markov else 0)
    return {
        "mtp.0.main_proj.weight": TensorSpec((hidden, len(config.taps) * hidden)),
        "mtp.0.main_norm.weight": TensorSpec((hidden,)),
        f"{last}.norm.weight": TensorSpec((hidden,)),
        f"{last}.markov_head.embed.weight": TensorSpec((config.vocab, rank)),
        f"{last}.markov_head.head.weight": TensorSpec((config.vocab, rank)),
        f"{last}.confidence_head.weight": TensorSpec((1, confidence_width), "float32"),
    }

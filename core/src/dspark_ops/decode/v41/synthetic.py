"""Weights of made-up models: for tests and benchmarks that need a model's shape and not its knowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dspark_ops._lazy import torch
from dspark_ops.decode.v41.config import V41Config, config_from_mapping
from dspark_ops.decode.v41.tensors import tensor_specs

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["random_weights", "small_config"]


def small_config(**changes: Any) -> V41Config:
    """Return the configuration of a model of a few hundred thousand parameters with every structure of V4.1.

    The window is so short that a few dozen tokens leave it, and the vocabulary's size is a prime. `changes` are keys of
    config.json.

    Raises:
        ModelError: the changed configuration is wrong.
    """
    return config_from_mapping({**_SMALL, **changes}, origin="small model")


_SMALL: Final[dict[str, Any]] = {
    "model_type": "deepseek_v41",
    "architectures": ["DeepseekV41ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "sliding_window": 16,
    "vocab_size": 97,
    "max_position_embeddings": 224,
    "rms_norm_eps": 1e-20,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "swiglu_limit": 10.0,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "compress_ratios": [0, 2, 2, 1, 0, 0],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3],
    "index_n_heads": 2,
    "index_head_dim": 128,
    "index_topk": 224,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "num_nextn_predict_layers": 2,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [1, 2, 3],
    "dspark_markov_rank": 8,
    "dspark_markov_head_type": "vanilla",
    "dspark_noise_token_id": 4,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "sample_from_anchor": True,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}


def random_weights(config: V41Config, seed: int) -> dict[str, Tensor]:
    """Return a full set of weights that the loader accepts, drawn from a seed, on the CPU.

    Linear weights keep the scale of what they map, norms are near 1, sinks and biases near 0, and the hyper-connections
    mix noticeably, so that a fault in any part shows in the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, spec in tensor_specs(config).items():
        values = torch.randn(spec.shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.1 * values
        elif len(spec.shape) > 1:
            values = values * (0.1 if name == "embed.weight" else spec.shape[-1] ** -0.5)
        else:
            values = 0.2 * values
        weights[name] = values.to(getattr(torch, spec.dtype))
    return weights

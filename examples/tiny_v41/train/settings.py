"""The sizes of the model as the training code uses them, read from ``config.json``."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

import torch


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes and constants under short names; ``from_file`` maps them from the keys of ``config.json``."""

    d: int
    layers: int
    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    vocab: int
    length: int
    eps: float
    hc: int
    hc_iters: int
    hc_eps: float
    limit: float
    experts: int
    top_k: int
    inter: int
    route_scale: float
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    theta: float
    compress_theta: float
    yarn: dict
    stages: int
    gamma: int
    taps: tuple[int, ...]
    markov_rank: int
    noise: int
    draft_experts: int
    draft_top_k: int
    bos: int
    eos: int

    @classmethod
    def from_file(cls, path: pathlib.Path) -> Settings:
        """Read ``config.json``; raises KeyError naming the key that is missing."""
        c = json.loads(path.read_text())
        return cls(
            d=c["hidden_size"], layers=c["num_hidden_layers"], heads=c["num_attention_heads"], head_dim=c["head_dim"],
            rope_dim=c["qk_rope_head_dim"], q_rank=c["q_lora_rank"], o_groups=c["o_groups"], o_rank=c["o_lora_rank"],
            window=c["sliding_window"], vocab=c["vocab_size"], length=c["max_position_embeddings"],
            eps=c["rms_norm_eps"], hc=c["hc_mult"], hc_iters=c["hc_sinkhorn_iters"], hc_eps=c["hc_eps"],
            limit=c["swiglu_limit"], experts=c["n_routed_experts"], top_k=c["num_experts_per_tok"],
            inter=c["moe_intermediate_size"], route_scale=c["routed_scaling_factor"],
            ratios=tuple(c["compress_ratios"]), kv_sources=tuple(c["kv_source_layer_ids"]), theta=c["rope_theta"],
            compress_theta=c["compress_rope_theta"], yarn=c["rope_scaling"], stages=c["num_nextn_predict_layers"],
            gamma=c["dspark_block_size"], taps=tuple(c["dspark_target_layer_ids"]),
            markov_rank=c["dspark_markov_rank"], noise=c["dspark_noise_token_id"],
            draft_experts=c["dspark_n_routed_experts"], draft_top_k=c["dspark_num_experts_per_tok"],
            bos=c["bos_token_id"], eos=c["eos_token_id"],
        )  # fmt: skip

    def kv_source(self, layer: int) -> int:
        """The layer whose compressed entries ``layer`` attends: the latest source at or before it."""
        return max(source for source in self.kv_sources if source <= layer)


def rope_table(settings: Settings, ratio: int, length: int) -> torch.Tensor:
    """fp32 ``[2, length, 32]``: cosines and sines of the angles; ratio 0 is the local table, others YaRN (N-G.1)."""
    half = settings.rope_dim // 2
    theta = settings.compress_theta if ratio else settings.theta
    index = torch.arange(half, dtype=torch.float32)
    frequency = theta ** (-2.0 * index / settings.rope_dim)
    if ratio:
        yarn = settings.yarn
        original = yarn["original_max_position_embeddings"]

        def bound(turns: float) -> float:
            return settings.rope_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(bound(yarn["beta_fast"])), 0)
        high = min(math.ceil(bound(yarn["beta_slow"])), settings.rope_dim - 1)
        ramp = ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
        frequency = frequency / yarn["factor"] * ramp + frequency * (1 - ramp)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()])
